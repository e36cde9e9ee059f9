//! Programs on which verdicts are tried know the truth about themselves: the kinds of their blocks, and that
//! blocks whose pointers they move are reachable all the time.

use std::process::Command;

use memleak_test::program::{Program, compile, compile_as, directory};

const FLAGS: [&str; 6] = [
    "-std=c++17",
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-pthread",
    "-ldl",
];

/// Minimum number of kinds of blocks.
const KINDS: usize = 44;

/// Each kind has a function of its name, below which its blocks are allocated, and its name begins with the
/// truth about them.
#[test]
fn kinds_are_told_apart_by_functions() {
    let directory = directory("verdicts-kinds");
    let library = directory.join("unloaded.so");
    compile_as(&library, "verdicts/unloaded.c", &["-shared", "-fPIC"]);
    let path = compile(&directory, "verdicts/kinds.cpp", &FLAGS);
    let output = Command::new("nm")
        .arg(&path)
        .output()
        .expect("nm (apt-get install binutils)");
    let symbols = String::from_utf8_lossy(&output.stdout).into_owned();

    let mut program = Program::start(&path, &["attached", "10"]);
    program.send_line("");
    let mut kinds = 0;
    loop {
        let line = program.line();
        if line == "ready" {
            break;
        }
        let words: Vec<&str> = line.split(' ').collect();
        let [name, blocks, truth, parts @ ..] = words.as_slice() else {
            panic!("{line}")
        };
        let number = |word: &str| word.parse::<u64>().expect("a number");
        assert!(name.starts_with(&format!("{truth}_")), "{line}");
        assert!(
            symbols
                .lines()
                .any(|symbol| symbol.ends_with(&format!(" T {name}"))),
            "no function: {line}"
        );
        assert!((1..=10).contains(&number(blocks)), "{line}");
        match *truth {
            "lost" => assert_eq!(
                parts.iter().copied().map(number).sum::<u64>(),
                number(blocks),
                "{line}"
            ),
            _ => assert!(parts.is_empty(), "{line}"),
        }
        kinds += 1;
    }
    assert!(kinds >= KINDS, "{kinds} kinds");
    assert!(program.end().success());
}

/// Runs the mover for a while, and returns its last account.
fn moved(name: &str, arguments: &[&str]) -> String {
    let path = compile(&directory(name), "verdicts/mover.c", &["-O2", "-g", "-pthread"]);
    let mut program = Program::start(&path, arguments);
    program.expect("started");
    program.step("ready");
    std::thread::sleep(std::time::Duration::from_millis(100));
    program.send_line("");
    let account = program.line();
    if arguments.contains(&"free") {
        program.expect("freed");
        program.send_line("");
    }
    assert!(program.await_end().success(), "{account}");
    account
}

/// Blocks are still there, at whatever rate and by however many threads their pointers are moved.
#[test]
fn what_is_moved_is_held() {
    let account = moved("verdicts-moved", &["20000", "4000000", "100", "max", "2", "free"]);
    let moves = account
        .strip_prefix("held 20000 of 20000, ")
        .and_then(|rest| rest.strip_suffix(" moves"));
    assert!(
        moves.expect(&account).parse::<u64>().expect("a number") > 100,
        "{account}"
    );
    let account = moved("verdicts-still", &["1000", "100000", "0", "0"]);
    assert_eq!(account, "held 1000 of 1000, 0 moves");
}
