//! Claim: a signal trampoline without CFI is recognized by its code, and no other code is taken for one.

use crate::common::build::cc;
use object::{Object, ObjectSymbol};
use unwind_tables::Architecture;
use unwind_tables::addr::{Avma, Svma};
use unwind_tables::image::{Image, ImageView};
use unwind_tables::mapping::Mapping;
use unwind_tables::rule::UnwindRule;
use unwind_tables::saves::{self, Saved, long};
use unwind_tables::walk::{self, Registers, ReturnProbes, Tables, Unwind};
use unwind_tables::{Saves, compile_as};

/// Functions with CFI around code without CFI: musl's trampoline behind its `nop`, one as compilers write it,
/// and a system call of another number. The last trampoline is in a function that has CFI.
const SOURCE: &str = "
    .text
    .globl before, musl, compiled, other, described
    before: .cfi_startproc
    nop
    .cfi_endproc
    nop
    musl: mov $15, %rax
    syscall
    .skip 3
    compiled: mov $15, %eax
    syscall
    other: mov $14, %rax
    syscall
    .skip 20
    described: .cfi_startproc
    mov $15, %rax
    syscall
    .cfi_endproc
    ";

fn symbol(elf: &[u8], name: &str) -> Svma {
    let file = object::File::parse(elf).expect("an ELF file");
    let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
    Svma::new(symbol.unwrap_or_else(|| panic!("no symbol {name}")).address())
}

fn object() -> (Vec<u8>, Image) {
    let elf = cc(
        "trampolines.s",
        SOURCE,
        &["-shared", "-nostdlib", "-Wl,--build-id=none"],
    );
    let compiled = compile_as(&elf, Saves::Always).expect("an ELF file");
    (elf, compiled.image.expect("CFI"))
}

/// The rows start one byte lower, where the return address of a handler is looked up, and end with the code.
#[test]
fn trampolines_are_found_by_their_code() {
    let (elf, image) = object();
    let is_program = |address| matches!(image.rule_at(address), UnwindRule::Program(_));
    for (name, length) in [("musl", 9), ("compiled", 7)] {
        let start = symbol(&elf, name);
        let covered: Vec<_> = (0..length + 3)
            .map(|offset| is_program(start.wrapping_add(offset).wrapping_sub(2)))
            .collect();
        let expected: Vec<_> = (0..length + 3)
            .map(|offset| (1..length + 2).contains(&offset))
            .collect();
        assert_eq!(covered, expected, "{name}");
    }
    assert_eq!(
        image.rule_at(symbol(&elf, "other").wrapping_add(7)),
        UnwindRule::Gap
    );
    assert!(matches!(
        image.rule_at(symbol(&elf, "described")),
        UnwindRule::Frame(_)
    ));
}

/// A step from a trampoline takes the interrupted registers from the kernel's `struct ucontext`.
#[test]
fn trampolines_lead_to_the_interrupted_frame() {
    let (elf, image) = object();
    let musl = symbol(&elf, "musl");
    let tables = Tables {
        architecture: Architecture::X86_64,
        words: image.words(),
        mappings: &[Mapping::everywhere()],
        unwind: Unwind::Dwarf,
        changing: false,
        return_probes: ReturnProbes::default(),
    };
    let frame = Registers::new(Avma::new(musl.get()), Avma::new(0x7000), Avma::new(0));
    // Each word of memory is its own address.
    let caller = walk::caller(tables, frame, |address| Some(address.get())).expect("the interrupted frame");
    // arch/x86/include/uapi/asm/sigcontext.h: rbp is the 11th register, rsp the 16th, rip the 17th.
    let slot = |number: u64| Avma::new(0x7000 + 40 + 8 * number);
    assert_eq!((caller.pc, caller.sp, caller.fp), (slot(16), slot(15), slot(10)));
    assert!(caller.interrupted);

    let words = ImageView {
        words: image.words(),
        at: 0,
    };
    let rule = words.saves().expect("saves").rule_at(musl);
    let saved = |number| saves::saved(words, rule, number);
    // rbx is the 12th, r8 the first, r15 the eighth, rax the 14th.
    for (number, place) in [(3, 11), (8, 0), (15, 7), (0, 13)] {
        assert_eq!(
            saved(number),
            Saved::Slot(long::AT_SP, 40 + 8 * place),
            "{number}"
        );
    }
}
