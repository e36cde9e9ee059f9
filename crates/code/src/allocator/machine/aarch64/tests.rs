use unwind_tables::Architecture;

use super::*;
use crate::allocator::machine;

const AT: u64 = 0x1_0000;

fn check(words: &[u32], expected: Flow) {
    for &word in words {
        assert_eq!(flow(word, Svma::new(AT)), expected, "{word:08x}");
    }
}

/// Each kind of control flow is recognised, and an instruction that does not branch continues at the next.
#[test]
fn flows() {
    check(&[0x1400_0001], Flow::Jump(Target::Code(Svma::new(AT + 4)))); // b
    check(&[0x97ff_ffff], Flow::Call(Target::Code(Svma::new(AT - 4)))); // bl
    check(&[0x17ff_fffe], Flow::Jump(Target::Code(Svma::new(AT - 8))));
    // b.eq, cbz x0, cbnz w1, tbz w0, tbnz x0, cbgt x0
    let branches = [
        0x5400_0040,
        0xb400_0040,
        0x3500_0041,
        0x3600_0040,
        0xb700_0040,
        0xf400_0040,
    ];
    check(&branches, Flow::Branch(Svma::new(AT + 8)));
    check(
        &[0x54ff_ffe0, 0xb4ff_ffe0, 0x3607_ffe0],
        Flow::Branch(Svma::new(AT - 4)),
    );
    check(&[0xd61f_0220, 0xd71f_0a11], Flow::Jump(Target::Computed)); // br x17; braa x16, x17
    check(&[0xd63f_0100, 0xd73f_0909], Flow::Call(Target::Computed)); // blr x8; blraa x8, x9
    // ret, retaa, retab, retaasppc; by another register it is a jump
    check(
        &[0xd65f_03c0, 0xd65f_0bff, 0xd65f_0fff, 0x5500_001f],
        Flow::Return,
    );
    check(&[0xd65f_0020], Flow::Jump(Target::Computed)); // ret x1
    check(&[0xd420_7d00, 0xd440_0000, 0x0000_0000], Flow::Ends); // brk; hlt; udf
    // eret; encodings that differ slightly from ret and br
    check(
        &[0xd69f_03e0, 0xd65f_83c0, 0xd65f_03c1, 0xd75f_03c0, 0xd61e_0220],
        Flow::Unknown,
    );
    // svc, nop, paciasp, mrs, dmb, add, ldr, fmov
    let others = [
        0xd400_0001,
        0xd503_201f,
        0xd503_233f,
        0xd53b_d041,
        0xd503_3bbf,
        0x9100_03fd,
        0xf940_0001,
        0x9e66_0000,
    ];
    check(&others, Flow::Next);
}

/// Every written register is reported; unknown encodings give `None`.
#[test]
fn written_registers() {
    let (x0, x1, x16, x19, x29) = (1, 1 << 1, 1 << 16, 1 << 19, 1 << 29);
    let cases: &[(u32, Option<u32>)] = &[
        (0x9100_03fd, Some(x29)),           // mov x29, sp
        (0xd100_83ff, Some(SP)),            // sub sp, sp, #32
        (0xf100_001f, Some(0)),             // cmp x0, #0
        (0x927c_ec1f, Some(SP)),            // and sp, x0, #~15
        (0xf240_0c1f, Some(0)),             // tst x0, #15
        (0xaa00_03f3, Some(x19)),           // mov x19, x0
        (0x8b21_63ff, Some(SP)),            // add sp, sp, x1
        (0xeb21_63ff, Some(0)),             // cmp sp, x1
        (0x9bc1_7c01, Some(x1)),            // umulh x1, x0, x1
        (0xf900_13f5, Some(0)),             // str x21, [sp, #32]
        (0x3964_a063, Some(1 << 3)),        // ldrb w3, [x3, #2344]
        (0xa9bd_7bfd, Some(SP)),            // stp x29, x30, [sp, #-48]!
        (0xa8c3_7bfd, Some(SP | LR | x29)), // ldp x29, x30, [sp], #48
        (0xa940_0400, Some(x0 | x1)),       // ldp x0, x1, [x0]
        (0xf840_8401, Some(x0 | x1)),       // ldr x1, [x0], #8
        (0xf81f_8c01, Some(x0)),            // str x1, [x0, #-8]!
        (0xf862_6801, Some(x1)),            // ldr x1, [x0, x2]
        (0x6d00_0be1, Some(0)),             // stp d1, d2, [sp]
        (0x3dc0_0001, Some(0)),             // ldr q1, [x0]
        (0xf980_0000, Some(0)),             // prfm pldl1keep, [x0]; x0 is none, but could be
        (0xd503_233f, Some(LR)),            // paciasp
        (0xd503_245f, Some(0)),             // bti c
        (0xd53b_d050, Some(x16)),           // mrs x16, tpidr_el0
        (0xb820_0001, None),                // ldadd w0, w1, [x0]
        (0x885f_7c01, None),                // ldxr w1, [x0]
        (0x4cdf_7000, None),                // ld1 {v0.16b}, [x0], #16
        (0x0420_e3e0, None),                // cntb x0
    ];
    for &(word, registers) in cases {
        let found = written(word);
        match registers {
            Some(registers) => {
                let more = if word == 0xf980_0000 { x0 } else { 0 };
                assert_eq!(found, Some(registers | more), "{word:08x}");
            }
            None => assert_eq!(found, None, "{word:08x}"),
        }
    }
}

/// A jump by a register leads to the slot that it was loaded from, unless the register was written in
/// between.
#[test]
fn slots() {
    const ADRP: u32 = 0xd000_0010; // adrp x16, two pages on
    const LOAD: u32 = 0xf940_0a11; // ldr x17, [x16, #16]
    const ADD: u32 = 0x9100_4210; // add x16, x16, #16
    const JUMP: u32 = 0xd61f_0220; // br x17
    const CALL: u32 = 0xd63f_0220; // blr x17
    let last = |words: &[u32]| {
        let code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let instructions = machine::instructions(Architecture::Aarch64, &code, Svma::new(AT + 0x123c));
        instructions.last().expect("there is one").flow
    };
    let slot = Target::Slot(Svma::new(AT + 0x3010));
    assert_eq!(last(&[ADRP, LOAD, ADD, JUMP]), Flow::Jump(slot));
    assert_eq!(last(&[ADRP, LOAD, CALL]), Flow::Call(slot));
    let behind = Target::Slot(Svma::new(AT + 0x3020));
    assert_eq!(last(&[ADRP, ADD, LOAD, JUMP]), Flow::Jump(behind));
    let computed = Flow::Jump(Target::Computed);
    assert_eq!(last(&[LOAD, JUMP]), computed, "from an unknown page");
    assert_eq!(last(&[ADRP, JUMP]), computed, "not loaded");
    assert_eq!(last(&[ADRP, LOAD, 0xaa00_03f1, JUMP]), computed, "mov x17, x0");
    assert_eq!(last(&[ADRP, 0xaa00_03f0, LOAD, JUMP]), computed, "mov x16, x0");
    assert_eq!(last(&[ADRP, LOAD, 0x9400_0001, JUMP]), computed, "a call");
    assert_eq!(last(&[ADRP, LOAD, 0xb820_0001, JUMP]), computed, "ldadd");
}
