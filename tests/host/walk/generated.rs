//! Walks through generated code, over made-up stacks: which return addresses are believed, and where the walk
//! ends. Both walks agree on each.

use unwind_tables::Architecture;
use unwind_tables::addr::{Avma, Bias, Svma};
use unwind_tables::encode::encode;
use unwind_tables::image::Image;
use unwind_tables::mapping::Identity;
use unwind_tables::program::Programs;
use unwind_tables::rule::UnwindRule;
use unwind_tables::table::{Row, UnwindTable};
use unwind_tables::walk::FoundBy::{Cfi, Fp, FpGenerated, Probe};
use unwind_tables::walk::{
    End, FoundBy, MAX_FRAME_SLOTS, Mapping, MappingKind, Registers, ReturnProbes, Stack, Tables, Unwind,
};

use super::{CODE, STACK, check_both};
use memleak_test::host::Memory;

/// Native code with CFI, in which stacks have their end.
const NATIVE: u64 = CODE + 0x180;
/// Native code with CFI that is not behind a call.
const NOT_CALLED: u64 = CODE + 0x1c0;
/// Native code without CFI.
const WITHOUT_CFI: u64 = CODE + 0x280;
/// Native code whose table is not loaded.
const PENDING: u64 = CODE + 0x2080;
/// Code that was generated, where walks begin.
const GENERATED: u64 = CODE + 0x1_0000;
/// Generated code behind no call, behind one, and behind one within a frame (x86-64).
const JUMPED: u64 = GENERATED + 0x40;
const CALLED: u64 = GENERATED + 0x80;
const CALLED_LOCALLY: u64 = GENERATED + 0xc0;
/// Code in no mapping, behind a call.
const UNMAPPED: u64 = CODE + 0x5000;
const BEHIND_CALLS: [u64; 5] = [NATIVE, WITHOUT_CFI, PENDING, CALLED, UNMAPPED];

const ARCHITECTURES: [Architecture; 2] = [Architecture::X86_64, Architecture::Aarch64];
const KINDS: [MappingKind; 3] = [
    MappingKind::Anonymous,
    MappingKind::AnonymousLinked,
    MappingKind::AnonymousMethods,
];

/// Where walks begin, in generated code.
const START: u64 = GENERATED + 0x20;

/// Makes code in which [`BEHIND_CALLS`] are behind calls, and which continues with `goes_on` where walks
/// begin.
fn code(architecture: Architecture, goes_on: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 0x1_1000];
    let mut put = |address: u64, instruction: &[u8]| {
        let end = usize::try_from(address - CODE).expect("it is small");
        bytes[end - instruction.len()..end].copy_from_slice(instruction);
    };
    for address in BEHIND_CALLS {
        match architecture {
            Architecture::X86_64 => put(address, &[0xe8, 0, 0, 1, 0]),
            Architecture::Aarch64 => put(address, &[0, 0, 1, 0x94]),
        }
    }
    put(CALLED_LOCALLY, &[0xe8, 5, 0, 0, 0]);
    put(START + goes_on.len() as u64, goes_on);
    bytes
}

fn image(architecture: Architecture) -> Image {
    let rows = [(0, UnwindRule::EndOfStack), (0x200, UnwindRule::Gap)];
    let rows = rows.map(|(start, rule)| Row {
        start: Svma::new(start),
        rule,
    });
    let table = UnwindTable::with_programs(rows.to_vec(), Programs::new(architecture));
    encode(&table.expect("rows ascend")).expect("the table fits")
}

fn mappings(kind: MappingKind) -> [Mapping; 3] {
    let mapping = |start: u64, end: u64, kind| Mapping {
        start: Avma::new(start),
        end: Avma::new(end),
        bias: Bias::between(Avma::new(CODE), Svma::new(0)),
        image_at: 0,
        kind,
        identity: Identity::SETTLED,
    };
    [
        mapping(CODE, CODE + 0x1000, MappingKind::Table),
        mapping(CODE + 0x2000, CODE + 0x3000, MappingKind::Pending),
        mapping(GENERATED, GENERATED + 0x1000, kind),
    ]
}

/// A word of a stack.
#[derive(Clone, Copy)]
enum Word {
    /// Any value.
    Is(u64),
    /// The address of a word, by its number.
    At(u64),
}
use Word::{At, Is};

fn stack_words(words: &[Word]) -> Vec<u64> {
    let value = |word: &Word| match *word {
        Is(value) => value,
        At(number) => STACK + 8 * number,
    };
    words.iter().map(value).collect()
}

/// Walks a stack of `words` from generated code: the stack pointer leads to the first word, the frame pointer
/// to number `fp`.
fn walk_from(architecture: Architecture, kind: MappingKind, fp: u64, words: &[Word]) -> Stack {
    walk_from_code(architecture, kind, fp, words, &[])
}

/// Walks like [`walk_from`], in code that continues with `goes_on`.
fn walk_from_code(
    architecture: Architecture,
    kind: MappingKind,
    fp: u64,
    words: &[Word],
    goes_on: &[u8],
) -> Stack {
    let image = image(architecture);
    let mappings = mappings(kind);
    let tables = Tables {
        architecture,
        words: image.words(),
        mappings: &mappings,
        unwind: Unwind::Dwarf,
        changing: false,
        return_probes: ReturnProbes::default(),
    };
    let mut memory = Memory::default();
    memory.add(Avma::new(CODE), code(architecture, goes_on));
    memory.add_words(Avma::new(STACK), &stack_words(words));
    let start = Registers::new(Avma::new(START), Avma::new(STACK), Avma::new(STACK + 8 * fp));
    check_both(architecture, tables, start, &memory)
}

/// Checks how the frames of such a stack are found, for each of `kinds` of generated code, and why the walk
/// ends.
#[track_caller]
fn check_in(kinds: &[MappingKind], fp: u64, words: &[Word], found: &[FoundBy], end: End) {
    for architecture in ARCHITECTURES {
        for &kind in kinds {
            let stack = walk_from(architecture, kind, fp, words);
            let ways: Vec<FoundBy> = stack.frames.iter().map(|frame| frame.found_by).collect();
            assert_eq!(
                (&ways[..], stack.end),
                (found, end),
                "{architecture:?}, {kind:?}: {stack:x?}"
            );
            if end == End::AnonymousCode {
                let last = stack.frames.last().expect("there is one");
                assert_eq!(stack.end_pc, last.pc, "it ended there: {stack:x?}");
            }
        }
    }
}

/// Return addresses that are behind no call are believed if the chain leads to native code.
#[test]
fn chains_to_native_code_are_followed() {
    let words = [
        Is(0),
        At(3),
        Is(JUMPED),
        At(6),
        Is(JUMPED),
        Is(7),
        Is(0),
        Is(NATIVE),
    ];
    let found = [Probe, FpGenerated, FpGenerated, FpGenerated];
    check_in(&KINDS, 1, &words, &found, End::Complete);
    // Native code without CFI on the way does not end the trial.
    let words = [
        Is(0),
        At(3),
        Is(JUMPED),
        At(5),
        Is(WITHOUT_CFI),
        Is(0),
        Is(NATIVE),
    ];
    check_in(&KINDS, 1, &words, &found, End::Complete);
}

/// Chains that lead nowhere are not followed at all, however far they go: the walk ends where it would have
/// ended without them.
#[test]
fn chains_to_nowhere_are_dropped() {
    let [first, second] = [[Is(0), At(3), Is(JUMPED)], [At(5), Is(JUMPED), Is(0x1234)]];
    let frames = |last: &[Word]| [&first[..], &second[..2], last].concat();
    for last in [
        // Frame pointers to no address of the stack, to the frame of a call that has returned, to the frame
        // itself, out of the stack.
        [Is(0x1234), Is(JUMPED)],
        [At(1), Is(JUMPED)],
        [At(5), Is(JUMPED)],
        [At(1 << 20), Is(JUMPED)],
        // Return addresses in no code, in the middle of native code, at the start of code that was not
        // called.
        [At(7), Is(0x1234)],
        [At(7), Is(NOT_CALLED)],
        [At(7), Is(GENERATED - 0x1000)],
    ] {
        check_in(&KINDS, 1, &frames(&last), &[Probe], End::AnonymousCode);
    }
}

/// A return address behind a call is believed, whatever follows.
#[test]
fn frames_behind_calls_stay() {
    let words = [Is(0), At(3), Is(CALLED), At(5), Is(JUMPED), Is(0), Is(0)];
    check_in(&KINDS, 1, &words, &[Probe, Fp], End::AnonymousCode);
    let words = [Is(0), At(3), Is(CALLED), Is(0), Is(NATIVE)];
    check_in(&KINDS, 1, &words, &[Probe, Fp, Fp], End::Complete);
    // A frame behind a call is dropped as well if the trial began in an earlier frame.
    let words = [Is(0), At(3), Is(JUMPED), At(5), Is(CALLED), Is(0), Is(0)];
    check_in(&KINDS, 1, &words, &[Probe], End::AnonymousCode);
}

/// A frame whose function has pushed the frame pointer, and not set it, is noticed: its caller is not
/// skipped.
#[test]
fn skipped_frames_are_noticed() {
    let [either, keeps, methods] = [&KINDS[..2], &KINDS[1..], &KINDS[2..]];
    let skipped = |caller| [Is(0), At(3), Is(caller), Is(0), Is(NATIVE)];
    for caller in [JUMPED, CALLED, NATIVE] {
        check_in(&KINDS[..1], 3, &skipped(caller), &[Probe], End::AnonymousCode);
        // In code that is known to keep frame pointers, another call has left this.
        check_in(keeps, 3, &skipped(caller), &[Probe, Fp], End::Complete);
        // A stub that calls native code may still have pushed it.
        let stub = [At(2), Is(caller), Is(0), Is(NATIVE)];
        check_in(either, 2, &stub, &[Probe], End::AnonymousCode);
        // Methods are no stubs.
        check_in(methods, 2, &stub, &[Probe, Fp], End::Complete);
    }
    // The same in a frame further out.
    let words = [
        At(2),
        Is(JUMPED),
        At(6),
        Is(JUMPED),
        At(6),
        Is(JUMPED),
        Is(0),
        Is(NATIVE),
    ];
    check_in(&KINDS[..1], 2, &words, &[Probe], End::AnonymousCode);
    // The frame pointer's value without an address of code above it is something else.
    check_in(either, 3, &skipped(0x1234), &[Probe, Fp], End::Complete);
}

/// A known stub that calls native code has its caller's frame pointer where the stack pointer is, whether it
/// has set its own or not. One that calls other generated code has set its own.
#[test]
fn stubs_are_passed() {
    let stub = [MappingKind::AnonymousStub];
    for (caller, way) in [(CALLED, Fp), (JUMPED, FpGenerated)] {
        let words = [At(2), Is(caller), At(4), Is(caller), Is(0), Is(NATIVE)];
        let found = [Probe, way, way, way];
        for fp in [0, 2] {
            check_in(&stub, fp, &words, &found, End::Complete);
        }
    }
    let words = [At(2), Is(CALLED), Is(0), Is(NATIVE)];
    check_in(&stub, 2, &words, &[Probe, Fp, Fp], End::Complete);
    for words in [
        [At(2), Is(0x1234), Is(0), Is(NATIVE)],
        [At(2), Is(NOT_CALLED), Is(0), Is(NATIVE)],
    ] {
        check_in(&stub, 2, &words, &[Probe], End::AnonymousCode);
    }
}

/// A call within a frame, by which code gets an address onto the stack, is not taken for the call of another
/// frame.
#[test]
fn calls_within_a_frame_are_known() {
    let words = [At(2), Is(CALLED_LOCALLY), Is(0), Is(NATIVE)];
    for kind in KINDS {
        let stack = walk_from(Architecture::X86_64, kind, 2, &words);
        assert_eq!((stack.frames.len(), stack.end), (2, End::Complete), "{stack:x?}");
    }
}

/// If the chain leads to code whose table is not loaded, the walk ends with that cause, at that address: user
/// space can finish it.
#[test]
fn missing_tables_are_told() {
    let words = [Is(0), At(3), Is(JUMPED), Is(0), Is(PENDING)];
    for architecture in ARCHITECTURES {
        let stack = walk_from(architecture, MappingKind::Anonymous, 1, &words);
        let found = (stack.frames.len(), stack.end, stack.end_pc.get());
        assert_eq!(found, (1, End::TableNotLoaded, PENDING));
    }
}

/// If the chain leads to a call in memory that is newer than the mappings, the walk ends with that cause;
/// where there is no call, it is no code.
#[test]
fn new_memory_is_told() {
    for (address, end, end_pc) in [
        (UNMAPPED, End::NoMapping, UNMAPPED),
        (UNMAPPED + 8, End::AnonymousCode, START),
    ] {
        let direct = [Is(0), At(3), Is(address)];
        let on_trial = [Is(0), At(3), Is(JUMPED), At(5), Is(address)];
        for architecture in ARCHITECTURES {
            for words in [&direct[..], &on_trial] {
                let stack = walk_from(architecture, MappingKind::Anonymous, 1, words);
                let found = (stack.frames.len(), stack.end, stack.end_pc.get());
                assert_eq!(found, (1, end, end_pc), "{architecture:?}: {stack:x?}");
            }
        }
    }
}

/// A frame is searched up to a limit; if it is larger, the walk ends, unless there is nothing to search for.
#[test]
fn large_frames_end_walks() {
    let slots = MAX_FRAME_SLOTS;
    for (more, end, found) in [
        (0, End::Complete, &[Probe, Fp][..]),
        (1, End::AnonymousCode, &[Probe]),
    ] {
        let mut words = vec![Is(0); usize::try_from(slots + more).expect("it is small")];
        words.extend([Is(0), Is(NATIVE)]);
        check_in(&KINDS[..1], slots + more, &words, found, end);
        check_in(&KINDS[1..], slots + more, &words, &[Probe, Fp], End::Complete);
    }
}

/// Code that returns as soon as its callee has shows by its instructions where its caller is: the frame
/// pointer, which leads nowhere here, is not needed. Code that does anything else does not show it.
#[test]
fn code_that_returns_at_once() {
    let nowhere = 1 << 20;
    let caller = [Is(1), Is(2), Is(NATIVE)];
    let popped = [Is(1), At(0), Is(NATIVE)];
    for (goes_on, words, is_known) in [
        (&[0x48, 0x83, 0xc4, 16, 0xc3][..], caller, true),
        (&[0x48, 0x83, 0xc4, 8, 0x5d, 0xc3], popped, true),
        (&[0x5d, 0xc3], [At(0), Is(NATIVE), Is(0)], true),
        (&[0xc3], [Is(NATIVE), Is(0), Is(0)], true),
        // Other instructions are between, the return address is not behind a call, the stack grows, or words
        // would be split.
        (&[0x48, 0x83, 0xc4, 16, 0x90, 0xc3], caller, false),
        (&[0x48, 0x83, 0xc4, 16], caller, false),
        (
            &[0x48, 0x83, 0xc4, 16, 0xc3],
            [Is(1), Is(2), Is(NOT_CALLED)],
            false,
        ),
        (&[0x48, 0x83, 0xc4, 16, 0xc3], [Is(1), Is(2), Is(JUMPED)], false),
        (&[0x48, 0x83, 0xc4, 0xf0, 0xc3], caller, false),
        (&[0x48, 0x83, 0xc4, 12, 0xc3], caller, false),
        (&[0x48, 0x83, 0xc4, 0x78, 0xc3], caller, false),
    ] {
        for kind in KINDS {
            let stack = walk_from_code(Architecture::X86_64, kind, nowhere, &words, goes_on);
            let ways: Vec<FoundBy> = stack.frames.iter().map(|frame| frame.found_by).collect();
            let expected = match is_known {
                true => (vec![Probe, Cfi], End::Complete),
                false => (vec![Probe], End::AnonymousCode),
            };
            assert_eq!((ways, stack.end), expected, "{goes_on:x?}, {kind:?}: {stack:x?}");
        }
    }
    let stack = walk_from_code(Architecture::Aarch64, KINDS[0], nowhere, &caller, &[0xc3]);
    assert_eq!(stack.end, End::AnonymousCode);
}

/// Frames on trial of a deep stack can take the places of earlier frames: if they are dropped, so are these.
#[test]
fn deep_trials() {
    for (certain, on_trial, kept, end) in [
        (100, 300, 101, End::AnonymousCode),
        (100, 1000, 101, End::AnonymousCode),
        (255, 1000, 256, End::AnonymousCode),
        (256, 1000, 256, End::DepthLimit),
        (300, 211, 301, End::AnonymousCode),
        (300, 212, 256, End::DepthLimit),
        (600, 1, 256, End::DepthLimit),
    ] {
        let chain = |address, count| std::iter::repeat_n(address, count);
        let returns = chain(CALLED, certain).chain(chain(JUMPED, on_trial)).chain([0]);
        let frames = returns.enumerate().flat_map(|(number, address)| {
            let next = 2 * (number as u64 + 1) + 1;
            [At(next), Is(address)]
        });
        let words: Vec<Word> = [Is(0)].into_iter().chain(frames).collect();
        for architecture in ARCHITECTURES {
            let stack = walk_from(architecture, MappingKind::Anonymous, 1, &words);
            assert_eq!(
                (stack.frames.len(), stack.end, stack.left_out),
                (kept, end, None),
                "{architecture:?}: {certain} and {on_trial}"
            );
        }
    }
}
