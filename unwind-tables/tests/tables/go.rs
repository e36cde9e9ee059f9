//! Claim: in programs that Go's own linker makes, functions that leave their stack and functions without a
//! caller are recognized by Go's table of functions: for both architectures, position-independent, stripped.

use std::process::Command;

use crate::common::build::Scratch;
use object::{Object, ObjectSymbol};
use unwind_tables::addr::Svma;
use unwind_tables::compile;
use unwind_tables::image::Image;
use unwind_tables::rule::{Reason, UnwindRule};
use unwind_tables::verify::verify;

const SWITCH: UnwindRule = UnwindRule::Unsupported(Reason::StackSwitch);
/// Functions that switch to another stack at some instruction.
const SWITCHING: [&str; 4] = [
    "runtime.asmcgocall.abi0",
    "runtime.systemstack.abi0",
    "runtime.mcall",
    "runtime.morestack.abi0",
];
/// Functions without a caller.
const OUTERMOST: [&str; 2] = ["runtime.goexit.abi0", "runtime.rt0_go.abi0"];
/// Functions that the runtime marks as outermost, too, but that have a caller.
const CALLED: [&str; 2] = ["runtime.mstart.abi0", "runtime.sigtramp.abi0"];
/// Functions that neither leave the stack nor are outermost.
const OTHERS: [&str; 3] = ["runtime.mallocgc", "runtime.schedule", "main.main"];

/// Builds a Go program without C for an architecture, first with symbols, then stripped by the linker.
fn build(architecture: &str) -> [Vec<u8>; 2] {
    let scratch = Scratch::new();
    let (source, output) = (scratch.path().join("main.go"), scratch.path().join("out"));
    std::fs::write(&source, "package main\n\nfunc main() { println(1) }\n").expect("the source is written");
    ["", "-s -w"].map(|flags| {
        let mut go = Command::new("go");
        go.args(["build", "-buildmode=pie", "-ldflags", flags, "-o"])
            .args([&output, &source])
            .env("GOCACHE", scratch.path().join("cache"))
            .envs([
                ("GO111MODULE", "off"),
                ("CGO_ENABLED", "0"),
                ("GOARCH", architecture),
            ]);
        let done = go
            .output()
            .unwrap_or_else(|error| panic!("{error}: apt-get install golang-go"));
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        std::fs::read(&output).expect("Go's linker has written its output")
    })
}

/// Checks the program with symbols, and that the same addresses are marked in the stripped one, whose code is
/// the same.
#[track_caller]
fn check(architecture: &str) {
    let programs = build(architecture);
    let images: [Image; 2] = programs
        .each_ref()
        .map(|elf| compile(elf).expect("an ELF file").image.expect("rows"));
    let file = object::File::parse(&*programs[0]).expect("an ELF file");
    let symbol_of = |name: &str| {
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
        symbol.unwrap_or_else(|| panic!("no symbol {name}"))
    };
    let marked_with = |wanted: UnwindRule, name: &str| {
        let symbol = symbol_of(name);
        let is_marked = images.each_ref().map(|image| {
            let rules = (0..symbol.size()).map(|offset| image.rule_at(Svma::new(symbol.address() + offset)));
            rules.map(|rule| rule == wanted).collect::<Vec<_>>()
        });
        assert_eq!(is_marked[0], is_marked[1], "{name}, as it is and stripped");
        is_marked[0].clone()
    };
    let marked = |name: &str| marked_with(SWITCH, name);
    for name in SWITCHING {
        let is_marked = marked(name);
        let before = is_marked.iter().take_while(|is_marked| !**is_marked).count();
        assert!(
            (8..is_marked.len()).contains(&before),
            "{name}: {before} bytes come before"
        );
        assert!(
            is_marked[before..].iter().all(|is_marked| *is_marked),
            "{name}, to its end"
        );
    }
    for name in OTHERS {
        assert!(!marked(name).contains(&true), "{name}");
    }
    for name in OUTERMOST {
        let is_end = marked_with(UnwindRule::EndOfStack, name);
        assert!(is_end.iter().all(|is_end| *is_end), "{name}: {is_end:?}");
    }
    // The stripped program has no CFI: in newer versions of Go, CFI says of these functions, too, that they
    // are outermost.
    let [_, stripped] = &images;
    for name in CALLED {
        let start = Svma::new(symbol_of(name).address());
        assert_eq!(stripped.rule_at(start), UnwindRule::Gap, "{name}");
    }
    for elf in &programs {
        let image = compile(elf).expect("an ELF file").image;
        let verified = verify(elf, image.as_ref()).expect("an ELF file");
        assert_eq!(verified.wrong, 0, "{verified:?}");
    }
}

#[test]
fn ends_in_x86_64() {
    check("amd64");
}

#[test]
fn ends_in_aarch64() {
    check("arm64");
}
