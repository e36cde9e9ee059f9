//! Ways in which the kernel executes an instruction under a uprobe: by emulation, by single-stepping, not at
//! all, or wrongly. AArch64 is in `aarch64`.
//!
//! From `arch/x86/kernel/uprobes.c` (`uprobe_init_insn`, `branch_setup_xol_ops`, `push_setup_xol_ops`) as of
//! Linux 6.1, the oldest supported kernel; newer ones emulate more, so that a site may turn out cheaper than
//! predicted here, never more expensive. Measured on 6.18 by a probe on each kind of instruction: emulated
//! ones cost 0.5–0.7 µs, the others 10–14 µs.

pub(super) mod aarch64;

use iced_x86::{Code, EncodingKind, FlowControl, Instruction, Mnemonic};
use thiserror::Error;

/// Cost of a hit of the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SiteCost {
    /// One trap: the kernel emulates the instruction.
    Emulated,
    /// Two traps and a copy of the instruction executed out of line: on x86-64, twenty times as expensive.
    SingleStepped,
}

/// The `nop` that every kernel can probe.
pub(super) const NOP: u8 = 0x90;

/// The `nop` of five bytes that the kernel recognizes (`arch_uprobe_analyze_insn` of Linux 6.18):
/// `nopl 0(%rax,%rax,1)`.
pub const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// The `nop` of ten bytes that the kernel recognizes instead since 7.2: `cs nopw 0(%rax,%rax,1)`.
pub const NOP10: [u8; 10] = [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00];

/// Reason why an instruction must not or cannot be probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum Unprobeable {
    /// The bytes are no instruction.
    #[error("not a valid instruction")]
    Invalid,
    /// The kernel rejects these prefixes (`is_prefix_bad`, and 0x66 on branches).
    #[error("the kernel rejects its prefix byte {0:#04x}")]
    Prefix(u8),
    /// The kernel rejects these instructions (x86-64: absent from `good_insns_64` and `good_2byte_insns`).
    #[error("the kernel rejects this kind of instruction")]
    Kind,
    /// The kernel would attach the probe and then execute something else.
    ///
    /// It mistakes a VEX opcode for a one-byte opcode: `vpshufd $0x10,%xmm0,%xmm0` (c5 f9 70 c0 10) under a
    /// probe jumps 16 bytes ahead when the overflow flag is set, as `jo` (70 10) would; and it mistakes
    /// `xchg %r8,%rax` (49 90) for a `nop`. Both observed on 6.18. On AArch64 it would execute instructions
    /// that depend on their own address out of line.
    ///
    /// Linux 6.18 replaces a probed `nop` of five bytes by a call into a page that it maps for that, which a
    /// forked child does not have: the child ends by SIGSEGV at that instruction
    /// (`docs/decisions/0016-probes-on-long-nops.md`).
    #[error("the kernel would mistake it for another instruction and break the program")]
    Mistaken,
}

/// Returns how the kernel executes `instruction`, whose bytes are `bytes`.
pub(super) fn probing(instruction: &Instruction, bytes: &[u8]) -> Result<SiteCost, Unprobeable> {
    if instruction.is_invalid() {
        return Err(Unprobeable::Invalid);
    }
    check_mistaken(instruction, bytes)?;
    check_prefixes(instruction, bytes)?;
    check_kind(instruction)?;
    Ok(if is_emulated(bytes) {
        SiteCost::Emulated
    } else {
        SiteCost::SingleStepped
    })
}

/// True if the kernel emulates the instruction, by its exact encoding: forms with redundant prefixes count as
/// single-stepped, where an error costs time only.
///
/// Multi-byte `nop`s are missing on purpose: 6.18 emulates those of up to 8 bytes, 6.1 single-steps them and
/// refuses `66 90`.
fn is_emulated(bytes: &[u8]) -> bool {
    match bytes {
        // push %rax … %rdi; push %r8 … %r15
        [0x50..=0x57] | [0x41, 0x50..=0x57] => true,
        // nop
        [NOP] => true,
        // jcc rel8, jmp rel8
        [0x70..=0x7f | 0xeb, _] => true,
        // call rel32, jmp rel32
        [0xe8 | 0xe9, _, _, _, _] => true,
        // jcc rel32
        [0x0f, 0x80..=0x8f, _, _, _, _] => true,
        _ => false,
    }
}

fn check_mistaken(instruction: &Instruction, bytes: &[u8]) -> Result<(), Unprobeable> {
    let encoding = instruction.code().encoding();
    let exchange = bytes.last() == Some(&0x90) && instruction.mnemonic() == Mnemonic::Xchg;
    if encoding != EncodingKind::Legacy || exchange || bytes == NOP5 {
        Err(Unprobeable::Mistaken)
    } else {
        Ok(())
    }
}

fn check_prefixes(instruction: &Instruction, bytes: &[u8]) -> Result<(), Unprobeable> {
    let branches = instruction.flow_control() != FlowControl::Next;
    for &byte in bytes {
        match byte {
            // es, cs, ss, ds (also notrack), lock
            0x26 | 0x2e | 0x36 | 0x3e | 0xf0 => return Err(Unprobeable::Prefix(byte)),
            0x66 if branches => return Err(Unprobeable::Prefix(byte)),
            // fs, gs, operand size, address size, repne, rep
            0x64..=0x67 | 0xf2 | 0xf3 => {}
            _ => break,
        }
    }
    Ok(())
}

fn check_kind(instruction: &Instruction) -> Result<(), Unprobeable> {
    // Interrupt: int3, int n, int1. Exception: ud2 and relatives.
    let traps = matches!(
        instruction.flow_control(),
        FlowControl::Interrupt | FlowControl::Exception
    );
    let system = matches!(
        instruction.mnemonic(),
        Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Xgetbv | Mnemonic::Rdtscp | Mnemonic::Xabort
    );
    let far = instruction.code() == Code::INVALID || instruction.is_jmp_far() || instruction.is_call_far();
    if traps || system || far || instruction.is_privileged() {
        Err(Unprobeable::Kind)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    fn check(bytes: &[u8], expected: Result<SiteCost, Unprobeable>) {
        let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
        assert_eq!(probing(&instruction, bytes), expected, "{bytes:02x?}");
    }

    /// Exactly the encodings that every supported kernel emulates are cheap. Each row was probed on 6.18:
    /// hits counted, time per hit above or below 2 µs as predicted, except where newer kernels are cheaper.
    #[test]
    fn costs() {
        let emulated: &[&[u8]] = &[
            &[0x50],                   // push %rax
            &[0x41, 0x54],             // push %r12
            &[0x90],                   // nop
            &[0xeb, 0x00],             // jmp rel8
            &[0xe9, 0, 0, 0, 0],       // jmp rel32
            &[0x74, 0x00],             // je rel8
            &[0x0f, 0x87, 0, 0, 0, 0], // ja rel32
            &[0xe8, 1, 0, 0, 0],       // call rel32
        ];
        for bytes in emulated {
            check(bytes, Ok(SiteCost::Emulated));
        }
        let stepped: &[&[u8]] = &[
            &[0xf3, 0x0f, 0x1e, 0xfa],                   // endbr64
            &[0x48, 0x85, 0xff],                         // test %rdi,%rdi
            &[0x48, 0x89, 0xf8],                         // mov %rdi,%rax
            &[0x48, 0x83, 0xec, 0x08],                   // sub $8,%rsp
            &[0x40, 0x50],                               // rex push %rax
            &[0x6a, 0x00],                               // push $0
            &[0xe3, 0x00],                               // jrcxz
            &[0xc3],                                     // ret
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0], // mov %fs:0,%rax
            &[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],    // nopw 0(%rax,%rax,1)
            &[0x66, 0x90],                               // xchg %ax,%ax: refused before 6.2
        ];
        for bytes in stepped {
            check(bytes, Ok(SiteCost::SingleStepped));
        }
    }

    /// Instructions that the kernel refuses with ENOTSUPP are recognised.
    #[test]
    fn refused() {
        check(&[0xf0, 0x83, 0x0c, 0x24, 0x00], Err(Unprobeable::Prefix(0xf0))); // lock orl $0,(%rsp)
        check(
            &[0x2e, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
            Err(Unprobeable::Prefix(0x2e)),
        ); // cs nopw
        check(&[0x3e, 0xff, 0xe0], Err(Unprobeable::Prefix(0x3e))); // notrack jmp *%rax
        check(&[0x66, 0x74, 0x00], Err(Unprobeable::Prefix(0x66))); // data16 je
        check(&[0x0f, 0x0b], Err(Unprobeable::Kind)); // ud2
        check(&[0x0f, 0x05], Err(Unprobeable::Kind)); // syscall
        check(&[0xcc], Err(Unprobeable::Kind)); // int3
        check(&[0xf4], Err(Unprobeable::Kind)); // hlt
        check(&[0x06], Err(Unprobeable::Invalid));
        check(&[], Err(Unprobeable::Invalid));
    }

    /// Instructions that the kernel would accept and then execute wrongly are never probed.
    #[test]
    fn mistaken() {
        check(&[0xc5, 0xf8, 0x77], Err(Unprobeable::Mistaken)); // vzeroupper, taken for ja
        check(&[0xc5, 0xf9, 0x70, 0xc0, 0x10], Err(Unprobeable::Mistaken)); // vpshufd, taken for jo
        check(&[0x62, 0xf1, 0x7c, 0x48, 0x57, 0xc0], Err(Unprobeable::Mistaken)); // EVEX vxorps
        check(&[0x49, 0x90], Err(Unprobeable::Mistaken)); // xchg %r8,%rax, taken for nop
        check(&[0x41, 0x90], Err(Unprobeable::Mistaken)); // xchg %r8d,%eax, taken for nop
        check(&[0x0f, 0x1f, 0x44, 0, 0], Err(Unprobeable::Mistaken)); // nopl 0(%rax,%rax,1), made a call
    }
}
