//! C++ classes of outstanding blocks (`--classes`) are those that the program states for its own objects by
//! `typeid`, with symbols and stripped, for its own classes and the C++ library's; blocks that are no objects
//! have none.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use memleak_test::holders::{Held, LookedAt};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, copy_program, directory, run_tool};
use memleak_test::report::Report;

/// Number of objects by class, spelled without blanks.
type Classes = BTreeMap<String, u64>;
/// Classes of objects by address.
type Made = BTreeMap<String, String>;

fn build(directory: &Path) -> PathBuf {
    let flags = ["-O1", "-fno-optimize-sibling-calls"];
    compile(directory, "amounts/classes.cpp", &flags)
}

fn spelled(class: &str) -> String {
    class.replace(' ', "")
}

/// Traces the program, and returns what it says and the report.
#[track_caller]
fn trace(path: &Path, flags: &[&str]) -> (Made, Report) {
    let mut program = Program::start(path, &[]);
    program.expect("started");
    let memleak = Memleak::attach(program.pid(), &[&["-o", "0"], flags].concat());
    program.send_line("");
    let mut made = Made::new();
    for line in program.lines_before("ready") {
        let (address, class) = line.split_once(' ').expect("an address and a class");
        made.insert(address.to_owned(), spelled(class));
    }
    let report = memleak.finish();
    assert!(program.end().success());
    (made, report)
}

fn held(report: &Report) -> impl Iterator<Item = &Held> {
    report.stacks.iter().filter_map(|stack| stack.held.as_ref())
}

/// Blocks that were looked at, those of them without a class, and all.
fn numbers(looked: &LookedAt) -> [u64; 3] {
    [looked.blocks, looked.without_class, looked.of]
}

#[track_caller]
fn check(path: &Path) {
    let (made, report) = trace(path, &["--classes", "-a"]);
    let mut found = Classes::new();
    for class in held(&report).flat_map(|held| &held.classes) {
        *found.entry(spelled(&class.name)).or_default() += class.blocks;
    }
    let mut expected = Classes::new();
    for class in made.values() {
        *expected.entry(class.clone()).or_default() += 1;
    }
    // Of more than 4096 blocks of a site, 4096 are looked at, chosen at random.
    assert_eq!(expected.insert("shop::Many".to_owned(), 4096), Some(5000));
    assert_eq!(found, expected, "{report}");
    assert_eq!(found.len(), 9, "{found:?}");
    let looked = held(&report).map(|held| numbers(held.looked_at.as_ref().expect("without a verdict")));
    let mut looked: Vec<_> = looked.collect();
    looked.sort_unstable();
    let whole = (11..=18).map(|blocks| [blocks, 0, blocks]);
    // A quarter of the mixed blocks has zeros, another the address of code. A block that leads to no vtable
    // has no class.
    let others = [[40, 20, 40], [4096, 0, 5000]];
    assert_eq!(looked, whole.chain(others).collect::<Vec<_>>(), "{report}");
    check_listed(&made, &report);
}

/// Checks that each listed block has its class: all objects but those beyond the limit of a stack.
#[track_caller]
fn check_listed(made: &Made, report: &Report) {
    let listed = report.stacks.iter().flat_map(|stack| stack.listed());
    let mut with_class = 0;
    for block in listed {
        let class = block.class.as_deref().map(spelled);
        assert_eq!(class.as_ref(), made.get(&block.address), "{}", block.address);
        with_class += usize::from(class.is_some());
    }
    assert_eq!(with_class, made.len() - 4000);
}

/// Listed blocks have their classes with a verdict, too.
#[test]
fn listed_blocks_with_a_verdict() {
    let path = build(&directory("classes-verdict"));
    let (made, report) = trace(&path, &["--verdict", "-a"]);
    check_listed(&made, &report);
    let (_, report) = trace(&path, &["-a"]);
    let mut listed = report.stacks.iter().flat_map(|stack| stack.listed());
    assert!(listed.all(|block| block.class.is_none()));
}

/// A program with symbols, and a copy without any.
#[test]
fn classes_are_what_the_program_says() {
    let directory = directory("classes");
    let path = build(&directory);
    check(&path);
    let stripped = directory.join("stripped");
    copy_program(&path, &stripped);
    run_tool(Command::new("strip").arg(&stripped));
    check(&stripped);
}

/// Without the flag no block is read; text says what classes there are, and of how many blocks they are
/// known.
#[test]
fn classes_in_text() {
    let directory = directory("classes-text");
    let path = build(&directory);
    let (_, report) = trace(&path, &[]);
    assert!(report.stacks.iter().all(|stack| stack.held.is_none()), "{report}");
    let mut program = Program::start(&path, &[]);
    program.expect("started");
    let recording = directory.join("classes.memleak");
    let name = recording.to_str().expect("UTF-8");
    let flags = [
        "-o",
        "0",
        "--classes",
        "--format",
        "text",
        "-T",
        "100",
        "--record",
        name,
    ];
    let memleak = Memleak::attach(program.pid(), &flags);
    program.send_line("");
    program.lines_before("ready");
    let text = memleak.finish_text();
    let replayed = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(["report", name, "-T", "100"])
        .output()
        .expect("our own");
    let replayed = String::from_utf8(replayed.stdout).expect("UTF-8");
    for text in [&text, &replayed] {
        for line in [
            "class shop::Book (12 blocks)\n",
            "class shop::Book (20 blocks), 20 blocks without\n",
            "class shop::Many (4096 blocks); 4096 of 5000 blocks looked at\n",
        ] {
            assert!(text.contains(line), "no {line:?} in {text}");
        }
    }
    assert!(program.end().success());
}
