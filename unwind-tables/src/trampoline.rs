//! Signal trampolines without CFI, recognized by their code.
//!
//! A signal handler returns to code that only makes the system call that restores the interrupted registers,
//! so the location of these is known without CFI: the stack pointer is at a `struct ucontext` (Linux,
//! `arch/x86/include/asm/sigframe.h`) or, on AArch64, at the `siginfo` before it
//! (`arch/arm64/kernel/signal.c`). musl, bionic, Go and AArch64's vDSO have no CFI for their trampolines;
//! compilers' unwinders recognize them by their code, too.

use std::ops::Range;

use crate::addr::Svma;
use crate::architecture::Architecture;
use crate::cfi::{Cfi, Function};
use crate::packed::PackedRule;
use crate::program::{Op, Opcode, Programs, SP};
use crate::rule::{CfaRule, FrameRule, Reason, Register, Saved};
use crate::saves::{self, LONG_WORDS, LongSaves, SavesRule, long};
use crate::table::{Row, RowRule};

/// Code of system call 15, `rt_sigreturn`, as assemblers and compilers write it.
const X86_64: [&[u8]; 2] = [
    // mov $15, %rax; syscall
    &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05],
    // mov $15, %eax; syscall
    &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05],
];
/// Code of system call 139, `rt_sigreturn` on AArch64.
const AARCH64: [&[u8]; 2] = [
    // mov x8, #139; svc #0
    &[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4],
    // mov w8, #139; svc #0
    &[0x68, 0x11, 0x80, 0x52, 0x01, 0, 0, 0xd4],
];
/// Maximum number of trampolines of one object, which normally has one or two.
const MAX_TRAMPOLINES: usize = 1024;
/// Offset of `uc_mcontext`, a `struct sigcontext`, in `struct ucontext`.
const MCONTEXT: i32 = 40;
/// DWARF numbers of the registers at the start of `struct sigcontext`, in its order; rsp and rip follow.
const SIGCONTEXT: [u8; 15] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2];
const FP_AT: i32 = MCONTEXT + 8 * 10;
const SP_AT: i32 = MCONTEXT + 8 * 15;
const PC_AT: i32 = MCONTEXT + 8 * 16;
/// Offset, on AArch64, of `regs` in `struct sigcontext`, in `struct ucontext` after 128 bytes of `siginfo`.
/// The 31 general registers are followed by sp and pc.
const AARCH64_REGISTERS: i32 = 128 + 176 + 8;

/// Returns the trampolines in `gaps`, code without CFI. A handler returns to the first byte; the range starts
/// one byte lower, where return addresses are looked up.
pub(crate) fn find<'a>(
    architecture: Architecture,
    gaps: Vec<Range<Svma>>,
    mut bytes_of: impl FnMut(&Range<Svma>) -> Option<&'a [u8]>,
) -> Vec<Range<Svma>> {
    /// Length of the shortest trampoline: most gaps are padding between functions, and shorter.
    const SHORTEST: u64 = X86_64[1].len() as u64;
    let codes = match architecture {
        Architecture::X86_64 => X86_64,
        Architecture::Aarch64 => AARCH64,
    };
    let last = codes[0][codes[0].len() - 1];
    let mut found = Vec::new();
    for gap in gaps {
        if gap.end.offset_from(gap.start) < SHORTEST {
            continue;
        }
        let Some(bytes) = bytes_of(&gap) else { continue };
        // Searches for one byte, the last of the system call: most gaps are too short for a better search to
        // pay off.
        for end in memchr::memchr_iter(last, bytes).map(|last| last + 1) {
            let code = codes.iter().find(|code| bytes[..end].ends_with(code));
            if found.len() == MAX_TRAMPOLINES {
                return found;
            }
            if let Some(code) = code {
                let start = end.saturating_sub(code.len()).saturating_sub(1);
                found.push(gap.start.wrapping_add(start as u64)..gap.start.wrapping_add(end as u64));
            }
        }
    }
    found
}

/// Returns CFI that describes `trampolines` by `rule`.
pub(crate) fn describe<R: RowRule>(trampolines: &[Range<Svma>], rule: R) -> Cfi<R> {
    let functions = trampolines.iter().zip(0..).map(|(range, row)| Function {
        range: range.clone(),
        rows: row..row + 1,
    });
    Cfi {
        functions: functions.collect(),
        rows: trampolines
            .iter()
            .map(|range| Row {
                start: range.start,
                rule,
            })
            .collect(),
        ..Cfi::default()
    }
}

/// Returns the rule from a trampoline to the interrupted frame.
pub(crate) fn rule(programs: &mut Programs) -> PackedRule {
    let rule = match programs.architecture() {
        Architecture::X86_64 => programs.packed_rule(x86_64()),
        Architecture::Aarch64 => programs
            .intern(aarch64())
            .and_then(|program| PackedRule::wide(program.0).ok_or(Reason::CfaExpression)),
    };
    rule.unwrap_or_else(PackedRule::unsupported)
}

/// Returns the program on AArch64, which also sets the link register: the interrupted function may not have
/// saved it yet.
fn aarch64() -> Vec<Op> {
    let register = |number: i32| AARCH64_REGISTERS + 8 * number;
    let slots = [
        (register(31), Opcode::SetCfa),
        (register(32), Opcode::SetRa),
        (register(29), Opcode::SetFp),
        (register(30), Opcode::SetLr),
    ];
    let set = |(at, set)| [Op::register(SP, at), Op::deref(), Op::plain(set)];
    let ops = [Op::plain(Opcode::Signal)].into_iter();
    ops.chain(slots.into_iter().flat_map(set)).collect()
}

fn x86_64() -> FrameRule {
    let at = |offset| Saved::At {
        register: Register::Sp,
        offset,
    };
    FrameRule {
        cfa: CfaRule::Deref {
            register: Register::Sp,
            at: SP_AT,
            offset: 0,
        },
        ra: at(PC_AT),
        ra_signed: false,
        fp: at(FP_AT),
        signal_frame: true,
    }
}

/// Returns the saves of a trampoline: the locations of the interrupted frame's registers.
pub(crate) fn saves(long: &mut LongSaves) -> SavesRule {
    let mut saved = [saves::Saved::Unknown; LONG_WORDS];
    for (number, offset) in SIGCONTEXT.into_iter().zip((MCONTEXT..).step_by(8)) {
        saved[usize::from(number)] = saves::Saved::Slot(long::AT_SP, offset);
    }
    long.pack(&saved)
}
