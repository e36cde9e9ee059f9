//! Names, inlined functions and lines of ordinary files are those of their sources.

use leak_report::model::Gap;

use super::*;

/// The value of a symbol in the dynamic table, by `nm`.
pub(super) fn dynamic_symbol(file: &Path, name: &str) -> u64 {
    let listing = run("nm", &["-D", "--defined-only", text(file)]);
    let line = listing.lines().find(|line| {
        let symbol = line.rsplit(' ').next().unwrap_or("");
        symbol.split('@').next() == Some(name)
    });
    let value = line.and_then(|line| line.split(' ').next()).expect(name);
    u64::from_str_radix(value, 16).expect("a number")
}

/// Public functions of the system's libraries come out under the names in their documentation, from entry to
/// inside; a return address names the function of the call before it.
#[test]
fn system_libraries() {
    let cases = [
        ("libstdc++.so.6", "_Znwm", "operator new(unsigned long)"),
        ("libc.so.6", "malloc", "malloc"),
        ("libc.so.6", "__libc_start_main", "__libc_start_main"),
    ];
    for (file, linker_name, shown) in cases {
        let file = library(file);
        let start = dynamic_symbol(&file, linker_name);
        let mut subject = Subject::new(&file);
        let name = |offset| Some((shown.to_owned(), Some(offset)));
        assert_eq!(subject.name(start, true), name(0));
        assert_eq!(subject.name(start + 0x1a, true), name(0x1a));
        assert_eq!(subject.name(start + 1, false), name(1));
        assert_ne!(subject.name(start, false), name(0));
    }
}

/// Checks that names, inlined functions, files and lines are binutils', for each call of a program built by
/// `flags`.
#[track_caller]
fn check_against_binutils(test: &str, flags: &[&str]) {
    let program = build(&directory(test), "symbols/inlined.cpp", flags);
    let mut subject = Subject::new(&program);
    let addresses = subject.return_addresses();
    let mut depths = Vec::new();
    for (&address, expected) in addresses.iter().zip(binutils::calls(&program, &addresses)) {
        let found = subject.at(address, false);
        // Where there are no lines, binutils names the file after the symbol table's last file symbol.
        let has_lines = expected.last().is_some_and(|(_, file, _)| file == "inlined.cpp");
        match has_lines {
            true => assert_eq!(own_chain(&found), expected, "{flags:?} at {address:#x}"),
            false => assert_eq!(own_chain(&found)[0].0, expected[0].0, "{flags:?} at {address:#x}"),
        }
        depths.push(found.inlined.len());
    }
    assert!(
        depths.iter().filter(|&&depth| depth == 2).count() >= 2,
        "{flags:?}: {depths:?}"
    );
}

/// Inlined functions and lines, by each version of DWARF that compilers write.
#[test]
fn lines_are_those_of_binutils() {
    check_against_binutils("dwarf5", &["-g", "-gdwarf-5"]);
    check_against_binutils("dwarf4", &["-g", "-gdwarf-4"]);
    check_against_binutils("sections", &["-g", "-ffunction-sections"]);
}

/// The innermost inlined function comes first, and the address belongs to the function that contains it.
#[test]
fn an_inline_chain() {
    let program = build(&directory("chain"), "symbols/inlined.cpp", &["-g"]);
    let mut subject = Subject::new(&program);
    let chains: Vec<Vec<Level>> = subject
        .return_addresses()
        .into_iter()
        .map(|address| own_chain(&subject.at(address, false)))
        .collect();
    let level = |name: &str, line: &str| (name.to_owned(), "inlined.cpp".to_owned(), line.to_owned());
    let expected = vec![
        level("store::Cache::grow(unsigned long)", "11"),
        level("store::Cache::add(int)", "17"),
        level("fill(store::Cache&, int)", "24"),
    ];
    assert!(chains.contains(&expected), "{chains:#?}");
}

/// Rust names come out without their hash.
#[test]
fn rust_symbol() {
    std::hint::black_box(rust_landmark as fn() -> u32)();
    let own = std::env::current_exe().expect("this test");
    let listing = run("nm", &[text(&own)]);
    let line = listing
        .lines()
        .find(|line| line.contains("rust_landmark"))
        .expect("the landmark");
    let start = u64::from_str_radix(line.split(' ').next().expect("a value"), 16).expect("a number");
    let mut subject = Subject::new(&own);
    assert_eq!(
        subject.name(start, true),
        Some((concat!(module_path!(), "::rust_landmark").to_owned(), Some(0)))
    );
    assert!(
        subject
            .at(start, true)
            .file
            .as_deref()
            .is_some_and(|file| file.ends_with("tests/host/symbolize/names.rs"))
    );
}

#[inline(never)]
fn rust_landmark() -> u32 {
    std::hint::black_box(7)
}

/// Addresses outside all symbols have no name, and the reason says so.
#[test]
fn outside_all_symbols() {
    let libc = library("libc.so.6");
    let mut subject = Subject::new(&libc);
    for address in [0, 1, 0x40, u64::MAX, 1 << 46] {
        let found = subject.at(address, true);
        assert_eq!(
            (&found.symbol, found.gap),
            (&None, Some(Gap::NotInSymbol)),
            "at {address:#x}"
        );
    }
}
