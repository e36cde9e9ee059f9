//! The walk that runs in the kernel, compiled for the host, takes the same steps as the reference walker:
//! over random tables and memory, over a recorded process, and with every read failing in turn.

#![allow(unsafe_code, reason = "calls the C walk through a shared object")]

mod framehop;
mod generated;
mod limits;
mod own_frame;
mod recorded;

use std::collections::HashSet;

use memleak_test::any_walk;
use memleak_test::compile::{host_walk, plain_walk, run_sanitized};
use memleak_test::host::{HostWalk, Memory};
use memleak_test::random::Random;
use memleak_test::random_rules::random_rule;
use unwind_tables::Architecture;
use unwind_tables::addr::{Avma, Bias, Svma};
use unwind_tables::build::SavesTable;
use unwind_tables::encode::{encode, encode_with_saves};
use unwind_tables::mapping::{Check, Identity, Trust};
use unwind_tables::program::{Programs, SP};
use unwind_tables::rule::UnwindRule;
use unwind_tables::saves::{LongSaves, Saved as SavedRegister, SavesRule, long};
use unwind_tables::table::{Row, RowRule, Rows, UnwindTable};
use unwind_tables::walk::{End, Mapping, MappingKind, Registers, ReturnProbes, Stack, Tables, Unwind, walk};

const CODE: u64 = 0x5555_0000_0000;
const STACK: u64 = 0x7fff_ff00_0000;
const STACK_BYTES: u64 = 1 << 16;
/// Address of the word by which an object's mapping is verified, and its value.
const IDENTITY: u64 = 0x5554_0000_0000;
const IDENTITY_WORD: u64 = 0x1234_5678_9abc_def0;

/// Makes saves that say for every stretch of code where its registers may be.
fn random_saves(random: &mut Random, bytes: u64) -> SavesTable {
    let mut long = LongSaves::default();
    let mut rows = Vec::new();
    let mut start = 0;
    while start < bytes {
        let mut place = |number: usize| {
            let base = [long::AT_CFA, long::AT_SP, long::AT_FP][random.index(3)];
            match random.below(8) {
                0 => SavedRegister::Unknown,
                1 if number.is_multiple_of(2) => SavedRegister::Slot(base, random.slots(-8, 8)),
                2 | 3 => SavedRegister::Slot(long::AT_CFA, random.slots(-30, -2)),
                _ => SavedRegister::Same,
            }
        };
        let mut saved: [SavedRegister; 16] = std::array::from_fn(&mut place);
        if random.below(2) == 0 {
            // Rules that have a short form.
            for (number, saved) in saved.iter_mut().enumerate() {
                if !matches!(saved, SavedRegister::Slot(long::AT_CFA, offset) if *offset < 0) {
                    *saved = SavedRegister::Same;
                }
                if ![3, 12, 13, 14, 15].contains(&number) {
                    *saved = SavedRegister::Unknown;
                }
            }
        }
        let rule = long.pack(&saved);
        rows.push(Row {
            start: Svma::new(start),
            rule,
        });
        start += 1 + random.below(400);
    }
    rows.push(Row {
        start: Svma::new(start),
        rule: SavesRule::GAP,
    });
    let rows = Rows::new(rows).expect("rows ascend and end in a gap");
    SavesTable { rows, long }
}

/// Rows over `bytes` of code, close enough that many share a block.
fn random_table(random: &mut Random, architecture: Architecture, bytes: u64, distinct: u64) -> UnwindTable {
    let mut programs = Programs::new(architecture);
    let rules: Vec<_> = (0..distinct)
        .map(|_| random_rule(random, &mut programs))
        .collect();
    let mut rows = Vec::new();
    let mut start = random.below(512);
    while start < bytes {
        let rule = rules[random.index(rules.len())];
        rows.push(Row {
            start: Svma::new(start),
            rule,
        });
        start += 1 + random.below(40);
    }
    rows.push(Row {
        start: Svma::new(start),
        rule: UnwindRule::Gap,
    });
    UnwindTable::with_programs(rows, programs).expect("rows ascend and end in a gap")
}

/// Stack memory of which most words look like return addresses, saved frame pointers or small numbers.
fn random_stack(random: &mut Random, architecture: Architecture, code_bytes: u64) -> Vec<u64> {
    let is_aarch64 = architecture == Architecture::Aarch64;
    let word = |_| match random.below(8) {
        0 => random.below(1 << 20),
        1 | 2 => STACK + 8 * random.below(STACK_BYTES / 8),
        // An address with an authentication code.
        3 if is_aarch64 => (CODE + random.below(code_bytes)) & !3 | (1 + random.below(1 << 15)) << 48,
        _ if is_aarch64 => (CODE + random.below(code_bytes)) & !3,
        _ => CODE + random.below(code_bytes),
    };
    (0..STACK_BYTES / 8).map(word).collect()
}

/// Makes code in which many addresses are behind a call.
fn random_code(random: &mut Random, architecture: Architecture, bytes: u64) -> Vec<u8> {
    let mut code: Vec<u8> = (0..bytes).map(|_| random.byte()).collect();
    if architecture == Architecture::Aarch64 {
        for instruction in code.as_chunks_mut::<4>().0 {
            match random.below(6) {
                0 | 1 => instruction[3] = 0x94 | random.byte() & 3,
                2 => *instruction = (0xd63f_0000_u32 | u32::from(random.byte() & 31) << 5).to_le_bytes(),
                3 => *instruction = (0xd63f_0800_u32 | u32::from(random.byte())).to_le_bytes(),
                _ => {}
            }
        }
        return code;
    }
    for at in (0..code.len().saturating_sub(8)).step_by(3) {
        match random.below(3) {
            0 => code[at] = 0xe8,
            1 => code[at..at + 2].copy_from_slice(&[0xff, 0x10 | random.byte() & 0xc7]),
            _ => {}
        }
    }
    code
}

/// Draws the identity of an object that is mostly still there; sometimes the object is another, or its memory
/// is gone.
fn random_identity(random: &mut Random) -> Identity {
    let trusts = [
        Trust::Settled,
        Trust::Checked,
        Trust::Unchanged,
        Trust::CheckedUnchanged,
    ];
    let mut check = || {
        let (at, word) = match random.below(24) {
            0 => (IDENTITY, !IDENTITY_WORD),
            1 => (IDENTITY + 8, IDENTITY_WORD),
            _ => (IDENTITY, IDENTITY_WORD),
        };
        Check {
            at: Avma::new(at),
            word,
        }
    };
    let checks = [check(), check()];
    Identity {
        trust: trusts[random.index(trusts.len())],
        checks,
    }
}

/// Draws a trampoline in a mapping or outside all, and replaces some words of the stack by it.
fn random_trampoline(random: &mut Random, stack_words: &mut [u64], code_bytes: u64) -> Avma {
    let trampoline = [CODE + code_bytes * 7 / 8, CODE + code_bytes][random.index(2)];
    for word in stack_words {
        if random.below(8) == 0 {
            *word = trampoline;
        }
    }
    Avma::new(trampoline)
}

/// Returns most of the slots that contain the trampoline, with what was there before: mostly code. On AArch64
/// the kernel identifies a return probe by another slot than the trampoline's: any.
fn random_replaced(
    random: &mut Random,
    architecture: Architecture,
    stack_words: &[u64],
    trampoline: Avma,
    code_bytes: u64,
) -> Vec<(Avma, Avma)> {
    let slots = (STACK..).step_by(8).map(Avma::new).zip(stack_words);
    slots
        .filter(|&(_, &word)| architecture == Architecture::Aarch64 || word == trampoline.get())
        .filter_map(|(slot, _)| match random.below(8) {
            0 => None,
            1 => Some((slot, trampoline)),
            _ => Some((slot, Avma::new(CODE + random.below(code_bytes)))),
        })
        .collect()
}

fn random_start(random: &mut Random, code_bytes: u64) -> Registers {
    let pc = Avma::new(CODE + random.below(code_bytes));
    let mut general = std::array::from_fn(|_| STACK + 8 * random.below(1024));
    general[usize::from(SP)] = STACK + 8 * random.below(512);
    Registers { pc, general }
}

/// Checks that both walks find the same, with fast paths and without.
fn check(host: &mut HostWalk, tables: Tables<'_>, start: Registers, memory: &Memory) -> Stack {
    let stack_ends = [STACK_BYTES, STACK_BYTES / 4].map(|bytes| Avma::new(STACK + bytes));
    host.check(tables, start, memory, stack_ends)
}

/// Checks like [`check`], with the walk that has fast paths compiled in and with the one that has none; both
/// find the same.
#[track_caller]
fn check_both(architecture: Architecture, tables: Tables<'_>, start: Registers, memory: &Memory) -> Stack {
    let stack = check(&mut host_walk(architecture), tables, start, memory);
    assert_eq!(check(&mut plain_walk(architecture), tables, start, memory), stack);
    stack
}

/// Checks that the trail of the C walk is complete: with every other word of the stack changed, the Rust walk
/// finds the same. Returns true if the trail is known.
fn check_trail(
    host: &mut HostWalk,
    random: &mut Random,
    tables: Tables<'_>,
    start: Registers,
    memory: &mut Memory,
) -> bool {
    let Some(trail) = host.trail.clone() else {
        return false;
    };
    let reference = walk(tables, start, |address| memory.word(address));
    let depended: HashSet<_> = trail.iter().map(|&(slot, _)| slot).collect();
    for &(slot, value) in &trail {
        assert_eq!(
            memory.word(slot),
            Some(value),
            "{slot:x} holds what the trail says"
        );
    }
    let others = (STACK..STACK + STACK_BYTES)
        .step_by(8)
        .map(Avma::new)
        .filter(|slot| !depended.contains(slot));
    for slot in others {
        memory.change_word(slot, |_| random.below(1 << 47));
    }
    assert_eq!(
        walk(tables, start, |address| memory.word(address)),
        reference,
        "from {start:x?}"
    );
    true
}

/// Returns the slots that a walk reads, in order.
fn slots_read(tables: Tables<'_>, start: Registers, memory: &Memory) -> Vec<Avma> {
    let mut slots = Vec::new();
    walk(tables, start, |address| {
        slots.push(address);
        memory.word(address)
    });
    slots
}

/// Over random tables, stacks and registers, both walks find the same frames and the same end, also when any
/// one of the reads fails.
#[test]
fn random_walks_are_equal() {
    check_random_walks(Architecture::X86_64, 200);
}

/// Over random tables, stacks and registers of AArch64, both walks find the same frames and the same end,
/// also when any one of the reads fails.
#[test]
fn random_walks_of_aarch64_are_equal() {
    check_random_walks(Architecture::Aarch64, 200);
}

/// Outcomes of random walks.
#[derive(Debug, Default)]
struct Seen {
    ends: HashSet<End>,
    /// Frames of the longest stack.
    longest: usize,
    /// Walks that needed saves which were missing.
    saves_wanted: u64,
    /// Walks that went on because a replaced return address was known.
    put_back: u64,
}

impl Seen {
    /// Adds a walk. `without` is the same walk if no replaced return address is known.
    fn add(&mut self, stack: &Stack, without: &Stack) {
        self.ends.insert(stack.end);
        self.longest = self.longest.max(stack.frames.len());
        self.saves_wanted += u64::from(stack.saves_wanted.is_some());
        self.put_back += u64::from(without.frames.len() < stack.frames.len());
    }

    #[track_caller]
    fn check(&self, architecture: Architecture, rounds: u64) {
        // The random data reach every end that a walk by itself can come to.
        for end in [
            End::Complete,
            End::NoMapping,
            End::AnonymousCode,
            End::NoCfi,
            End::UnsupportedRule,
            End::ReadFault,
            End::NoProgress,
            End::TableNotLoaded,
            End::NoTable,
            End::CallersUncertain,
            End::UretprobeTrampoline,
            End::FpChainEnd,
        ] {
            assert!(self.ends.contains(&end), "no walk ended with {}", end.name());
        }
        assert!(
            self.saves_wanted > 20 || architecture == Architecture::Aarch64,
            "{self:?}: too few walks needed saves that there were not"
        );
        assert!(
            self.put_back > rounds / 2,
            "{self:?}: too few walks went on where a return address was put back"
        );
        assert!(self.longest > 20, "{self:?}");
    }
}

/// Draws mappings: code with a table, code of any kind, and code that is not known.
fn random_mappings(random: &mut Random, code_bytes: u64) -> [Mapping; 3] {
    [
        Mapping {
            start: Avma::new(CODE),
            end: Avma::new(CODE + code_bytes / 2),
            bias: Bias::between(Avma::new(CODE), Svma::new(0)),
            image_at: 0,
            kind: MappingKind::Table,
            identity: random_identity(random),
        },
        Mapping {
            start: Avma::new(CODE + code_bytes / 2),
            end: Avma::new(CODE + code_bytes * 7 / 8),
            bias: Bias::between(Avma::new(CODE), Svma::new(0)),
            image_at: 0,
            kind: [
                MappingKind::Table,
                MappingKind::Table,
                MappingKind::NoCfi,
                MappingKind::Anonymous,
                MappingKind::AnonymousLinked,
                MappingKind::AnonymousMethods,
                MappingKind::AnonymousStub,
                MappingKind::AnonymousPushed,
            ][random.index(8)],
            identity: random_identity(random),
        },
        Mapping {
            start: Avma::new(CODE + code_bytes * 7 / 8),
            end: Avma::new(CODE + code_bytes - 0x40),
            bias: Bias::default(),
            image_at: 0,
            kind: [
                MappingKind::Pending,
                MappingKind::NoTable,
                MappingKind::Trampoline,
            ][random.index(3)],
            identity: Identity::SETTLED,
        },
    ]
}

fn check_random_walks(architecture: Architecture, rounds: u64) {
    let mut host = host_walk(architecture);
    let mut random = Random::new(20);
    let mut seen = Seen::default();
    for round in 0..rounds {
        let code_bytes = 0x1000 << random.below(4);
        let distinct = if round % 4 == 0 { 600 } else { 20 };
        let table = random_table(&mut random, architecture, code_bytes, distinct);
        let image = if round % 3 == 0 || architecture == Architecture::Aarch64 {
            encode(&table)
        } else {
            encode_with_saves(&table, &random_saves(&mut random, code_bytes))
        };
        let image = image.expect("the table fits");
        let mappings = random_mappings(&mut random, code_bytes);
        let unwind = if round % 5 == 4 { Unwind::Fp } else { Unwind::Dwarf };
        let mut stack_words = random_stack(&mut random, architecture, code_bytes);
        let trampoline = random_trampoline(&mut random, &mut stack_words, code_bytes);
        let replaced = random_replaced(&mut random, architecture, &stack_words, trampoline, code_bytes);
        let tables = Tables {
            architecture,
            words: image.words(),
            mappings: &mappings,
            unwind,
            changing: random.below(8) == 0,
            return_probes: ReturnProbes {
                trampoline,
                replaced: &replaced,
            },
        };
        let mut memory = Memory::default();
        memory.add(
            Avma::new(CODE),
            random_code(&mut random, architecture, code_bytes),
        );
        memory.add_words(Avma::new(IDENTITY), &[IDENTITY_WORD]);
        memory.add_words(Avma::new(STACK), &stack_words);
        for _ in 0..40 {
            let start = random_start(&mut random, code_bytes);
            let stack = check(&mut host, tables, start, &memory);
            let without = Tables {
                return_probes: ReturnProbes::default(),
                ..tables
            };
            let without = walk(without, start, |address| memory.word(address));
            seen.add(&stack, &without);
            for slot in slots_read(tables, start, &memory) {
                memory.fault_at = Some(slot);
                seen.ends.insert(check(&mut host, tables, start, &memory).end);
                memory.fault_at = None;
            }
        }
    }
    seen.check(architecture, rounds);
}

/// Walks whose trail is known depend on nothing else; most walks that come to the end of their stack are
/// among them.
#[test]
fn trails_are_whole() {
    check_trails(Architecture::X86_64, 250);
}

/// Walks of AArch64 whose trail is known depend on nothing else.
#[test]
fn trails_of_aarch64_are_whole() {
    check_trails(Architecture::Aarch64, 60);
}

fn check_trails(architecture: Architecture, rounds: u64) {
    let mut host = host_walk(architecture);
    let mut random = Random::new(21);
    let (mut complete, mut known) = (0, 0);
    for round in 0..rounds {
        let code_bytes = 0x1000 << random.below(4);
        let table = random_table(&mut random, architecture, code_bytes, 20);
        let image = match architecture {
            Architecture::X86_64 => encode_with_saves(&table, &random_saves(&mut random, code_bytes)),
            Architecture::Aarch64 => encode(&table),
        };
        let image = image.expect("the table fits");
        let mappings = [Mapping {
            start: Avma::new(CODE),
            end: Avma::new(CODE + code_bytes),
            bias: Bias::between(Avma::new(CODE), Svma::new(0)),
            image_at: 0,
            kind: MappingKind::Table,
            identity: random_identity(&mut random),
        }];
        let tables = Tables {
            architecture,
            words: image.words(),
            mappings: &mappings,
            unwind: if round % 5 == 4 { Unwind::Fp } else { Unwind::Dwarf },
            changing: false,
            return_probes: ReturnProbes::default(),
        };
        let code = random_code(&mut random, architecture, code_bytes);
        for _ in 0..20 {
            let mut memory = Memory::default();
            memory.add(Avma::new(CODE), code.clone());
            memory.add_words(Avma::new(IDENTITY), &[IDENTITY_WORD]);
            memory.add_words(
                Avma::new(STACK),
                &random_stack(&mut random, architecture, code_bytes),
            );
            let start = random_start(&mut random, code_bytes);
            host.clear_cache();
            host.fast_paths = random.below(2) == 0;
            let stack = host.walk(tables, start, &memory);
            complete += u32::from(stack.end == End::Complete);
            let is_known = check_trail(&mut host, &mut random, tables, start, &mut memory);
            known += u32::from(is_known && stack.end == End::Complete);
        }
    }
    assert!(
        u64::from(complete) > rounds / 4,
        "{complete} walks came to their end"
    );
    assert!(
        known > complete / 6,
        "of {known} of {complete} the trail is known"
    );
}

/// Over tables, mappings, memory and registers from arbitrary bytes, of which fuzzers try more (tests/fuzz),
/// both walks find the same, also with one of their reads failing.
#[test]
fn any_walks_are_equal() {
    let mut hosts = [Architecture::X86_64, Architecture::Aarch64].map(host_walk);
    let mut random = Random::new(22);
    let mut ends = HashSet::new();
    let mut longest = [0; 2];
    let found = std::fs::read_dir("tests/fuzz/seeds/walk").expect("what fuzzers found");
    let found = found.map(|file| std::fs::read(file.expect("a file").path()).expect("a seed"));
    let mut made = || (0..200 + random.below(800)).map(|_| random.byte()).collect();
    let made: Vec<Vec<u8>> = (0..6000).map(|_| made()).collect();
    for bytes in found.chain(made) {
        let Some(walked) = any_walk::check(&mut hosts, &bytes) else {
            continue;
        };
        let longest = &mut longest[walked.architecture as usize];
        *longest = walked.stack.frames.len().max(*longest);
        ends.extend([Some(walked.stack.end), walked.faulted].into_iter().flatten());
    }
    assert!(ends.len() >= 9, "walks ended with {ends:?} alone");
    assert!(
        longest.iter().all(|&frames| frames > 100),
        "the longest stacks had {longest:?} frames"
    );
}

/// `bpf/walk/` alone, without any fast path, is the same walk.
#[test]
fn reference_step_alone_is_equal() {
    let mut hosts = [Architecture::X86_64, Architecture::Aarch64].map(plain_walk);
    let mut random = Random::new(23);
    let mut ends = HashSet::new();
    for _ in 0..2000 {
        let bytes: Vec<u8> = (0..200 + random.below(800)).map(|_| random.byte()).collect();
        let walked = any_walk::check(&mut hosts, &bytes);
        ends.extend(
            walked
                .into_iter()
                .flat_map(|walked| [Some(walked.stack.end), walked.faulted]),
        );
    }
    assert!(ends.len() >= 9, "walks ended with {ends:?} alone");
}

/// The walk's C has no undefined behaviour, and touches no memory but its own: gcc's sanitizers check it over
/// all the walks above.
#[test]
fn walks_are_defined() {
    run_sanitized(&[
        "walk::any_walks_are_equal",
        "walk::generated::chains_to_nowhere_are_dropped",
        "walk::generated::skipped_frames_are_noticed",
        "walk::limits::depth_limit_is_equal",
        "walk::limits::frames_left_out_are_not_looked_at",
        "walk::limits::look_limit_is_equal",
        "walk::own_frame::callers_that_call_the_function",
        "walk::random_walks_are_equal",
        "walk::trails_are_whole",
    ]);
}
