//! Claim: a call for which Go's runtime leaves the stack is known by its code, in Go's programs, and nothing else is
//! taken for one.

mod common;

use common::build::cc;
use object::{Object, ObjectSymbol};
use unwind_tables::addr::Svma;
use unwind_tables::compile;
use unwind_tables::image::Image;
use unwind_tables::rule::{Reason, UnwindRule};

/// Both calls of Go's `asmcgocall`, and one whose code goes on otherwise. Their CFI says that nothing is on the stack.
const SOURCE: &str = "
    .text
    .globl switches, same, neither
    switches: .cfi_startproc
    call *%rax
    mov 0x30(%rsp), %rdi
    mov 0x8(%rdi), %rsi
    sub 0x28(%rsp), %rsi
    mov %rsi, %rsp
    ret
    same: call *%rax
    mov 0x28(%rsp), %rsi
    mov %rsi, %rsp
    ret
    neither: call *%rax
    mov 0x30(%rsp), %rsi
    mov %rsi, %rsp
    ret
    .cfi_endproc
    ";
const GO: &str = ".section .go.buildinfo, \"aw\", @progbits\n.quad 0\n";

/// Addresses in each function at which its rule is not the CFI's.
fn changed(source: &str) -> [Vec<u64>; 3] {
    let elf = cc("switches.s", source, &["-shared", "-nostdlib"]);
    let image: Image = compile(&elf).expect("an ELF file").image.expect("CFI");
    let file = object::File::parse(&*elf).expect("an ELF file");
    ["switches", "same", "neither"].map(|name| {
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
        let start = Svma::new(symbol.expect("a function").address());
        let rule_at = |offset| image.rule_at(start.wrapping_add(offset));
        let offsets = (0..10).filter(|&offset| !matches!(rule_at(offset), UnwindRule::Frame(_)));
        let offsets: Vec<_> = offsets.collect();
        for &offset in &offsets {
            assert_eq!(
                rule_at(offset),
                UnwindRule::Unsupported(Reason::StackSwitch),
                "{name}"
            );
        }
        offsets
    })
}

/// The last byte of each call: where its return address is looked up.
#[test]
fn switches_are_found_by_their_code() {
    assert_eq!(changed(&[SOURCE, GO].concat()), [vec![1], vec![1], vec![]]);
}

/// In programs that are not Go's, the code means something else.
#[test]
fn only_programs_of_go_are_marked() {
    assert_eq!(changed(SOURCE), [vec![], vec![], vec![]]);
}
