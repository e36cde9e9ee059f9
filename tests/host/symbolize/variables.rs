//! Variables by address, as `nm` has them, with the lines that declare them.

use std::collections::HashSet;

use memleak::symbolize::{VariableFinder, VariablePlace};

use super::*;

/// Variables of a program: symbol, name for people, and how the line that declares it begins.
const VARIABLES: [(&str, &str, &str); 3] = [
    ("g_sessions", "g_sessions", "std::map<int, Session *> g_sessions"),
    (
        "_ZZ5cachevE7entries",
        "cache()::entries",
        "static std::unordered_map",
    ),
    ("t_buffers", "t_buffers", "thread_local std::vector"),
];

fn program(directory: &Path, flags: &[&str]) -> PathBuf {
    build(
        directory,
        "verdicts/holders.cpp",
        &[&["-pthread", "-ldl", "-Wl,--build-id"], flags].concat(),
    )
}

/// Returns a variable's place as `nm` has it.
fn place(file: &Path, symbol: &str) -> VariablePlace {
    let listing = run("nm", &[text(file)]);
    let line = listing
        .lines()
        .find(|line| line.split(' ').next_back() == Some(symbol));
    let value = line.and_then(|line| line.split(' ').next()).expect(symbol);
    let value = u64::from_str_radix(value, 16).expect("a number");
    match symbol {
        "t_buffers" => VariablePlace::ThreadLocal(value),
        _ => VariablePlace::Memory(value),
    }
}

fn inside(place: VariablePlace) -> VariablePlace {
    match place {
        VariablePlace::Memory(address) => VariablePlace::Memory(address + 8),
        VariablePlace::ThreadLocal(offset) => VariablePlace::ThreadLocal(offset + 8),
    }
}

/// Checks what is found in `file`, whose variables are where `whole` has them.
#[track_caller]
fn check(finder: &VariableFinder, file: &Path, whole: &Path) {
    let bytes = fs::read(file).expect("a readable file");
    let path = Path::new("/opt/program");
    let variables = finder.variables(&bytes, path);
    let source = fs::read_to_string(source("verdicts/holders.cpp")).expect("the source");
    let places: HashSet<_> = VARIABLES
        .iter()
        .map(|(symbol, ..)| place(whole, symbol))
        .collect();
    let declared = finder.declarations(&bytes, path, &places);
    for (symbol, name, declaration) in VARIABLES {
        let place = place(whole, symbol);
        let found = variables.find(inside(place)).expect(symbol);
        assert_eq!((found.name().as_str(), found.begin), (name, place));
        let line = source
            .lines()
            .position(|line| line.trim_start().starts_with(declaration))
            .expect("a line")
            + 1;
        let (file, at) = &declared[&place];
        assert!(file.ends_with("verdicts/holders.cpp"), "{file}");
        assert_eq!(usize::try_from(*at), Ok(line), "{symbol}");
    }
    let VariablePlace::Memory(sessions) = place(whole, "g_sessions") else {
        panic!("it is in memory");
    };
    assert_eq!(variables.section(sessions).map(|(name, _)| name), Some(".bss"));
    assert_eq!(variables.find(VariablePlace::Memory(0)), None);
    assert_eq!(variables.section(0), None);
}

/// Variables are found by the program's own tables, and by those of its debug file, with DWARF 4 and 5.
#[test]
fn variables_and_declarations() {
    let directory = directory("variables");
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let whole = program(&directory, &[version]);
        check(&VariableFinder::new(Vec::new()), &whole, &whole);
        let debug = directory.join("root/usr/lib/debug").join(build_id_path(&whole));
        fs::create_dir_all(debug.parent().expect("a directory")).expect("a new directory");
        keep_debug(&whole, &debug);
        let stripped = strip(&whole, &directory);
        check(
            &VariableFinder::new(vec![directory.join("root")]),
            &stripped,
            &whole,
        );
        let without = VariableFinder::new(Vec::new());
        let bytes = fs::read(&stripped).expect("a readable file");
        let variables = without.variables(&bytes, &stripped);
        assert_eq!(variables.find(place(&whole, "g_sessions")), None);
    }
}

/// Damaged files give fewer variables, or others, and do not end this program.
#[test]
fn damaged_variables() {
    let file = program(&directory("variables-damaged"), &["-g"]);
    let bytes = fs::read(&file).expect("a readable file");
    let places: HashSet<_> = VARIABLES
        .iter()
        .map(|(symbol, ..)| place(&file, symbol))
        .collect();
    let finder = VariableFinder::new(Vec::new());
    let mut random = 0x9e37_79b9_7f4a_7c15;
    let mut found = 0;
    for round in 0..200 {
        let mut damaged = bytes.clone();
        damaged::damage(&mut damaged, round, &mut random);
        let variables = finder.variables(&damaged, &file);
        found += places
            .iter()
            .filter(|place| variables.find(**place).is_some())
            .count();
        finder.declarations(&damaged, &file, &places);
    }
    assert!(found > 0, "all of them were damaged");
    assert!(finder.declarations(b"#!/bin/sh\n", &file, &places).is_empty());
}
