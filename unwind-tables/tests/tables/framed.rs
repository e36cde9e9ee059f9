//! Claim: code of functions without CFI that have set up a frame pointer of their own is recognized by their
//! symbols, on both architectures, and no other code is. Code without a caller is recognized, too: the start
//! of glibc's loader, and the function that a stack of makecontext returns to.

use crate::common::build::{aarch64, cc, transform};
use crate::common::read_first;
use memchr::memmem;
use object::{Object, ObjectSymbol};
use unwind_tables::addr::{FileOffset, Svma};
use unwind_tables::compile;
use unwind_tables::elf::ElfView;
use unwind_tables::image::Image;
use unwind_tables::rule::UnwindRule;
use unwind_tables::verify::verify;

/// Macro that begins a function.
const FUNCTION: &str = "
    .text
    .macro function name
    .globl \\name
    .type \\name, %function
    \\name:
    .endm
    ";

/// Two functions without CFI that set up a frame, one that does so later, and one that has CFI.
const X86_64: &str = "
    function framed
    push %rbp
    mov %rsp, %rbp
    .skip 40, 0x90
    .size framed, . - framed
    .skip 24, 0x90
    function landed
    endbr64
    push %rbp
    mov %rsp, %rbp
    .skip 40, 0x90
    .size landed, . - landed
    function later
    nop
    push %rbp
    mov %rsp, %rbp
    .skip 40, 0x90
    .size later, . - later
    function described
    .cfi_startproc
    push %rbp
    mov %rsp, %rbp
    .skip 40, 0x90
    .cfi_endproc
    .size described, . - described
    ";
const AARCH64: &str = "
    function framed
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    .skip 40, 0
    .size framed, . - framed
    .skip 24, 0
    function landed
    bti c
    stp x29, x30, [sp, #-32]!
    mov x29, sp
    .skip 40, 0
    .size landed, . - landed
    function later
    nop
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    .skip 40, 0
    .size later, . - later
    function described
    .cfi_startproc
    stp x29, x30, [sp, #-16]!
    mov x29, sp
    .skip 40, 0
    .cfi_endproc
    .size described, . - described
    ";

/// Offsets, in each function and behind it, at which the frame pointer is known to be its own.
fn framed(elf: &[u8], entries: &[u64]) -> Vec<Vec<u64>> {
    let image: Image = compile(elf).expect("an ELF file").image.expect("CFI");
    let is_framed = |at| image.has_own_frame_pointer(Svma::new(at));
    let offsets = |&entry: &u64| (0..64).filter(|offset| is_framed(entry + offset)).collect();
    entries.iter().map(offsets).collect()
}

#[test]
fn functions_that_set_up_a_frame() {
    let x86_64 = cc(
        "framed.s",
        &[FUNCTION, X86_64].concat(),
        &["-shared", "-nostdlib"],
    );
    for (elf, set) in [
        (x86_64, [4, 8]),
        (aarch64(&[FUNCTION, AARCH64].concat()), [8, 12]),
    ] {
        let file = object::File::parse(&*elf).expect("an ELF file");
        let entries = ["framed", "landed", "later", "described"].map(|name| {
            let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
            symbol.expect("a function").address()
        });
        let [in_framed, in_landed] = set.map(|set| (set..set + 40).collect::<Vec<u64>>());
        let expected = [in_framed, in_landed, Vec::new(), Vec::new()];
        assert_eq!(framed(&elf, &entries), expected);
    }
}

/// A stripped library still has the symbols for programs that are linked to it; a stripped static program has
/// none.
#[test]
fn stripped_files() {
    for (flags, is_known) in [
        (["-shared", "-nostdlib"], true),
        (["-static", "-nostdlib"], false),
    ] {
        let elf = cc("framed.s", &[FUNCTION, X86_64].concat(), &flags);
        let file = object::File::parse(&*elf).expect("an ELF file");
        let framed_at = file.symbols().find(|symbol| symbol.name() == Ok("framed"));
        let entry = framed_at.expect("a function").address();
        let stripped = transform(&elf, "strip", &["{in}", "-o", "{out}"]);
        assert!(!framed(&elf, &[entry])[0].is_empty(), "{flags:?}");
        assert_eq!(!framed(&stripped, &[entry])[0].is_empty(), is_known, "{flags:?}");
    }
}

/// A stack of makecontext returns to a function of glibc, which is looked up in the padding before it. That
/// byte of the padding ends the stack; the rest has no rule.
#[test]
fn contexts_begin_a_stack() {
    let elf = read_first(&["/lib/x86_64-linux-gnu/libc.so.6"]);
    let image = compile(&elf).expect("an ELF file").image.expect("CFI");
    let start = memmem::find(&elf, &[0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24]).expect("__start_context");
    let view = ElfView::parse(&elf).expect("an ELF file");
    let start = view.svma_of(FileOffset::new(start as u64)).expect("a segment");
    let rule = |offset: i64| image.rule_at(Svma::new(start.get().wrapping_add_signed(offset)));
    assert_eq!(
        [rule(-2), rule(-1), rule(0)],
        [UnwindRule::Gap, UnwindRule::EndOfStack, UnwindRule::EndOfStack]
    );
    assert_eq!(verify(&elf, Some(&image)).expect("an ELF file").wrong, 0);
}

/// glibc's loader begins with assembly without CFI, which has no caller.
#[test]
fn the_loader_begins_a_stack() {
    let elf = read_first(&["/lib64/ld-linux-x86-64.so.2"]);
    let entry = u64::from_le_bytes(elf[24..32].try_into().expect("a header"));
    let image = compile(&elf).expect("an ELF file").image.expect("CFI");
    for offset in [0, 8, 48] {
        assert_eq!(
            image.rule_at(Svma::new(entry + offset)),
            UnwindRule::EndOfStack,
            "{offset}"
        );
    }
    assert_eq!(verify(&elf, Some(&image)).expect("an ELF file").wrong, 0);
}
