//! Ways in which the kernel executes AArch64 instructions under a uprobe, from
//! `arch/arm64/kernel/probes/decode-insn.c` and `arch/arm64/lib/insn.c` as of Linux 6.1. Newer kernels
//! emulate `nop` too (6.13).

use super::{SiteCost, Unprobeable};
use crate::allocator::machine::aarch64::{hint, is_hint};

pub(in crate::allocator) fn probing(word: u32) -> Result<SiteCost, Unprobeable> {
    if is_emulated(word) {
        return Ok(SiteCost::Emulated);
    }
    if word >> 16 == 0 {
        return Err(Unprobeable::Invalid);
    }
    if is_refused(word) {
        return Err(Unprobeable::Kind);
    }
    if is_mistaken(word) {
        return Err(Unprobeable::Mistaken);
    }
    Ok(SiteCost::SingleStepped)
}

/// True if `arm_probe_decode_insn` has a handler for the instruction.
fn is_emulated(word: u32) -> bool {
    const EMULATED: [(u32, u32); 6] = [
        (0x7c00_0000, 0x1400_0000), // b, bl
        (0xff00_0010, 0x5400_0000), // b.cond
        (0x7e00_0000, 0x3400_0000), // cbz, cbnz
        (0x7e00_0000, 0x3600_0000), // tbz, tbnz
        (0x1f00_0000, 0x1000_0000), // adr, adrp
        (0xff9f_fc1f, 0xd61f_0000), // br, blr, ret
    ];
    EMULATED.iter().any(|&(mask, value)| word & mask == value) && word & 0xffff_fc1f != 0xd67f_0000
}

/// True if `aarch64_insn_is_steppable` refuses the instruction.
fn is_refused(word: u32) -> bool {
    const REFUSED: [(u32, u32); 7] = [
        (0xfe00_0000, 0xd600_0000), // braa, blraa, retaa, eret
        (0xff00_0000, 0xd400_0000), // svc, brk
        (0xfff0_0000, 0xd510_0000), // msr
        (0xfff8_f01f, 0xd500_401f), // msr of a field
        (0x3b00_0000, 0x1800_0000), // ldr of a literal
        (0x3f00_0000, 0x0800_0000), // ldxr, stxr, ldar, stlr, cas
        (0x3b20_0c00, 0x1900_0400), // cpy, set: by newer kernels
    ];
    let vector_literal = word & 0x3f00_0000 == 0x1c00_0000;
    if is_hint(word) {
        // nop, xpaclri, pac…, bti
        return !matches!(hint(word), 0 | 7 | 8 | 10 | 24..=27 | 32 | 34 | 36 | 38);
    }
    !vector_literal && REFUSED.iter().any(|&(mask, value)| word & mask == value)
}

/// True for instructions that depend on their own address and that the kernel does not recognise: it would
/// execute them out of line.
fn is_mistaken(word: u32) -> bool {
    // ldr of a literal to a vector register
    let vector_literal = word & 0x3f00_0000 == 0x1c00_0000;
    // Branches and system instructions share this group; the latter (0xd5) are fine.
    let unknown_branch = word >> 25 & 0b1110 == 0b1010 && word >> 24 != 0xd5;
    vector_literal || unknown_branch
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(words: &[u32], expected: Result<SiteCost, Unprobeable>) {
        for &word in words {
            assert_eq!(probing(word), expected, "{word:08x}");
        }
    }

    /// Instructions that the kernel emulates are cheap.
    #[test]
    fn emulated() {
        let cheap = [
            0x1400_0001, // b
            0x97ff_ffff, // bl
            0x5400_0040, // b.eq
            0xb400_00e0, // cbz x0
            0x3500_0061, // cbnz w1
            0x36f8_0040, // tbz w0, #31
            0xb748_0040, // tbnz x0, #41
            0x1000_0000, // adr x0
            0xf000_08e3, // adrp x3
            0xd61f_0220, // br x17
            0xd63f_0100, // blr x8
            0xd65f_03c0, // ret
        ];
        check(&cheap, Ok(SiteCost::Emulated));
    }

    /// Instructions that the kernel copies and steps are single-stepped.
    #[test]
    fn stepped() {
        let dear = [
            0xa9bd_7bfd, // stp x29, x30, [sp, #-48]!
            0xd503_233f, // paciasp
            0xd503_245f, // bti c
            0xd503_201f, // nop: emulated by newer kernels
            0x9100_03fd, // mov x29, sp
            0xf940_0001, // ldr x1, [x0]
            0xd53b_d041, // mrs x1, tpidr_el0
            0xb820_0001, // ldadd w0, w1, [x0]
        ];
        check(&dear, Ok(SiteCost::SingleStepped));
    }

    /// Instructions that the kernel refuses are recognised.
    #[test]
    fn refused() {
        let refused = [
            0xd65f_0bff, // retaa
            0xd71f_0a11, // braa x16, x17
            0xd73f_0909, // blraa x8, x9
            0xd69f_03e0, // eret
            0xd400_0001, // svc #0
            0xd420_7d00, // brk #1000
            0xd51b_d040, // msr tpidr_el0, x0
            0xd503_4fdf, // msr daifset, #15
            0x5800_0040, // ldr x0, literal
            0x9800_0040, // ldrsw x0, literal
            0x885f_7c01, // ldxr w1, [x0]
            0x8802_7c01, // stxr w2, w1, [x0]
            0x88e0_7c01, // casa w0, w1, [x0]
            0x1901_0440, // cpyfp [x0]!, [x1]!, x2!
            0xd503_23bf, // autiasp
            0xd503_207f, // wfi
        ];
        check(&refused, Err(Unprobeable::Kind));
        check(&[0, 0x0000_1234], Err(Unprobeable::Invalid)); // udf
    }

    /// Instructions that the kernel would execute out of line although they depend on their address are never
    /// probed.
    #[test]
    fn mistaken() {
        let mistaken = [
            0x1c00_0040, // ldr s0, literal
            0x5c00_0040, // ldr d0, literal
            0x5400_0050, // bc.eq
            0x7400_0040, // cbgt
            0x5500_001f, // retaasppc
        ];
        check(&mistaken, Err(Unprobeable::Mistaken));
    }
}
