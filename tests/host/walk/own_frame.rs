//! Walks through code without CFI, over made-up stacks: when the frame pointer is the frame's own, and when
//! the frame that it leads to is marked, as callers before it may be missing. Both walks agree on each.

use unwind_tables::Architecture;
use unwind_tables::addr::{Avma, Bias, Svma};
use unwind_tables::encode::encode;
use unwind_tables::image::Image;
use unwind_tables::mapping::Identity;
use unwind_tables::program::Programs;
use unwind_tables::rule::{CfaRule, FrameRule, Register, Saved, UnwindRule};
use unwind_tables::table::{Row, UnwindTable};
use unwind_tables::walk::FoundBy::{Fp, FpUncertain, Probe};
use unwind_tables::walk::{
    End, FoundBy, MAX_FRAME_SLOTS, MAX_STACK_SWITCHES, Mapping, MappingKind, RETURN_LOOKED_FOR, Registers,
    ReturnProbes, Stack, Tables, Unwind,
};

use super::{CODE, STACK, check_both};
use memleak_test::host::Memory;

/// A function with CFI, which is the end of stacks, and an earlier function without CFI, with code with CFI
/// between it and [`PIECE`].
const WITH_CFI: u64 = CODE + 0x80;
const EARLIER: u64 = CODE + 0x220;
/// Start of the code without CFI in which walks begin, and functions in it; walks begin in the last but one.
const PIECE: u64 = CODE + 0x2c0;
const FIRST: u64 = CODE + 0x300;
const SECOND: u64 = CODE + 0x400;
const THIRD: u64 = CODE + 0x480;
const START: u64 = CODE + 0x500;
const LATER: u64 = CODE + 0x600;
const PIECE_END: u64 = CODE + 0x800;
/// Entries of a PLT, and the slots that they jump by.
const TO_SECOND: u64 = CODE + 0x900;
const TO_THIRD: u64 = CODE + 0x940;
const GOT: u64 = CODE + 0xa00;
/// Code behind a call, whose CFA is relative to the frame pointer.
const BY_FP: u64 = CODE + 0xb20;
/// Return address in the frame that the frame pointer leads to, and an address in a slot; both are behind a
/// call.
const CALLER: u64 = CODE + 0x100;
const IN_SLOT: u64 = CODE + 0x140;

const ARCHITECTURES: [Architecture; 2] = [Architecture::X86_64, Architecture::Aarch64];

/// Forms of a call.
#[derive(Clone, Copy, Debug)]
enum Called {
    Directly(u64),
    /// By a register.
    Indirectly,
}
use Called::{Directly, Indirectly};

/// Returns the call instruction before `ra`.
fn call(architecture: Architecture, ra: u64, called: Called) -> Vec<u8> {
    let offset = |from: u64, to: u64| i32::try_from(to.wrapping_sub(from).cast_signed()).expect("it is near");
    match (architecture, called) {
        (Architecture::X86_64, Directly(to)) => [&[0xe8][..], &offset(ra, to).to_le_bytes()].concat(),
        (Architecture::X86_64, Indirectly) => vec![0xff, 0xd0],
        (Architecture::Aarch64, Directly(to)) => {
            let instructions = (offset(ra - 4, to) / 4).cast_unsigned() & 0x03ff_ffff;
            (0x9400_0000 | instructions).to_le_bytes().to_vec()
        }
        (Architecture::Aarch64, Indirectly) => 0xd63f_0000_u32.to_le_bytes().to_vec(),
    }
}

/// Returns an entry of a PLT at `at` that jumps by the slot at `got`.
fn jump(architecture: Architecture, at: u64, got: u64) -> Vec<u8> {
    match architecture {
        Architecture::X86_64 => {
            let offset = u32::try_from(got - at - 11).expect("it is near");
            [
                &[0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25][..],
                &offset.to_le_bytes(),
            ]
            .concat()
        }
        Architecture::Aarch64 => {
            let slot = u32::try_from(got % 0x1000 / 8).expect("it is small");
            // bti c; adrp x16, 0; ldr x17, [x16, slot]: slots are in the same page.
            [0xd503_245f_u32, 0x9000_0010, 0xf940_0211 | slot << 10]
                .map(u32::to_le_bytes)
                .concat()
        }
    }
}

fn code(architecture: Architecture, caller: Called, in_slot: Called) -> Vec<u8> {
    let mut bytes = vec![0; 0x1000];
    let mut put = |address: u64, content: &[u8]| {
        let start = usize::try_from(address - CODE).expect("it is small");
        bytes[start..start + content.len()].copy_from_slice(content);
    };
    for (ra, called) in [(CALLER, caller), (IN_SLOT, in_slot), (BY_FP, Indirectly)] {
        let instruction = call(architecture, ra, called);
        put(ra - instruction.len() as u64, &instruction);
    }
    for (number, (entry, target)) in [(TO_SECOND, SECOND), (TO_THIRD, THIRD)].into_iter().enumerate() {
        let got = GOT + 8 * number as u64;
        put(entry, &jump(architecture, entry, got));
        put(got, &target.to_le_bytes());
    }
    bytes
}

fn image(architecture: Architecture) -> Image {
    let by_fp = FrameRule {
        cfa: CfaRule::Offset {
            register: Register::Fp,
            offset: 16,
        },
        ra: Saved::AtCfa(-8),
        ra_signed: false,
        fp: Saved::AtCfa(-16),
        signal_frame: false,
    };
    let rows = [
        (0, UnwindRule::EndOfStack),
        (EARLIER - CODE, UnwindRule::Gap),
        (EARLIER - CODE + 0x40, UnwindRule::EndOfStack),
        (PIECE - CODE, UnwindRule::Gap),
        (PIECE_END - CODE, UnwindRule::EndOfStack),
        (BY_FP - CODE - 0x20, UnwindRule::Frame(by_fp)),
        (BY_FP - CODE + 0x60, UnwindRule::Gap),
    ];
    let rows = rows.map(|(start, rule)| Row {
        start: Svma::new(start),
        rule,
    });
    let table = UnwindTable::with_programs(rows.to_vec(), Programs::new(architecture));
    encode(&table.expect("rows ascend")).expect("the table fits")
}

/// Returns mappings of the code: one file whose table has gaps, or several, if the piece is of another kind.
fn mappings(piece: MappingKind) -> Vec<Mapping> {
    let mapping = |start: u64, end: u64, kind| Mapping {
        start: Avma::new(start),
        end: Avma::new(end),
        bias: Bias::between(Avma::new(CODE), Svma::new(0)),
        image_at: 0,
        kind,
        identity: Identity::SETTLED,
    };
    match piece == MappingKind::Table {
        true => vec![mapping(CODE, CODE + 0x1000, piece)],
        false => vec![
            mapping(CODE, PIECE, MappingKind::Table),
            mapping(PIECE, PIECE_END, piece),
            mapping(PIECE_END, CODE + 0x1000, MappingKind::Table),
        ],
    }
}

/// Makes a stack of `slots` and the frame that the frame pointer leads to.
fn stack_of(slots: &[u64]) -> Vec<u64> {
    [slots, &[0, CALLER]].concat()
}

fn walk_in(
    architecture: Architecture,
    piece: MappingKind,
    code: Vec<u8>,
    words: &[u64],
    changing: bool,
) -> Stack {
    let image = image(architecture);
    let mappings = mappings(piece);
    let tables = Tables {
        architecture,
        words: image.words(),
        mappings: &mappings,
        unwind: Unwind::Dwarf,
        changing,
        return_probes: ReturnProbes {
            trampoline: Avma::new(CODE + 0x7000),
            replaced: &[],
        },
    };
    let mut memory = Memory::default();
    memory.add(Avma::new(CODE), code);
    memory.add_words(Avma::new(STACK), words);
    let fp = STACK + 8 * (words.len() as u64 - 2);
    let start = Registers::new(Avma::new(START), Avma::new(STACK), Avma::new(fp));
    check_both(architecture, tables, start, &memory)
}

#[track_caller]
fn check_ways(stack: &Stack, is_certain: bool, about: &str) {
    let ways: Vec<FoundBy> = stack.frames.iter().map(|frame| frame.found_by).collect();
    let expected = match is_certain {
        true => (vec![Probe, Fp], End::Complete),
        false => (vec![Probe, FpUncertain], End::CallersUncertain),
    };
    assert_eq!((ways, stack.end), expected, "{about}: {stack:x?}");
}

/// Checks if the frame pointer counts as the frame's own, by the function that `caller` calls, and the call
/// before the address in a slot.
#[track_caller]
fn check_calls(caller: Called, in_slot: Called, is_certain: bool) {
    for architecture in ARCHITECTURES {
        for piece in [MappingKind::Table, MappingKind::NoCfi, MappingKind::Anonymous] {
            let about = format!("{caller:x?}, {in_slot:x?}, {architecture:?}, {piece:?}");
            let walk = |slots: &[u64]| {
                let code = code(architecture, caller, in_slot);
                walk_in(architecture, piece, code, &stack_of(slots), false)
            };
            check_ways(&walk(&[1, IN_SLOT, START - 8]), is_certain, &about);
            // Without that address no frame was skipped, whatever the caller calls.
            check_ways(&walk(&[1, IN_SLOT + 1, CODE + 0x3000]), true, &about);
        }
    }
}

/// If the caller calls, or may call, a function that does not contain the frame's code, every address in a
/// slot that is behind a call, possibly by the frame's function, counts as one of a skipped frame.
#[test]
fn callers_that_call_something_else() {
    for caller in [Directly(WITH_CFI), Directly(EARLIER), Directly(LATER), Indirectly] {
        // The last one cannot be read: it may continue in the frame's code.
        for called in [FIRST, SECOND, THIRD, TO_THIRD, CODE + 0x4000] {
            check_calls(caller, Directly(called), false);
        }
        check_calls(caller, Indirectly, false);
        // Functions that do not contain the frame's code, and do not continue there.
        for called in [LATER, WITH_CFI, EARLIER] {
            check_calls(caller, Directly(called), true);
        }
    }
}

/// Evidence in the code behind a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// Nothing about the frame pointer.
    Nothing,
    /// The frame's function has pushed it first.
    Pushed,
    /// It is the base of the function's frame.
    Base,
}

/// A function that restores the frame pointer last has pushed it next to its return address. If no slot has
/// that pair, the frame pointer is the frame's own, and what looks like the address of a skipped frame is
/// left over. If it is restored by the frame pointer itself, a pair is left over, too.
#[test]
fn functions_that_restore_the_frame_pointer() {
    use Proof::{Base, Nothing, Pushed};

    const X86_64: Architecture = Architecture::X86_64;
    const AARCH64: Architecture = Architecture::Aarch64;
    let pop = [0x5d, 0xc3];
    let leave = [0xc9, 0xc3];
    let load_fp = |offset| [0x48, 0x8b, 0x6d, offset, 0x48];
    let moves = [0x48, 0x89, 0xc3, 0x48, 0x33, 0xc3];
    let add = [0x48, 0x83, 0xc4, 24];
    let jump = [0xff, 0xe1, 0xcc, 0xcc];
    let load = [0xfd, 0x7b, 0xc2, 0xa8];
    let load_in_place = [0xfd, 0x7b, 0x42, 0xa9];
    let returns = [0xc0, 0x03, 0x5f, 0xd6];
    let last = usize::try_from(RETURN_LOOKED_FOR).expect("it is small");
    let behind = |bytes: &[&[u8]]| bytes.concat();
    for (architecture, at, goes_on, proof) in [
        (X86_64, 0x10, behind(&[&pop]), Pushed),
        (X86_64, 0x31, behind(&[&leave]), Base),
        // At the end of the first part that is read, and at the start of the second.
        (X86_64, 0x77, behind(&[&pop]), Pushed),
        (X86_64, 0x7e, behind(&[&pop]), Pushed),
        (X86_64, 0x7f, behind(&[&pop]), Pushed),
        (X86_64, last + 6, behind(&[&pop]), Pushed),
        (X86_64, last + 7, behind(&[&pop]), Nothing),
        // ret $8
        (X86_64, 0x10, behind(&[&[0x5d, 0xc2, 8, 0]]), Pushed),
        (X86_64, 0x10, behind(&[&[0x41, 0x5d, 0xc2, 8, 0]]), Nothing),
        // mov %rbp, %rsp; pop %rbp, of both encodings; pop %rcx
        (X86_64, 0x10, behind(&[&[0x48, 0x8b, 0xe5, 0x5d, 0x59]]), Base),
        (X86_64, 0x10, behind(&[&[0x48, 0x89, 0xec, 0x5d, 0x59]]), Base),
        // mov (%rbp), %rbp; add $80, %rsp; jmp *%rcx, with 256 instead of 80, and with 8(%rbp)
        (
            X86_64,
            0x10,
            behind(&[&load_fp(0), &[0x83, 0xc4, 80], &jump]),
            Base,
        ),
        (
            X86_64,
            0x10,
            behind(&[&load_fp(0), &[0x81, 0xc4, 0, 1, 0, 0], &jump]),
            Base,
        ),
        (
            X86_64,
            0x10,
            behind(&[&load_fp(8), &[0x83, 0xc4, 80], &jump]),
            Nothing,
        ),
        // xor %ecx, %ecx; mov %ecx, %ecx
        (X86_64, 0x10, behind(&[&[0x31, 0xc9, 0xc3], &leave]), Nothing),
        (X86_64, 0x10, behind(&[&[0x89, 0xc9, 0xc3], &leave]), Nothing),
        // add $24, %rsp; ret
        (X86_64, 0x10, behind(&[&add, &[0xc3], &pop]), Nothing),
        // pop %r13; ret
        (X86_64, 0x10, behind(&[&[0x41, 0x5d, 0xc3], &pop]), Nothing),
        // pop %rbx; ret
        (X86_64, 0x10, behind(&[&[0x5b, 0xc3], &pop]), Nothing),
        // mov %rax, %rbx; xor %rax, %rbx; movzx %bl, %eax; mov %ebx, %eax
        (X86_64, 0, behind(&[&moves, &pop]), Pushed),
        (
            X86_64,
            0,
            behind(&[&[0x0f, 0xb6, 0xc3, 0x89, 0xc3], &leave]),
            Base,
        ),
        // Between functions.
        (X86_64, 0x10, behind(&[&[0xff, 0xe0, 0xcc, 0xcc], &pop]), Nothing),
        (AARCH64, 0, behind(&[&[1; 8], &load, &returns]), Pushed),
        (AARCH64, 0, behind(&[&[1; 8], &load_in_place, &returns]), Pushed),
        (AARCH64, 0, behind(&[&[1; 8], &returns, &load]), Nothing),
        (AARCH64, 0, behind(&[&[1; 2], &load, &returns]), Nothing),
    ] {
        check_proof(architecture, at, &goes_on, proof);
    }
}

/// Code that uses the frame pointer as the base of its own frame directly behind a call has set it, whatever
/// is in the slots.
#[test]
fn functions_that_use_their_frame() {
    // mov -32(%rbp), %r8, and with 32; cmp 0x300(%r13), %rax; je; leave, and nop
    let compare = [0x49, 0x3b, 0x85, 0, 3, 0, 0, 0x0f, 0x84, 9, 0, 0, 0];
    for (at, goes_on, proof) in [
        (0, &[0x4c, 0x8b, 0x45, 0xe0][..], Proof::Base),
        (1, &[0x4c, 0x8b, 0x45, 0xe0], Proof::Nothing),
        (0, &[0x4c, 0x8b, 0x45, 32], Proof::Nothing),
        (0, &[&compare[..], &[0xc9]].concat(), Proof::Base),
        (0, &[&compare[..], &[0x90]].concat(), Proof::Nothing),
    ] {
        let goes_on = [goes_on, &[1; 16], &[0xcc; 2]].concat();
        check_proof(Architecture::X86_64, at, &goes_on, proof);
    }
}

/// Checks what is proved by code that goes on like this, `at` bytes behind the call, with an address of a
/// seemingly skipped frame in a slot, without and with a frame pointer before it.
#[track_caller]
fn check_proof(architecture: Architecture, at: usize, goes_on: &[u8], proof: Proof) {
    for piece in [MappingKind::Table, MappingKind::NoCfi, MappingKind::Anonymous] {
        let about = format!("{architecture:?}, {at:x}, {goes_on:x?}, {piece:?}");
        let walk = |slots: &[u64]| {
            let mut bytes = code(architecture, Indirectly, Indirectly);
            let start = usize::try_from(START - CODE).expect("it is small");
            bytes[start..start + at].fill(1);
            let at = start + at;
            bytes[at..at + goes_on.len()].copy_from_slice(goes_on);
            walk_in(architecture, piece, bytes, &stack_of(slots), false)
        };
        check_ways(&walk(&[1, IN_SLOT, 2]), proof != Proof::Nothing, &about);
        // With the pair that a function that only pushes it has pushed, the frame ends there.
        let pair = walk(&[STACK + 0x18, IN_SLOT, 2]);
        match piece == MappingKind::Anonymous {
            true => assert_eq!(pair.end, End::AnonymousCode, "{about}: {pair:x?}"),
            false => check_ways(&pair, proof == Proof::Base, &about),
        }
    }
}

/// Functions of a JVM push the frame pointer: without that pair, no address in a slot belongs to a skipped
/// frame.
#[test]
fn code_that_pushes_the_frame_pointer() {
    for architecture in ARCHITECTURES {
        let walk = |slots: &[u64]| {
            let code = code(architecture, Indirectly, Indirectly);
            walk_in(
                architecture,
                MappingKind::AnonymousPushed,
                code,
                &stack_of(slots),
                false,
            )
        };
        check_ways(&walk(&[1, IN_SLOT, 2]), true, &format!("{architecture:?}"));
        let pair = walk(&[STACK + 0x18, IN_SLOT, 2]);
        assert_eq!(pair.end, End::AnonymousCode, "{architecture:?}: {pair:x?}");
    }
}

/// If the caller calls code from which no gap separates the frame, that is the frame's function, unless an
/// address in a slot is behind a call of a function in between, or of an unknown one.
#[test]
fn callers_that_call_the_function() {
    for caller in [SECOND, TO_SECOND] {
        for (called, is_certain) in [
            (FIRST, true),
            (SECOND, true),
            (TO_SECOND, true),
            (WITH_CFI, true),
            (LATER, true),
            (THIRD, false),
            (TO_THIRD, false),
        ] {
            check_calls(Directly(caller), Directly(called), is_certain);
        }
        check_calls(Directly(caller), Indirectly, false);
    }
}

/// A function behind the frame's code may continue there by a short jump, or by a conditional one, as a tail
/// call.
#[test]
fn functions_that_jump_back() {
    let near = START + 0x40;
    // jmp to START - 0x10; nop, je to START - 0x10; nop, je to START - 0x10 by 32 bits
    let jump = [0xeb, 0xae];
    let short = [0x90, 0x74, 0xad];
    let long = [0x90, 0x0f, 0x84, 0xa9, 0xff, 0xff, 0xff];
    // Jumps that stay behind the frame's code.
    let forward = [0xeb, 0x10];
    let inside = [0x90, 0x90, 0x74, 0xfd];
    for (code_there, is_certain) in [
        (&jump[..], false),
        (&short, false),
        (&long, false),
        (&forward, true),
        (&inside, true),
        (&[0x90], true),
    ] {
        for piece in [MappingKind::Table, MappingKind::NoCfi, MappingKind::Anonymous] {
            let mut bytes = code(Architecture::X86_64, Directly(WITH_CFI), Directly(near));
            let at = usize::try_from(near - CODE).expect("it is small");
            bytes[at..at + code_there.len()].copy_from_slice(code_there);
            let stack = walk_in(
                Architecture::X86_64,
                piece,
                bytes,
                &stack_of(&[1, IN_SLOT, 2]),
                false,
            );
            check_ways(&stack, is_certain, &format!("{code_there:x?}, {piece:?}"));
        }
    }
}

/// A return address that a return probe has replaced may belong to a skipped frame; so may one in memory that
/// is newer than the mappings.
#[test]
fn addresses_that_are_not_known() {
    for architecture in ARCHITECTURES {
        for (slot, changing, is_certain) in [
            (CODE + 0x7000, false, false),
            (CODE + 0x3100, false, true),
            (CODE + 0x3100, true, false),
        ] {
            let mut bytes = code(architecture, Directly(WITH_CFI), Indirectly);
            bytes.resize(0x4000, 0);
            let instruction = call(architecture, CODE + 0x3100, Indirectly);
            let end = 0x3100;
            bytes[end - instruction.len()..end].copy_from_slice(&instruction);
            let stack = walk_in(
                architecture,
                MappingKind::NoCfi,
                bytes,
                &stack_of(&[slot]),
                changing,
            );
            check_ways(
                &stack,
                is_certain,
                &format!("{slot:x}, {changing}, {architecture:?}"),
            );
        }
    }
}

/// A frame is searched up to a limit; a larger one of native code is uncertain.
#[test]
fn large_frames_are_doubtful() {
    for architecture in ARCHITECTURES {
        for (more, is_certain) in [(0, true), (1, false)] {
            let slots = vec![0; usize::try_from(MAX_FRAME_SLOTS + more).expect("it is small")];
            let code = code(architecture, Indirectly, Indirectly);
            let stack = walk_in(architecture, MappingKind::Table, code, &stack_of(&slots), false);
            check_ways(&stack, is_certain, &format!("{more}, {architecture:?}"));
        }
    }
}

/// CFI relative to the frame pointer may lead to a stack that lies lower, a few times, but not after a frame
/// pointer was followed for lack of CFI.
#[test]
fn stacks_that_lie_lower() {
    for architecture in ARCHITECTURES {
        for (switches, end) in [
            (1, End::Complete),
            (MAX_STACK_SWITCHES, End::Complete),
            (MAX_STACK_SWITCHES + 1, End::NoProgress),
        ] {
            let stack = walk_down(architecture, BY_FP, 0x800, switches);
            let frames = switches.min(MAX_STACK_SWITCHES) as usize + 1;
            assert_eq!(
                (stack.end, stack.frames.len()),
                (end, frames),
                "{architecture:?}, {switches}: {stack:x?}"
            );
        }
        let stack = walk_down(architecture, EARLIER + 8, FRAMES, 2);
        assert_eq!(
            (stack.end, stack.frames.len()),
            (End::NoProgress, 2),
            "{architecture:?}: {stack:x?}"
        );
    }
}

/// Place of the first frame of [`walk_down`], in bytes from the start of the stack; the others follow below.
const FRAMES: u64 = 0x700;

/// Walks from `start`, with the stack pointer `sp` bytes from the start of the stack, through `count` frames,
/// each below the one before.
fn walk_down(architecture: Architecture, start: u64, sp: u64, count: u32) -> Stack {
    let image = image(architecture);
    let mappings = mappings(MappingKind::Table);
    let tables = Tables {
        architecture,
        words: image.words(),
        mappings: &mappings,
        unwind: Unwind::Dwarf,
        changing: false,
        return_probes: ReturnProbes::default(),
    };
    let mut memory = Memory::default();
    memory.add(Avma::new(CODE), code(architecture, Indirectly, Indirectly));
    let at = |number: u32| FRAMES - 32 * u64::from(number);
    for number in 0..count {
        let (next, ra) = match number + 1 == count {
            true => (0, CALLER),
            false => (STACK + at(number + 1), BY_FP),
        };
        memory.add_words(Avma::new(STACK + at(number)), &[next, ra]);
    }
    let start = Registers::new(Avma::new(start), Avma::new(STACK + sp), Avma::new(STACK + at(0)));
    check_both(architecture, tables, start, &memory)
}
