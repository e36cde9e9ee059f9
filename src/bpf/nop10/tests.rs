use std::fs;

use nix::unistd::geteuid;

use super::trial::{Code, of};
use super::{Outcome, outcome};
use crate::allocator::{NOP5, NOP10};

/// A kernel that has the function for it replaces exactly one of the two instructions by a call; where it
/// replaces the one of five bytes, that does harm.
#[test]
#[allow(clippy::print_stdout, reason = "what tests/kernels.sh shows")]
fn calls_that_do_harm_are_found_as_root() {
    if !geteuid().is_root() {
        return;
    }
    let symbols = fs::read_to_string("/proc/kallsyms").expect("symbols");
    let replaces = symbols
        .lines()
        .any(|line| line.ends_with(" arch_uprobe_optimize"));
    let (five, ten) = (of(&NOP5), outcome());
    println!("@found nop5 {five:?}");
    println!("@found nop10 {ten:?}");
    let is_replaced = [five, ten].map(|outcome| outcome != Outcome::Trap);
    assert_eq!(
        is_replaced.iter().filter(|is_replaced| **is_replaced).count(),
        usize::from(replaces)
    );
    assert_ne!(five, Outcome::Call);
}

/// The function returns success without a probe, and failure after an instruction that overwrites something.
#[test]
fn what_is_overwritten_is_seen() {
    for (instruction, is_unharmed) in [
        (&[0x90][..], true),
        (&NOP5, true),
        (&NOP10, true),
        // push $1; pop %r10
        (&[0x6a, 0x01, 0x41, 0x5a], false),
        // movl $1, -128(%rsp)
        (&[0xc7, 0x44, 0x24, 0x80, 1, 0, 0, 0], false),
        // xor %eax, %eax; not %rcx; inc %r11
        (&[0x31, 0xc0], false),
        (&[0x48, 0xf7, 0xd1], false),
        (&[0x49, 0xff, 0xc3], false),
    ] {
        let code = Code::new(instruction).expect("code");
        assert_eq!(code.first_bytes(), instruction);
        assert_eq!(code.is_unharmed(), is_unharmed, "{instruction:x?}");
    }
}
