//! Processes that sample their allocations themselves and announce them by USDT probes (`otel_memory`): each
//! announced block is recorded as what it stands for, at the stack that allocated it, whatever the provider.

use std::path::{Path, PathBuf};
use std::process::Command;

use memleak_test::attach_paths::attach_paths;
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile_as, directory, run_tool, source};
use memleak_test::report::{Amount, Report, from_main};

/// The header of USDT probes does not depend on the machine, but is where this machine's compiler finds it.
const FLAGS: [&str; 4] = [
    "-fno-optimize-sibling-calls",
    "-Wall",
    "-idirafter",
    "/usr/include/x86_64-linux-gnu",
];

fn library(directory: &Path, flags: &[&str]) -> PathBuf {
    let flags = [&FLAGS[..], &["-shared", "-fPIC"], flags].concat();
    compile_as(&directory.join("libprovider.so"), "announced/provider.c", &flags)
}

/// Compiles a program whose own code announces blocks.
fn whole_program(directory: &Path, flags: &[&str]) -> PathBuf {
    let provider = source("announced/provider.c");
    let flags = [&FLAGS[..], flags, &[provider.to_str().expect("UTF-8")]].concat();
    compile_as(&directory.join("whole"), "announced/blocks.c", &flags)
}

/// Compiles a program with a library that announces blocks.
fn with_library(directory: &Path, flags: &[&str]) -> PathBuf {
    let library = library(directory, flags);
    let flags = [
        &FLAGS,
        flags,
        &[library.to_str().expect("UTF-8"), "-Wl,-rpath,$ORIGIN"],
    ]
    .concat();
    compile_as(&directory.join("linked"), "announced/blocks.c", &flags)
}

/// Traces `program` from "ready" to its end, and checks that its probes have listeners only meanwhile.
#[track_caller]
fn trace(program: &Path, flags: &[&str]) -> (Report, Vec<String>) {
    let mut program = Program::start(program, &[]);
    program.expect("listeners 0 0");
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), flags);
    program.send_line("");
    program.expect("listeners 1 1");
    program.expect("done");
    let (report, messages) = memleak.finish_with_messages();
    program.send_line("");
    program.expect("listeners 0 0");
    assert!(program.end().success());
    (report, messages)
}

/// Checks what `announced/blocks.c` announced. `own`: frames of the provider that are shown.
#[track_caller]
fn check(report: &Report, own: &[&str]) {
    report.check_sums();
    assert_eq!(report.source, "usdt");
    assert_eq!(
        report.sampling.as_ref().map(|sampling| &*sampling.method),
        Some("provider")
    );

    let stack = report.only_through("some_freed");
    stack.check_names(&from_main(&[own, &["some_freed", "main"]].concat()));
    assert_eq!(stack.end, "complete", "{stack}");
    assert_eq!(stack.allocator, "otel_memory:alloc");
    let amount = |bytes, blocks| Amount { bytes, blocks };
    assert_eq!(stack.allocated, amount(600_000, 600));
    assert_eq!(stack.outstanding, amount(200_000, 200));

    let again = report.through("allocated_again");
    let outstanding: Amount = again.iter().map(|stack| stack.outstanding).sum();
    assert_eq!((again.len(), outstanding), (2, amount(300, 1)));
    assert_eq!(report.events.missed_frees, 1);
    assert_eq!(
        (report.events.unknown_frees, report.events.allocations),
        (3, 600 + 2 + 3)
    );

    let large = report.through("large");
    let outstanding: Amount = large.iter().map(|stack| stack.outstanding).sum();
    assert_eq!(outstanding, amount((3 << 33) + 4096, 3));
}

/// Blocks that a library announces are recorded exactly, by each way to attach; its frames are left out.
#[test]
fn by_a_library() {
    let directory = directory("announced-library");
    let program = with_library(&directory, &["-O2"]);
    for way in attach_paths() {
        let (report, messages) = trace(&program, &["--attach", way]);
        check(&report, &[]);
        let told = |message: &String| message.contains("2 USDT probes (otel_memory)");
        assert!(messages.iter().any(told), "{messages:#?}");
    }
}

/// Blocks that the program itself announces are recorded exactly, whether arguments are in registers or on
/// the stack; only the frame of the probe is left out.
#[test]
fn by_the_program() {
    for level in ["-O0", "-O2"] {
        let directory = directory(&format!("announced-program{level}"));
        let (report, _) = trace(&whole_program(&directory, &[level]), &[]);
        check(&report, &["announced_block"]);
    }
}

/// A library that is loaded later is found then; before it is there, memleak says that nothing is announced.
#[test]
fn by_a_library_that_is_loaded_later() {
    let directory = directory("announced-late");
    let library = library(&directory, &["-O2"]);
    let program = compile_as(
        &directory.join("late"),
        "announced/blocks.c",
        &[&FLAGS[..], &["-O2", "-DLATE", "-ldl"]].concat(),
    );
    let mut program = Program::start(&program, &[library.to_str().expect("UTF-8")]);
    program.expect("loading");
    let memleak = Memleak::attach(program.pid(), &["--source", "usdt"]);
    program.send_line("");
    // A tracer that listens to allocations listens to frees as well.
    program.expect("listeners 1 1");
    program.step("ready");
    program.expect("listeners 1 1");
    program.expect("done");
    let (report, messages) = memleak.finish_with_messages();
    check(&report, &[]);
    let told =
        |message: &String| message.contains("announces nothing yet") && message.contains("--source uprobe");
    assert!(messages.iter().any(told), "{messages:#?}");
}

/// A provider that was written from the contract's text alone, in another language, with none of its usual
/// tools.
#[test]
fn by_another_language() {
    let directory = directory("announced-rust");
    let output = directory.join("announced");
    let mut command = Command::new("rustc");
    command.args(["--edition=2024", "-O", "-o"]).arg(&output);
    run_tool(command.arg(source("announced/announced.rs")));
    let mut program = Program::start(&output, &[]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    let report = memleak.finish();
    assert_eq!(report.source, "usdt");
    let stack = report.only_through("announced::leak");
    assert_eq!(stack.end, "complete", "{stack}");
    assert_eq!(
        stack.outstanding,
        Amount {
            bytes: 64 * 100 * 16,
            blocks: 100 * 16
        }
    );
    assert_eq!(
        report.only_through("announced::churn").outstanding,
        Amount { bytes: 0, blocks: 0 }
    );
}

/// A process that announces its allocations can still be traced by its allocator's functions; so it is if
/// something is asked for that only those can tell.
#[test]
fn by_its_allocator() {
    let directory = directory("announced-uprobe");
    let path = with_library(&directory, &["-O2"]);
    for flags in [
        &["--source", "uprobe"][..],
        &["--sample-bytes", "1"],
        &["-O", "libc.so.6"],
    ] {
        let mut program = Program::start(&path, &[]);
        program.expect("listeners 0 0");
        program.expect("ready");
        let memleak = Memleak::attach(program.pid(), flags);
        program.send_line("");
        program.expect("listeners 0 0");
        program.expect("done");
        let report = memleak.finish();
        assert_eq!(report.source, "uprobe");
        let kept = report.only_through("some_freed").outstanding;
        assert_eq!(
            kept,
            Amount {
                bytes: 40_000,
                blocks: 40
            },
            "{flags:?}"
        );
        program.send_line("");
        program.expect("listeners 0 0");
        assert!(program.end().success());
    }
}
