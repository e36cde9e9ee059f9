//! Claim: at every address around every row boundary of real objects, the image says what gimli's own
//! evaluation of the CFI says; in the padding between functions, nothing.

mod common;

use common::{libc, oracle, read_first, vdso, without_section_headers};
use unwind_tables::Saves;
use unwind_tables::addr::Svma;
use unwind_tables::coverage::CfiSource;
use unwind_tables::rule::UnwindRule;

/// Compares one object and says how much was compared, so that a test that compares nothing fails.
fn check(elf: &[u8], rows_at_least: u64) -> oracle::Compared {
    let compiled = unwind_tables::compile_as(elf, Saves::Always).expect("an object of this machine");
    let image = compiled.image.expect("it has CFI");
    assert_eq!(compiled.coverage.source, CfiSource::EhFrame);
    let compared = oracle::compare(elf, &image);
    assert!(compared.rows >= rows_at_least, "only {compared:?}");
    assert!(compared.saves > 0, "{compared:?}");
    compared
}

/// glibc: hand-written assembly, `clone`, signal frames, IFUNCs, PLT.
#[test]
fn libc_agrees() {
    let compared = check(&libc(), 10_000);
    assert!(compared.padding > 0, "{compared:?}");
}

/// C++ with exceptions, built without frame pointers.
#[test]
fn libstdcxx_agrees() {
    check(
        &read_first(&[
            "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
            "/usr/lib64/libstdc++.so.6",
        ]),
        10_000,
    );
}

/// The dynamic linker: CFAs in rbx and other registers, which need programs.
#[test]
fn dynamic_linker_agrees() {
    let compared = check(&read_first(&["/lib64/ld-linux-x86-64.so.2"]), 1000);
    assert!(compared.programs > 0 && compared.unsupported == 0, "{compared:?}");
}

/// A large executable.
#[test]
fn large_executable_agrees() {
    let paths = [
        "/usr/bin/gdb",
        "/usr/bin/python3",
        "/usr/bin/perl",
        "/usr/bin/git",
        "/bin/bash",
    ];
    check(&read_first(&paths), 5000);
}

/// Rust code, not stripped: this test itself.
#[test]
fn this_executable_agrees() {
    let path = std::env::current_exe().expect("this executable's path");
    check(&std::fs::read(path).expect("this executable"), 5000);
}

/// The vDSO, as it stands in this process's memory.
#[test]
fn vdso_agrees() {
    oracle::compare(
        &vdso(),
        &unwind_tables::compile(&vdso())
            .expect("the vDSO")
            .image
            .expect("CFI"),
    );
}

/// Without section headers, the table is found through `PT_GNU_EH_FRAME` and says the same everywhere.
#[test]
fn tables_without_section_headers_agree() {
    for elf in [libc(), vdso()] {
        let stripped = without_section_headers(elf.clone());
        let image = unwind_tables::compile(&stripped)
            .expect("still an ELF file")
            .image
            .expect("still with CFI");
        assert!(
            !unwind_tables::ElfView::parse(&stripped)
                .expect("headers")
                .has_section_headers()
        );
        oracle::compare(&elf, &image);
    }
}

/// The stack ends in glibc where a thread starts, and nowhere else.
#[test]
fn stacks_end_where_the_return_address_is_undefined() {
    let elf = libc();
    let view = unwind_tables::ElfView::parse(&elf).expect("libc");
    let (table, _) = unwind_tables::build::build(&view).expect("libc");
    let ends = table
        .rows()
        .iter()
        .filter(|row| row.rule == UnwindRule::EndOfStack)
        .count();
    // `clone` and, since 2.34, `clone3`.
    assert!((1..=3).contains(&ends), "{ends} ends of stack");
    assert_eq!(table.rule_at(Svma::new(0)), UnwindRule::Gap);
}
