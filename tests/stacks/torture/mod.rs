//! Small programs, one for each thing that makes stacks hard to walk, have the stacks that an independent
//! witness in the process finds (see `memleak_test::witness`).
//!
//! Where libgcc's unwinder can walk to the end, memleak says exactly the same; where it cannot, the test
//! states what memleak says instead, with its cause. Objects that were taken apart after linking have their
//! own file, `objects.rs`, and code that is not all compiled ahead has `runtimes.rs`.

mod left_alone;
mod objects;
mod runtimes;

use std::path::PathBuf;
use std::process::Command;

use memleak_test::program::{compile, compile_as, directory};
use memleak_test::report::{Report, Stack};
use memleak_test::witness::{Accounts, READY_TO_DONE, Witness};

/// Compiler flags as distributions have them, without frame pointers.
const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-pthread"];

/// Compiles `source` in a directory for `test`. Returns the directory and the program's path.
fn build(test: &str, source: &str, flags: &[&str]) -> (PathBuf, PathBuf) {
    let directory = directory(&format!("torture-{test}"));
    let source = format!("torture/{source}");
    let path = compile(&directory, &source, &[&RELEASE[..], flags].concat());
    (directory, path)
}

#[track_caller]
fn watch(test: &str, source: &str, flags: &[&str], arguments: &[&str]) -> Accounts {
    let (directory, path) = build(test, source, flags);
    let mut command = Command::new(path);
    Witness::preloaded(&directory).watch(command.args(arguments), &READY_TO_DONE, &[])
}

/// Checks that both accounts are the same, that every stack has its end, and that there are at least
/// `least_stacks`.
#[track_caller]
fn check(test: &str, source: &str, flags: &[&str], arguments: &[&str], least_stacks: usize) -> Report {
    let accounts = watch(test, source, flags, arguments);
    accounts.check_equal();
    accounts.check_complete();
    let stacks = accounts.witnessed.len();
    assert!(stacks >= least_stacks, "{stacks} stacks:\n{}", accounts.report);
    accounts.report
}

/// Handlers on the thread's stack: nested, and interrupting any instruction.
#[test]
fn signals() {
    check("signals", "signals.c", &[], &[], 4 + 10);
}

/// Handlers on a separate stack: nested, and interrupting any instruction.
#[test]
fn signals_on_their_own_stack() {
    check("signals-stack", "signals.c", &[], &["other"], 4 + 10);
}

/// Coroutines by makecontext and swapcontext: each stack is complete. Below the function that it was made
/// for, which is all that libgcc's unwinder finds, is the first instruction of glibc's `__start_context`,
/// which has no caller.
#[test]
fn coroutines() {
    let accounts = watch("coroutines", "coroutines.c", &[], &[]).with_whole_witness();
    accounts.check_equal();
    accounts.check_complete();
    let report = &accounts.report;
    assert_eq!(report.through("coroutine").len(), report.stacks.len(), "{report}");
    assert_eq!(report.allocated().blocks, 23, "{report}");
    for stack in &report.stacks {
        let [.., coroutine, start] = &stack.frames[..] else {
            panic!("two frames at least:\n{stack}")
        };
        assert_eq!(coroutine.name(), "coroutine", "{stack}");
        assert!(start.module_name().starts_with("libc.so"), "{stack}");
    }
}

/// Threads of all kinds, and clone itself: each stack ends where the thread began.
#[test]
fn threads() {
    check("threads", "threads.c", &[], &[], 9);
}

/// Frames of 70,000 bytes and 1.5 MiB.
#[test]
fn large_frames() {
    check("frames", "frames.c", &[], &[], 4);
}

/// Frames whose return address is the first instruction of another function, and jumps instead of calls.
#[test]
fn tails() {
    let report = check("tails", "tails.c", &[], &[], 3);
    let stack = report.only_through("ending");
    let frame = stack.frames.iter().find(|frame| frame.name() == "ending");
    assert_eq!(frame.and_then(|frame| frame.offset), Some(7 + 5), "{stack}");
}

/// Realigned frames of dynamic size, with callee-saved registers in use.
#[test]
fn realigned_frames() {
    check("realigned", "realigned.c", &["-mavx2"], &[], 6);
}

/// Exceptions in flight.
#[test]
fn exceptions() {
    check("exceptions", "exceptions.cpp", &[], &[], 30);
}

/// Frames found by other registers than the stack and frame pointers.
#[test]
fn other_registers() {
    check("registers", "registers.c", &[], &[], 10);
}

/// A resolver of an indirect function, called when the function is called first: below the loader's
/// trampoline, which aligns the stack and finds its frame by `rbx`.
#[test]
fn resolver_below_the_loader() {
    let directory = directory("torture-lazy");
    let library = directory.join("liblazy.so");
    compile_as(&library, "stacks/lazy_library.c", &["-O2", "-shared", "-fPIC"]);
    let rpath = format!("-Wl,-rpath,{}", directory.display());
    let flags = ["-O2", "-Wl,-z,lazy", &rpath, library.to_str().expect("UTF-8")];
    let mut command = Command::new(compile(&directory, "stacks/lazy.c", &flags));
    let accounts = Witness::preloaded(&directory).watch(&mut command, &READY_TO_DONE, &[]);
    accounts.check_equal();
    accounts.check_complete();
    assert_eq!(accounts.witnessed.len(), 2, "{}", accounts.report);
}

/// A handler that interrupts the vDSO.
#[test]
fn vdso() {
    let report = check("vdso", "vdso.c", &[], &[], 10);
    let through = |stack: &&Stack| stack.frames.iter().any(|frame| frame.module_name() == "[vdso]");
    assert!(report.stacks.iter().filter(through).count() > 3, "{report}");
}

/// 511 frames and 512 are all there; of 513, one in the middle is left out, and the stack says so.
#[test]
fn depth_of_what_is_kept() {
    let directory = directory("torture-depth");
    let path = compile(
        &directory,
        "stacks/recursion.c",
        &[&RELEASE[..], &["-fno-optimize-sibling-calls"]].concat(),
    );
    // Besides the recursion there are the witness, main, and three frames below it.
    for (depth, whole) in [(506, true), (507, true), (508, false)] {
        let mut command = Command::new(&path);
        let accounts =
            Witness::preloaded(&directory).watch(command.arg(depth.to_string()), &READY_TO_DONE, &[]);
        accounts.check_complete();
        let left_out = accounts.report.stacks[0].left_out;
        let left_out = left_out.map(|left_out| (left_out.after, left_out.frames));
        if whole {
            accounts.check_equal();
            assert_eq!(left_out, None);
            continue;
        }
        let (call, amount) = accounts.reported.first_key_value().expect("a stack");
        let (whole, true_amount) = accounts.witnessed.first_key_value().expect("a stack");
        assert_eq!((left_out, amount), (Some((256, 1)), true_amount));
        let mut frames = whole.frames.clone();
        // The witness's own frame is the first of the 256.
        frames.remove(255);
        assert_eq!(call.frames, frames);
    }
}

/// A stack that begins with the address of a function that was never called: what lies above is not taken for
/// callers.
#[test]
fn hand_made_stack() {
    let accounts = watch("start", "start.c", &[], &[]);
    accounts.check_equal();
    assert_eq!(accounts.reported.len(), 1);
}
