//! Both walks end at the same limits, at the same frame.

use std::collections::HashSet;

use unwind_tables::Architecture;
use unwind_tables::addr::{Avma, Bias, Svma};
use unwind_tables::build::SavesTable;
use unwind_tables::encode::{encode, encode_with_saves};
use unwind_tables::image::Image;
use unwind_tables::mapping::Identity;
use unwind_tables::program::{Op, Opcode, Programs, SP};
use unwind_tables::rule::{CfaRule, FrameRule, Register, Saved, UnwindRule};
use unwind_tables::saves::{LongSaves, Saved as SavedRegister, SavesRule};
use unwind_tables::table::{Row, RowRule, Rows, UnwindTable};
use unwind_tables::walk::{
    End, INNERMOST_FRAMES, MAX_DEPTH, MAX_FRAMES, MAX_LOOKS, Mapping, MappingKind, Registers, ReturnProbes,
    Stack, Tables, Unwind,
};

use super::{CODE, STACK, check};
use memleak_test::compile::host_walk;
use memleak_test::host::{HostWalk, Memory};

/// Numbers of frames of a recursion; the outermost frame is one more.
const DEPTHS: [usize; 8] = [256, 510, 511, 599, 767, 4094, 4095, 4999];
/// Numbers of places that a recursion goes through in turn.
const CYCLES: [usize; 4] = [1, 2, 3, 7];

/// The innermost and the outermost frames of a deep stack are kept, and those in between are counted; a stack
/// deeper than the limit ends with that cause, at the same frame.
#[test]
fn depth_limit_is_equal() {
    check_depth_limit(Architecture::X86_64);
    check_depth_limit(Architecture::Aarch64);
}

fn check_depth_limit(architecture: Architecture) {
    let mut host = host_walk(architecture);
    let image = plain_recursion(architecture);
    for (frames, cycle) in DEPTHS
        .iter()
        .flat_map(|&frames| CYCLES.map(|cycle| (frames, cycle)))
    {
        let stack = walk_recursion(&mut host, &image, frames, cycle);
        let found = (frames + 1).min(MAX_DEPTH);
        let end = match found > frames {
            true => End::Complete,
            false => End::DepthLimit,
        };
        assert_eq!((stack.end, stack.depth()), (end, found), "{frames} frames");
        let whole: Vec<_> = (0..found)
            .map(|number| recursion_pc(number, frames, cycle))
            .collect();
        let missing = found.saturating_sub(MAX_FRAMES);
        let after = INNERMOST_FRAMES.min(found);
        let kept: Vec<_> = [&whole[..after], &whole[after + missing..]].concat();
        let pcs: Vec<_> = stack.frames.iter().map(|frame| frame.pc).collect();
        assert_eq!(pcs, kept, "{frames} frames in a cycle of {cycle}");
        let left_out = stack.left_out.map(|left_out| (left_out.after, left_out.frames));
        let expected = u32::try_from(missing).expect("it is small");
        assert_eq!(
            left_out,
            (missing > 0).then_some((256, expected)),
            "{frames} frames"
        );
    }
}

/// Stacks that differ only in the number of frames left out have the same hash; all others differ.
#[test]
fn left_out_frames_are_not_hashed() {
    let mut host = host_walk(Architecture::X86_64);
    let image = plain_recursion(Architecture::X86_64);
    for cycle in CYCLES {
        let mut hashes: Vec<HashSet<u64>> = vec![HashSet::new(); cycle];
        let deep = (512..560).chain(760..780).chain(4050..4096);
        for frames in deep {
            walk_recursion(&mut host, &image, frames, cycle);
            hashes[frames % cycle].insert(host.hash);
        }
        assert!(hashes.iter().all(|of_phase| of_phase.len() == 1), "{hashes:x?}");
        let phases: HashSet<u64> = hashes.iter().flatten().copied().collect();
        assert_eq!(phases.len(), cycle, "in another phase it is another stack");
        let shallow: HashSet<u64> = (480..512)
            .map(|frames| {
                walk_recursion(&mut host, &image, frames, cycle);
                host.hash
            })
            .collect();
        assert_eq!((shallow.len(), shallow.intersection(&phases).count()), (32, 0));
    }
}

/// Makes a function with one plain rule.
fn plain_recursion(architecture: Architecture) -> Image {
    let table = recursive_table(plain_rule(), Programs::new(architecture));
    encode(&table).expect("the table fits")
}

fn plain_rule() -> UnwindRule {
    UnwindRule::Frame(FrameRule {
        cfa: CfaRule::Offset {
            register: Register::Sp,
            offset: 16,
        },
        ra: Saved::AtCfa(-8),
        ra_signed: false,
        fp: Saved::Same,
        signal_frame: false,
    })
}

/// A register that no function saved is looked for in every frame below; after as many frames as a walk may
/// look at, it counts as unknown, and the walk ends with that cause, at the same frame.
#[test]
fn look_limit_is_equal() {
    let mut host = host_walk(Architecture::X86_64);
    let mut programs = Programs::new(Architecture::X86_64);
    let rule = asking_rule(&mut programs);
    let table = recursive_table(rule, programs);
    let image = encode_with_saves(&table, &nothing_saved()).expect("the table fits");
    // 0 + 1 + ... + 90 looks are one less than the limit.
    assert_eq!(MAX_LOOKS, 91 * 90 / 2 + 1);
    for (frames, end) in [(91, End::Complete), (92, End::LookLimit), (500, End::LookLimit)] {
        let stack = walk_recursion(&mut host, &image, frames, 1);
        assert_eq!((stack.end, stack.frames.len()), (end, 92));
    }
}

/// A register is looked for only in frames that are kept: if one is left out in between, the walk ends with
/// that cause, at the same frame.
#[test]
fn frames_left_out_are_not_looked_at() {
    let mut host = host_walk(Architecture::X86_64);
    let mut programs = Programs::new(Architecture::X86_64);
    let rows = [
        (0, plain_rule()),
        (0x100, asking_rule(&mut programs)),
        (0x180, UnwindRule::EndOfStack),
        (0x200, UnwindRule::Gap),
    ];
    let table = table_of(&rows, programs);
    let image = encode_with_saves(&table, &nothing_saved()).expect("the table fits");
    for (frames, end) in [
        (510, End::Complete),
        (511, End::Complete),
        (512, End::LookLimit),
        (3000, End::LookLimit),
    ] {
        let mut pcs = vec![Avma::new(CODE + 0x80); frames];
        pcs.extend([CODE + 0x140, CODE + 0x1c0].map(Avma::new));
        let stack = walk_frames(&mut host, &image, &pcs);
        let found = frames + 1 + usize::from(end == End::Complete);
        assert_eq!((stack.end, stack.depth()), (end, found), "{frames} frames");
    }
}

/// Makes a rule that asks for rbx, and ignores it.
fn asking_rule(programs: &mut Programs) -> UnwindRule {
    let rbx = 3;
    let rule = programs.intern(vec![
        Op::register(rbx, 0),
        Op::plain(Opcode::Drop),
        Op::register(SP, 16),
        Op::plain(Opcode::SetCfa),
        Op::cfa(-8),
        Op::deref(),
        Op::plain(Opcode::SetRa),
    ]);
    UnwindRule::Program(rule.expect("a program"))
}

/// Makes saves of functions that leave every register as it is.
fn nothing_saved() -> SavesTable {
    let mut long = LongSaves::default();
    let same = [
        (0, long.pack(&[SavedRegister::Same; 16])),
        (0x200, SavesRule::GAP),
    ];
    let rows = same.map(|(start, rule)| Row {
        start: Svma::new(start),
        rule,
    });
    let rows = Rows::new(rows.to_vec()).expect("rows ascend and end in a gap");
    SavesTable { rows, long }
}

/// Makes a function with one rule, whose frames have two words, and the outermost function above it.
fn recursive_table(rule: UnwindRule, programs: Programs) -> UnwindTable {
    let rows = [
        (0, rule),
        (0x100, UnwindRule::EndOfStack),
        (0x200, UnwindRule::Gap),
    ];
    table_of(&rows, programs)
}

fn table_of(rows: &[(u64, UnwindRule)], programs: Programs) -> UnwindTable {
    let rows = rows.iter().map(|&(start, rule)| Row {
        start: Svma::new(start),
        rule,
    });
    UnwindTable::with_programs(rows.collect(), programs).expect("rows ascend")
}

/// Returns the address in frame `number` of a recursion through `cycle` places: `frames` frames and the
/// outermost one.
fn recursion_pc(number: usize, frames: usize, cycle: usize) -> Avma {
    match number < frames {
        true => Avma::new(CODE + 0x80 + 8 * (number % cycle) as u64),
        false => Avma::new(CODE + 0x180),
    }
}

/// Walks a recursion through `cycle` places, of `frames` frames and the outermost one.
fn walk_recursion(host: &mut HostWalk, image: &Image, frames: usize, cycle: usize) -> Stack {
    let pcs: Vec<_> = (0..=frames)
        .map(|number| recursion_pc(number, frames, cycle))
        .collect();
    walk_frames(host, image, &pcs)
}

/// Walks frames of two words, the return address the second.
fn walk_frames(host: &mut HostWalk, image: &Image, pcs: &[Avma]) -> Stack {
    let code = Avma::new(CODE);
    let mappings = [Mapping {
        start: code,
        end: Avma::new(CODE + 0x200),
        bias: Bias::between(code, Svma::new(0)),
        image_at: 0,
        kind: MappingKind::Table,
        identity: Identity::SETTLED,
    }];
    let tables = Tables {
        architecture: image.architecture(),
        words: image.words(),
        mappings: &mappings,
        unwind: Unwind::Dwarf,
        changing: false,
        return_probes: ReturnProbes::default(),
    };
    let (innermost, callers) = pcs.split_first().expect("a frame");
    let words: Vec<_> = callers.iter().flat_map(|caller| [0, caller.get()]).collect();
    let mut memory = Memory::default();
    memory.add_words(Avma::new(STACK), &words);
    let start = Registers::new(*innermost, Avma::new(STACK), Avma::new(0));
    check(host, tables, start, &memory)
}
