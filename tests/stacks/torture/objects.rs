//! Programs that are linked or taken apart in unusual ways have the stacks that an independent witness finds
//! (see `memleak_test::witness`).
//!
//! Sections that libgcc's unwinder needs and memleak does not are taken away from a copy of a program: then
//! the witness in the whole program speaks for the copy, whose code is the same at the same addresses.

use std::fs;
use std::path::Path;
use std::process::Command;

use memleak_test::program::{compile, compile_as, directory, run_tool};
use memleak_test::report::Report;
use memleak_test::witness::{Accounts, Call, READY_TO_DONE, Witness};

/// Compiler flags as distributions have them, without frame pointers.
const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-pthread"];

/// Program to take apart: its CFI has expressions.
const SOURCE: &str = "torture/realigned.c";
const REALIGNED: [&str; 4] = ["-O2", "-fomit-frame-pointer", "-mavx2", "-g"];
/// Minimum number of its stacks.
const MIN_STACKS: usize = 6;

#[track_caller]
pub(super) fn check_accounts(accounts: Accounts, least_stacks: usize) -> Report {
    accounts.check_equal();
    accounts.check_complete();
    let stacks = accounts.witnessed.len();
    assert!(stacks >= least_stacks, "{stacks} stacks:\n{}", accounts.report);
    accounts.report
}

/// Checks a static program, with the witness linked in. If it is not position-independent, it has no index of
/// its CFI but registers it, all but that of `_start`.
#[track_caller]
fn check_static(test: &str, source: &str, kind: &str, least_stacks: usize) {
    let directory = directory(&format!("torture-objects-{test}"));
    let (witness, mut flags) = Witness::within(&directory, "gcc");
    flags.extend([&RELEASE[..], &[kind]].concat().into_iter().map(str::to_owned));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let path = compile(&directory, source, &flags);
    let accounts = witness.watch(&mut Command::new(path), &READY_TO_DONE, &[]);
    let registers = kind == "-static";
    check_accounts(
        if registers {
            accounts.with_witnessed_ends()
        } else {
            accounts
        },
        least_stacks,
    );
}

/// A static program: exceptions in flight.
#[test]
fn static_exceptions() {
    check_static("static", "torture/exceptions.cpp", "-static", 30);
}

/// A static PIE, which has the loader in the program: exceptions in flight.
#[test]
fn static_pie_exceptions() {
    check_static("static-pie", "torture/exceptions.cpp", "-static-pie", 30);
}

/// Handlers in a static program.
#[test]
fn static_signals() {
    check_static("static-signals", "torture/signals.c", "-static", 4 + 10);
}

/// Threads of a static program.
#[test]
fn static_threads() {
    check_static("static-threads", "torture/threads.c", "-static-pie", 9);
}

/// Runs the program at `path` under memleak and the witness, which is compiled in `directory`.
#[track_caller]
pub(super) fn watch(directory: &Path, path: &Path) -> Accounts {
    Witness::preloaded(directory).watch(&mut Command::new(path), &READY_TO_DONE, &[])
}

/// Returns memleak's account of the program at `changed` and the witness's of the program at `whole`.
#[track_caller]
pub(super) fn watch_both(directory: &Path, whole: &Path, changed: &Path) -> Accounts {
    let witnessed = watch(directory, whole).witnessed;
    Accounts {
        witnessed,
        ..watch(directory, changed)
    }
}

/// Checks memleak's account of a program that `change` made of another one, given the paths of both.
#[track_caller]
fn check_changed(test: &str, change: impl FnOnce(&Path, &Path)) {
    let directory = directory(&format!("torture-objects-{test}"));
    let changed = directory.join("changed");
    fs::create_dir(&changed).expect("a new directory");
    let whole = compile(&directory, SOURCE, &REALIGNED);
    let changed = changed.join(whole.file_name().expect("a name"));
    change(&whole, &changed);
    check_accounts(watch_both(&directory, &whole, &changed), MIN_STACKS);
}

#[track_caller]
fn objcopy(arguments: &[&str], from: &Path, to: &Path) {
    run_tool(Command::new("objcopy").args(arguments).arg(from).arg(to));
}

/// A program without symbols and debug information.
#[test]
fn stripped() {
    check_changed("stripped", |whole, changed| {
        objcopy(&["--strip-all"], whole, changed);
    });
}

/// A program without the section that finds CFI.
#[test]
fn without_eh_frame_hdr() {
    check_changed("no-hdr", |whole, changed| {
        objcopy(&["--remove-section=.eh_frame_hdr"], whole, changed);
    });
}

/// A program without section headers, as some packers leave it: CFI is found by the program headers.
#[test]
fn without_section_headers() {
    check_changed("no-sections", |whole, changed| {
        let mut bytes = fs::read(whole).expect("it was compiled");
        // e_shoff, then e_shentsize, e_shnum and e_shstrndx.
        bytes[40..48].fill(0);
        bytes[58..64].fill(0);
        fs::write(changed, bytes).expect("it can be written");
        run_tool(Command::new("chmod").arg("+x").arg(changed));
    });
}

/// Compiles the program with `flags`, in a separate directory.
#[track_caller]
fn compile_apart(directory: &Path, name: &str, flags: &[&str]) -> std::path::PathBuf {
    let directory = directory.join(name);
    fs::create_dir(&directory).expect("a new directory");
    compile(&directory, SOURCE, &[&REALIGNED[..], flags].concat())
}

const NO_EH_FRAME: [&str; 2] = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"];

/// A program with CFI for debuggers only.
#[test]
fn only_debug_frame() {
    let directory = directory("torture-objects-debug_frame");
    let whole = compile_apart(&directory, "whole", &[]);
    let changed = compile_apart(&directory, "changed", &NO_EH_FRAME);
    check_accounts(watch_both(&directory, &whole, &changed), MIN_STACKS);
}

/// A program with frame pointers only. (Without realigned frames, in which the frame pointer is not below its
/// caller's.)
#[test]
fn only_frame_pointers() {
    let directory = directory("torture-objects-fp");
    let flags = ["-g0", "-fno-omit-frame-pointer", "-mno-avx", "-DPLAIN"];
    let whole = compile_apart(&directory, "whole", &flags);
    let changed = compile_apart(&directory, "changed", &[&flags[..], &NO_EH_FRAME].concat());
    let report = check_accounts(watch_both(&directory, &whole, &changed), MIN_STACKS);
    assert!(report.unwinding.frames.fp > 0, "{report}");
}

/// A program with neither CFI nor frame pointers: the frames that are found are of the true stack, in its
/// order, and every stack ends by `no_cfi`.
#[test]
fn neither_cfi_nor_frame_pointers() {
    let directory = directory("torture-objects-neither");
    let whole = compile_apart(&directory, "whole", &["-g0"]);
    let changed = compile_apart(&directory, "changed", &[&["-g0"][..], &NO_EH_FRAME].concat());
    let accounts = watch_both(&directory, &whole, &changed);
    for call in accounts.reported.keys() {
        let mut truths = accounts.witnessed.keys();
        assert!(truths.any(|truth| is_part(call, truth)), "{}", accounts.report);
    }
    for stack in &accounts.report.stacks {
        assert_eq!(stack.end, "no_cfi", "{stack}");
    }
}

/// Returns whether the frames of `part` are frames of `whole`, in the same order and from the same first one.
pub(super) fn is_part(part: &Call, whole: &Call) -> bool {
    let mut rest = whole.frames.iter();
    part.frames.first() == whole.frames.first()
        && part.frames.iter().all(|frame| rest.any(|other| other == frame))
}

/// Checks a static program with another C library. Debian's musl has no CFI, so stacks end in it and say so.
#[track_caller]
fn check_musl(test: &str, source: &str, least_stacks: usize) {
    let directory = directory(&format!("torture-objects-musl-{test}"));
    let (witness, flags) = Witness::within(&directory, "musl-gcc");
    let path = directory.join(test);
    let mut compile = Command::new("musl-gcc");
    compile
        .arg("-o")
        .arg(&path)
        .arg(memleak_test::program::source(source))
        .args(flags)
        .args(RELEASE)
        .args(["-static", "-Wl,--eh-frame-hdr"]);
    run_tool(&mut compile);
    let accounts = witness.watch(&mut Command::new(path), &READY_TO_DONE, &[]);
    for stack in &accounts.report.stacks {
        assert_eq!(stack.end, "no_cfi", "{stack}");
    }
    let accounts = accounts.without_frame_pointers();
    accounts.check_equal();
    assert!(accounts.witnessed.len() >= least_stacks, "{}", accounts.report);
}

/// Frames of all shapes, and below them musl.
#[test]
fn musl() {
    check_musl("realigned", "torture/realigned.c", MIN_STACKS);
}

/// musl's return from a signal handler has no CFI either; it is recognized by its code.
#[test]
fn musl_signals() {
    check_musl("signals", "torture/signals.c", 4 + 10);
}

/// Runs a Rust program, compiled with `flags`, under memleak and the witness.
#[track_caller]
fn watch_rust(test: &str, flags: &[&str]) -> Accounts {
    let directory = directory(&format!("torture-objects-rust-{test}"));
    let path = directory.join("unwinding");
    let mut compile = Command::new("rustc");
    compile
        .args(["--edition=2021", "-Copt-level=2", "-o"])
        .arg(&path)
        .args(flags)
        .arg(memleak_test::program::source("torture/unwinding.rs"));
    run_tool(&mut compile);
    watch(&directory, &path)
}

/// Iterators, trait objects, threads; destructors while a panic unwinds.
#[test]
fn rust() {
    check_accounts(watch_rust("unwind", &["-Cpanic=unwind"]), 50);
}

/// Without unwinding, the compiler's own `main` has neither CFI nor a frame pointer. Both unwinders get
/// there.
#[test]
fn rust_that_aborts() {
    let accounts = watch_rust("abort", &["-Cpanic=abort"]);
    accounts.check_equal();
    assert!(accounts.witnessed.len() > 50, "{}", accounts.report);
    for stack in &accounts.report.stacks {
        let last = stack.frames.last().expect("it has frames");
        let expected = if last.name() == "main" {
            "no_cfi"
        } else {
            "complete"
        };
        assert_eq!(stack.end, expected, "{stack}");
    }
}

/// A library whose CFI is for debuggers only, in a program that has the other kind.
#[test]
fn library_with_debug_frame() {
    let directory = directory("torture-objects-library");
    let library = directory.join("liblazy.so");
    let shared = ["-O2", "-g", "-shared", "-fPIC", "-DWITHOUT_RESOLVER"];
    let flags = [&shared[..], &NO_EH_FRAME].concat();
    compile_as(&library, "stacks/lazy_library.c", &flags);
    let rpath = format!("-Wl,-rpath,{}", directory.display());
    let path = compile(
        &directory,
        "stacks/lazy.c",
        &["-O2", "-Wl,-z,now", &rpath, library.to_str().expect("UTF-8")],
    );
    let report = watch(&directory, &path).report;
    let stack = report.only_through("leak_in_library");
    stack.check(&[
        "malloc",
        "leak_in_library",
        "first_call",
        "main",
        "__libc_start_call_main",
        "__libc_start_main*",
        "_start",
    ]);
}
