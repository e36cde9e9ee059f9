mod aarch64;

use std::collections::HashSet;
use std::fs;
use std::process::Command;

use super::*;
use crate::allocator::symbols;

/// Functions that end in each possible way.
const SOURCE: &str = r#"
.globl two_rets, tail, outer, plain, wrapped, looks_first, computed, imported, never, wrapper_of_wrapper, endless
.text
two_rets: test %rdi, %rdi
    je 1f
    ret
1:  ret $0
plain: ret
tail: test %rdi, %rdi
    jne elsewhere
    jmp plain
.section .text.elsewhere, "ax"
elsewhere: call other
    repz ret
.text
outer: jmp *slot(%rip)
computed: jmp *%rax
imported: jmp other@PLT
never: call abort@PLT
    ud2
wrapped:
here: call allocate@PLT
    test %rax, %rax
    je 1f
    ret
1:  call abort@PLT
    ud2
looks_first: test %rdi, %rdi
    je 1f
    jmp allocate@PLT
1:  ret
wrapper_of_wrapper: sub $8, %rsp
    call here
    add $8, %rsp
    ret
# Each calls the next one at 1300 places of it.
.macro calls_of next
.set place, 0
.rept 1300
    call \next + place
.set place, place + 5
.endr
    ret
.endm
endless: calls_of second
second: calls_of third
third: calls_of fourth
fourth: calls_of fourth
.type endless,@function
.type two_rets,@function
.type tail,@function
.type outer,@function
.type plain,@function
.type wrapped,@function
.type looks_first,@function
.type computed,@function
.type imported,@function
.type never,@function
.type wrapper_of_wrapper,@function
.data
slot: .quad 0
"#;

const NAMES: &[&str] = &[
    "two_rets",
    "tail",
    "outer",
    "plain",
    "wrapped",
    "looks_first",
    "computed",
    "imported",
    "never",
    "wrapper_of_wrapper",
    "endless",
];

struct Listed {
    addresses: HashSet<Svma>,
    imports: &'static [&'static str],
}

impl AllocatorSet for Listed {
    fn is_function(&self, svma: Svma) -> bool {
        self.addresses.contains(&svma)
    }

    fn is_import(&self, name: &[u8]) -> bool {
        self.imports.iter().any(|known| known.as_bytes() == name)
    }
}

fn listed(addresses: &[Svma], imports: &'static [&'static str]) -> Listed {
    Listed {
        addresses: addresses.iter().copied().collect(),
        imports,
    }
}

fn assembled(name: &str) -> Vec<u8> {
    let stem = std::env::temp_dir().join(format!("memleak-flow-{}-{name}", std::process::id()));
    let (source, output) = (stem.with_extension("s"), stem.with_extension("so"));
    fs::write(&source, SOURCE).expect("a writable directory");
    let status = Command::new("cc")
        .args(["-shared", "-nostdlib", "-Wl,-z,lazy", "-o"])
        .args([&output, &source])
        .status();
    assert!(status.expect("cc").success());
    let elf = fs::read(&output).expect("the output");
    for path in [source, output] {
        fs::remove_file(path).expect("ours");
    }
    elf
}

/// Runs `test` with the code and a lookup of each function's address.
fn with_code(name: &str, test: impl FnOnce(&Code<'_>, &dyn Fn(&str) -> Svma)) {
    let elf = assembled(name);
    let view = ElfView::parse(&elf).expect("an ELF file");
    let linkage = Linkage::of(&elf);
    let symbols = symbols::find(&elf, NAMES).expect("symbols");
    let at = |name: &str| {
        let symbol = symbols.iter().find(|symbol| NAMES[symbol.name] == name);
        symbol.unwrap_or_else(|| panic!("{name}")).svma
    };
    test(&Code::new(&elf, &view, &linkage), &at);
}

/// All instructions by which a call can return are found, those of tail calls too; where they cannot be, the
/// error gives the reason.
#[test]
fn exits() {
    with_code("exits", |code, at| {
        let nothing = listed(&[], &[]);
        let exits = |name: &str, known: &Listed| code.exits(at(name), known);
        let count = |name: &str| exits(name, &nothing).map(|rets| rets.len());
        assert_eq!(count("two_rets"), Ok(2));
        assert_eq!(count("tail"), Ok(2));
        assert_eq!(count("plain"), Ok(1));
        let plain = listed(&[at("plain")], &[]);
        assert_eq!(
            exits("tail", &plain).map(|rets| rets.len()),
            Ok(1),
            "the other is plain's own"
        );
        assert_eq!(count("computed"), Err(NoExits::IndirectJump(at("computed"))));
        assert_eq!(count("outer"), Err(NoExits::IndirectJump(at("outer"))));
        assert_eq!(count("imported"), Err(NoExits::LeavesTo("other".into())));
        assert_eq!(exits("imported", &listed(&[], &["other"])), Ok(vec![]));
        assert_eq!(count("never"), Err(NoExits::None));
    });
}

/// The amount of work is bounded; beyond the bound, the result is unknown.
#[test]
fn work_is_bounded() {
    with_code("work", |code, at| {
        let nothing = listed(&[], &[]);
        assert!(code.is_leaf(at("plain"), &nothing));
        assert!(!code.forwards(at("endless"), &listed(&[], &["allocate"])));
        assert_eq!(code.exits(at("plain"), &nothing), Err(NoExits::TooLarge));
        assert!(!code.is_leaf(at("plain"), &nothing));
    });
}

/// A function forwards if every path to its end leads through a known function.
#[test]
fn forwarders() {
    with_code("forwarders", |code, at| {
        let known = listed(&[], &["allocate"]);
        let forwards = |name: &str| code.forwards(at(name), &known);
        assert!(forwards("wrapped"));
        assert!(forwards("wrapper_of_wrapper"));
        assert!(!forwards("looks_first"), "null is not passed on");
        assert!(!forwards("plain"));
        assert!(!forwards("imported"));
        assert!(!forwards("never"));
        assert!(!code.forwards(at("wrapped"), &listed(&[], &["malloc"])));
    });
}
