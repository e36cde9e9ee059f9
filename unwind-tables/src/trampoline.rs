//! Signal trampolines without CFI, known by their code.
//!
//! What a signal handler returns to does nothing but ask the kernel to restore the interrupted registers, so its code
//! says where they are as well as CFI would: the stack pointer is at a `struct ucontext` (Linux,
//! `arch/x86/include/asm/sigframe.h`) or, on AArch64, at the `siginfo` before it (`arch/arm64/kernel/signal.c`). musl,
//! bionic, Go and AArch64's vDSO describe their trampolines by no CFI; the unwinders of compilers know them by their
//! code, too.

use std::ops::Range;

use crate::addr::Svma;
use crate::architecture::Architecture;
use crate::cfi::{Cfi, Function};
use crate::packed::PackedRule;
use crate::program::{Op, Opcode, Programs, SP};
use crate::rule::{CfaRule, FrameRule, Reason, Register, Saved};
use crate::saves::{self, LONG_WORDS, LongSaves, SavesRule, long};
use crate::table::{Row, RowRule};

/// `rt_sigreturn` is system call 15: as assemblers and compilers write it.
const X86_64: [&[u8]; 2] = [
    // mov $15, %rax; syscall
    &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05],
    // mov $15, %eax; syscall
    &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05],
];
/// It is system call 139 there.
const AARCH64: [&[u8]; 2] = [
    // mov x8, #139; svc #0
    &[0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4],
    // mov w8, #139; svc #0
    &[0x68, 0x11, 0x80, 0x52, 0x01, 0, 0, 0xd4],
];
/// Trampolines that are believed of one object, which has one or two.
const MAX_TRAMPOLINES: usize = 1024;
/// `uc_mcontext` in `struct ucontext`, and in it the registers in the order of `struct sigcontext`, by their DWARF
/// numbers; after them come rsp and rip.
const MCONTEXT: i32 = 40;
const SIGCONTEXT: [u8; 15] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2];
const FP_AT: i32 = MCONTEXT + 8 * 10;
const SP_AT: i32 = MCONTEXT + 8 * 15;
const PC_AT: i32 = MCONTEXT + 8 * 16;
/// On AArch64: `regs` in `struct sigcontext`, in `struct ucontext` behind 128 bytes of `siginfo`. Behind the 31 general
/// registers are sp and pc.
const AARCH64_REGISTERS: i32 = 128 + 176 + 8;

/// The trampolines in `gaps`, code that has no CFI. A handler returns to the first byte; the row starts one byte lower,
/// where return addresses are looked up.
pub(crate) fn find<'a>(
    architecture: Architecture,
    gaps: Vec<Range<Svma>>,
    mut bytes_of: impl FnMut(&Range<Svma>) -> Option<&'a [u8]>,
) -> Vec<Range<Svma>> {
    /// Most gaps are the padding between functions, and shorter.
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
        // By the last byte of the system call: most gaps are too short for more to be worth its while.
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

/// A section that describes `trampolines` by `rule`.
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

/// How to get to the interrupted frame.
pub(crate) fn rule(programs: &mut Programs) -> PackedRule {
    let rule = match programs.architecture() {
        Architecture::X86_64 => programs.packed_rule(x86_64()),
        Architecture::Aarch64 => programs
            .intern(aarch64())
            .and_then(|program| PackedRule::wide(program.0).ok_or(Reason::CfaExpression)),
    };
    rule.unwrap_or_else(PackedRule::unsupported)
}

/// The only rule that finds a link register: the interrupted function may not have saved it yet.
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

/// Where the interrupted frame's registers are.
pub(crate) fn saves(long: &mut LongSaves) -> SavesRule {
    let mut saved = [saves::Saved::Unknown; LONG_WORDS];
    for (number, offset) in SIGCONTEXT.into_iter().zip((MCONTEXT..).step_by(8)) {
        saved[usize::from(number)] = saves::Saved::Slot(long::AT_SP, offset);
    }
    long.pack(&saved)
}
