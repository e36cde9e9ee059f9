//! Stacks of known programs have the expected frames, in order, found as expected.
//!
//! Every program stands still while probes are attached and while the report is made, so a report is about
//! just the calls between.

use std::path::{Path, PathBuf};
use std::process::Command;

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, compile_as, directory, directory_path, run_tool};
use memleak_test::report::{Report, Stack, from_main};

/// Compiler flags as distributions have them, without frame pointers. Recursion is not turned into loops.
pub(crate) const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

/// Frames below a thread's first function, innermost first.
pub(super) const BELOW_THREAD: [&str; 2] = [
    "start_thread",
    if cfg!(target_arch = "aarch64") {
        "thread_start"
    } else {
        "clone3"
    },
];

fn flags<'a>(more: &[&'a str]) -> Vec<&'a str> {
    RELEASE.iter().chain(more).copied().collect()
}

/// Traces `program` from its "ready" to its "done".
#[track_caller]
fn trace(program: &mut Program, memleak_flags: &[&str]) -> Report {
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), memleak_flags);
    program.step("done");
    memleak.finish()
}

/// Compiles `source` with `more` flags and traces it.
#[track_caller]
fn trace_source(test: &str, source: &str, more: &[&str], arguments: &[&str]) -> Report {
    let path = compile(&directory(&format!("known-{test}")), source, &flags(more));
    let report = trace(&mut Program::start(&path, arguments), &[]);
    report.check_sums();
    report
}

/// Checks that frames are found by `expected`, innermost first, the last of which stands for all that follow.
#[track_caller]
fn check_found_by(stack: &Stack, expected: &[&str]) {
    for (index, frame) in stack.frames.iter().enumerate() {
        let way = expected[index.min(expected.len() - 1)];
        assert_eq!(frame.found_by, way, "frame {index} of\n{stack}");
    }
}

/// Compiles the leaker with `more` flags, and returns a report with at least one of its leaks.
#[track_caller]
fn trace_leaker(test: &str, more: &[&str], memleak_flags: &[&str]) -> Report {
    let path = compile(
        &directory(&format!("known-{test}")),
        "amounts/leaker.cpp",
        &flags(more),
    );
    let mut leaker = Program::start(&path, &["0", "1000"]);
    // Once it answers, it stands still until the next line.
    leaker.send_line("");
    leaker.line();
    let memleak = Memleak::attach_reporting(leaker.pid(), memleak_flags, &["1", "2"]);
    leaker.send_line("");
    let first = memleak.report();
    let second = memleak.last_report();
    assert!(
        second.allocated().blocks >= first.allocated().blocks,
        "reports go on"
    );
    second
}

/// Checks the problem statement: with a program and libstdc++ without frame pointers, every function is
/// there.
#[track_caller]
fn check_leaker(test: &str, attach: &str) {
    let report = trace_leaker(test, &[], &["--unwind", "dwarf", "--attach", attach]);
    assert_eq!(
        (report.schema_version, report.unwind.as_str()),
        (1, "dwarf"),
        "{report}"
    );
    let stack = report.only_through("LeakLib::slowMemoryLeak()");
    stack.check(&from_main(&[
        "operator new(unsigned long)",
        "LeakLib::slowMemoryLeak()",
        "caller()",
        "main",
    ]));
    check_found_by(stack, &["probe", "cfi"]);
    assert!(
        stack.frames[0].module_name().starts_with("libstdc++.so.6"),
        "{stack}"
    );
    assert_eq!(stack.frames[1].module_name(), "leaker");
    assert_eq!(stack.allocator, "malloc");
    assert!(stack.outstanding.blocks > 0, "{stack}");
    assert_eq!(stack.outstanding.bytes, 40 * stack.outstanding.blocks);
    assert_eq!(report.stacks.len(), 1, "{report}");
    assert_eq!(report.unwinding.frames.fp, 0);
    assert_eq!(
        report.unwinding.frames.cfi,
        6 * stack.allocated.blocks,
        "the first of 7 frames is the probe's"
    );
}

/// `main -> caller -> slowMemoryLeak -> operator new -> malloc` is complete by session probes.
#[test]
fn leaker_by_session_probes() {
    check_leaker("session", "session");
}

/// `main -> caller -> slowMemoryLeak -> operator new -> malloc` is complete by `uprobe_multi` links, whose
/// entry and return are two programs.
#[test]
fn leaker_by_multi_probes() {
    check_leaker("multi", "multi");
}

/// `main -> caller -> slowMemoryLeak -> operator new -> malloc` is complete by one perf event per probe.
#[test]
fn leaker_by_perf_probes() {
    check_leaker("perf", "perf");
}

/// `main -> caller -> slowMemoryLeak -> malloc` is complete: one frame less than by `operator new`.
#[test]
fn leaker_with_malloc() {
    let report = trace_leaker("malloc", &["-DWITH_MALLOC"], &[]);
    let stack = report.only_through("LeakLib::slowMemoryLeak()");
    stack.check(&from_main(&["LeakLib::slowMemoryLeak()", "caller()", "main"]));
    check_found_by(stack, &["probe", "cfi"]);
}

/// Frame pointers alone lose the function that leaks, which is why there are tables.
#[test]
fn frame_pointers_miss_the_leak() {
    let report = trace_leaker("fp", &[], &["--unwind", "fp"]);
    assert_eq!(report.unwind, "fp");
    assert!(report.allocated().blocks > 0, "{report}");
    assert!(report.through("LeakLib::slowMemoryLeak()").is_empty(), "{report}");
    assert_eq!(report.unwinding.allocations["complete"], 0, "{report}");
}

/// A callback of `qsort` is above its caller, with the C library's frames between.
#[test]
fn callback() {
    let report = trace_source("callback", "stacks/callback.c", &[], &[]);
    let stack = report.only_through("compare");
    stack.check(&from_main(&["compare", "..", "qsort*", "sort_numbers", "main"]));
    check_found_by(stack, &["probe", "cfi"]);
}

/// A thread's stack ends complete where `clone3` started it.
#[test]
fn thread() {
    let report = trace_source("thread", "stacks/thread.c", &["-pthread"], &[]);
    let stack = report.only_through("work");
    stack.check(&[&["work", "thread_main"], &BELOW_THREAD[..]].concat());
    check_found_by(stack, &["probe", "cfi"]);
}

#[track_caller]
fn check_signals(test: &str, arguments: &[&str]) {
    let report = trace_source(test, "stacks/signal.c", &[], arguments);
    let raised = report.only_through("on_raise");
    // The return address of a handler is the restorer, whose name in glibc is local.
    raised.check(&from_main(&["on_raise", "..", "raising", "main"]));
    let trapped = report.only_through("on_trap");
    trapped.check(&from_main(&["on_trap", "..", "trapping", "main"]));
    check_found_by(trapped, &["probe", "cfi"]);
    let interrupted = &trapped.frames[2];
    assert_eq!(
        interrupted.offset,
        Some(0),
        "interrupted before its first instruction:\n{trapped}"
    );
}

/// Stacks go on below a signal frame: into a system call, and into a function at its first instruction, where
/// looking one byte before the address would find another function and its rule.
#[test]
fn signal_handler() {
    check_signals("signal", &[]);
}

/// Stacks go on below a signal frame where handlers have a stack of their own, which may lie above or below
/// the thread's.
#[test]
fn signal_handler_on_its_own_stack() {
    check_signals("signal-stack", &["other"]);
}

/// A realigned frame of dynamic size is crossed by the expression in its CFI.
#[test]
fn realigned_frame() {
    let report = trace_source("realigned", "stacks/realigned.c", &["-mavx2"], &[]);
    let path = directory_path("known-realigned").join("realigned");
    assert_disassembly_has(&path, "def_cfa_expression");
    let stack = report.only_through("realigned");
    stack.check(&from_main(&["realigned", "main"]));
    check_found_by(stack, &["probe", "cfi"]);
}

/// Checks that the program has the CFI that the test is about.
#[track_caller]
fn assert_disassembly_has(path: &Path, instruction: &str) {
    let output = Command::new("readelf")
        .arg("--debug-dump=frames")
        .arg(path)
        .output()
        .expect("readelf (apt-get install binutils)");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains(instruction),
        "{} has no {instruction}",
        path.display()
    );
}

/// A frame of 300,000 bytes is crossed.
#[test]
fn big_frame() {
    let report = trace_source("big_frame", "stacks/big_frame.c", &[], &[]);
    let stack = report.only_through("leak");
    stack.check(&from_main(&["leak", "big_frame", "main"]));
    check_found_by(stack, &["probe", "cfi"]);
}

/// 400 frames are walked to the end.
#[test]
fn deep_recursion() {
    let report = trace_source("deep", "stacks/recursion.c", &[], &["400"]);
    let stack = report.only_through("recurse");
    stack.check(&from_main(&[&["recurse"; 400][..], &["main"]].concat()));
}

/// A recursion of 5000 frames has its innermost 256 and the last 256 of the first 4096, and the stack says
/// that it is cut.
#[test]
fn recursion_beyond_the_limit() {
    let report = trace_source("deeper", "stacks/recursion.c", &[], &["5000"]);
    let stack = report.only_through("recurse");
    stack.check_names(&["recurse"; 512]);
    let left_out = stack.left_out.map(|left_out| (left_out.after, left_out.frames));
    assert_eq!(left_out, Some((256, 4096 - 512)));
    assert_eq!(stack.end, "depth_limit");
    let end = stack.end_at.as_ref().expect("where it was cut");
    assert!(
        end.module
            .as_deref()
            .is_some_and(|path| path.ends_with("recursion"))
    );
    assert_eq!(report.unwinding.allocations["depth_limit"], 1);
}

/// The library of `lazy.c`, `late.c` and `late_thread.c`.
pub(crate) fn lazy_library(directory: &Path) -> PathBuf {
    let output = directory.join("liblazy.so");
    compile_as(&output, "stacks/lazy_library.c", &flags(&["-shared", "-fPIC"]))
}

/// A call through a PLT entry that is not bound yet leaves no frame behind, and is not in the way.
#[test]
fn first_call_through_the_plt() {
    let report = trace_lazy("plt");
    let stack = report.only_through("leak_in_library");
    stack.check(&from_main(&["leak_in_library", "first_call", "main"]));
    check_found_by(stack, &["probe", "cfi"]);
}

#[track_caller]
fn trace_lazy(test: &str) -> Report {
    let directory = directory(&format!("known-{test}"));
    let library = lazy_library(&directory);
    let library = library.to_str().expect("UTF-8");
    let rpath = format!("-Wl,-rpath,{}", directory.display());
    let path = compile(
        &directory,
        "stacks/lazy.c",
        &flags(&["-Wl,-z,lazy", &rpath, library]),
    );
    let report = trace(&mut Program::start(&path, &[]), &[]);
    report.check_sums();
    report
}

/// A resolver of an indirect function runs below the loader's trampoline, which finds its frame by `rbx` and
/// which an `and` of the stack pointer follows: the register is followed back to the frame that saved it.
#[test]
fn resolver_below_the_loader() {
    let report = trace_lazy("resolver");
    let stack = report.only_through("leak_in_resolver");
    assert_eq!(stack.end, "complete", "{stack}");
    let modules: Vec<_> = stack
        .frames
        .iter()
        .map(|frame| frame.module_name().to_owned())
        .collect();
    let in_loader = modules.iter().filter(|name| name.starts_with("ld-linux")).count();
    assert!(in_loader >= 2, "{stack}");
    let after: Vec<_> = stack
        .frames
        .iter()
        .skip_while(|frame| !frame.module_name().starts_with("ld-linux"))
        .skip(in_loader)
        .filter_map(|frame| frame.symbol.as_deref())
        .collect();
    assert_eq!(after[..2], ["first_choice", "main"], "{stack}");
}

/// A static program is its own allocator, and its stacks are complete.
#[test]
fn static_program() {
    let report = trace_source("static", "stacks/callback.c", &["-static"], &[]);
    let stack = report.only_through("compare");
    // Newer C libraries sort in a separate function.
    let sort = ["msort_with_tmp*", "qsort_r_mergesort", "qsort_r"];
    let sort = match stack.passes(sort[1]) {
        true => &sort[..],
        false => &[sort[0], sort[2]],
    };
    stack.check(&from_main(
        &[&["compare"], sort, &["sort_numbers", "main"]].concat(),
    ));
    check_found_by(stack, &["probe", "cfi"]);
    assert!(
        stack.frames.iter().all(|frame| frame.module_name() == "callback"),
        "{stack}"
    );
}

/// Compiles a program of which one part, compiled with `more` flags, has no CFI.
fn partly_without_cfi(test: &str, more: &[&str]) -> PathBuf {
    let directory = directory(&format!("known-{test}"));
    let part = directory.join("part.o");
    let without_cfi = ["-fno-asynchronous-unwind-tables", "-DPART", "-c"];
    compile_as(&part, "stacks/no_cfi.c", &flags(&[more, &without_cfi].concat()));
    compile(
        &directory,
        "stacks/no_cfi.c",
        &flags(&[part.to_str().expect("UTF-8")]),
    )
}

/// Functions without CFI are crossed by their frame pointers, each marked as such, and the walk returns to
/// CFI.
#[test]
fn without_cfi() {
    let path = partly_without_cfi("no_cfi", &["-fno-omit-frame-pointer"]);
    let report = trace(&mut Program::start(&path, &[]), &[]);
    let stack = report.only_through("leak");
    stack.check(&from_main(&[
        "leak",
        "inner_without_cfi",
        "outer_without_cfi",
        "main",
    ]));
    check_found_by(stack, &["probe", "cfi", "fp", "fp", "cfi"]);
    assert_eq!(report.unwinding.frames.fp, 2, "{report}");
    let program = report.module("no_cfi");
    assert_eq!((program.frames.cfi, program.frames.fp), (2, 2), "{report}");
    assert!(program.covered_bytes < program.code_bytes, "{report}");
    assert_eq!(report.module("libc.so.6").frames.fp, 0, "{report}");
}

/// Functions with neither CFI nor a frame pointer end the stack: the report names the module, the cause, how
/// much ended there, and the address.
#[test]
fn without_cfi_and_frame_pointer() {
    let path = partly_without_cfi("no_cfi_no_fp", &[]);
    let report = trace(&mut Program::start(&path, &[]), &[]);
    let stack = report.only_through("leak");
    assert_eq!(stack.end, "no_cfi", "{report}");
    let [end] = &report.unwinding.ends[..] else {
        panic!("one end:\n{report}");
    };
    assert_eq!(end.module.as_deref(), path.to_str());
    assert_eq!(
        (end.cause.as_str(), end.stacks, end.allocations),
        ("no_cfi", 1, 1)
    );
    let at = stack.end_at.as_ref().expect("it says where");
    assert_eq!(end.addresses, [at.address.as_str()]);
}

/// A program without symbols has the same stack, address by address, as with them.
#[test]
fn stripped_program() {
    let directory = directory("known-stripped");
    let whole = compile(&directory, "stacks/callback.c", &RELEASE);
    let stripped = directory.join("stripped");
    run_tool(Command::new("strip").arg("-o").arg(&stripped).arg(&whole));
    let expected = trace(&mut Program::start(&whole, &[]), &[]);
    let found = trace(&mut Program::start(&stripped, &[]), &[]);
    let addresses = |report: &Report| -> Vec<(String, u64)> {
        let stack = report.stacks.first().expect("a stack");
        assert_eq!(
            (stack.end.as_str(), report.stacks.len()),
            ("complete", 1),
            "{report}"
        );
        let name = |name: &str| name.replace("stripped", "callback");
        stack
            .frames
            .iter()
            .map(|frame| (name(frame.module_name()), frame.svma()))
            .collect()
    };
    assert_eq!(addresses(&found), addresses(&expected), "{found}\n{expected}");
    let own = found.stacks[0]
        .frames
        .iter()
        .filter(|frame| frame.module_name() == "stripped");
    let mut names = own.map(|frame| frame.symbol.as_deref());
    assert!(names.all(|name| name.is_none()), "it has no names:\n{found}");
}

/// 30 threads on few CPUs, each allocating at another depth, walk at once: every stack is one of theirs,
/// whole, with all of its thread's blocks, and nothing is lost. (Where the kernel may preempt itself, see
/// /sys/kernel/debug/sched/preempt, they also interrupt one another's walks.)
#[test]
fn walks_at_once() {
    const THREADS: usize = 30;
    const ROUNDS: u64 = 3000;
    let (threads, rounds) = (THREADS.to_string(), ROUNDS.to_string());
    let report = trace_source(
        "threads",
        "load/many_threads.c",
        &["-pthread"],
        &[&threads, &rounds],
    );
    let of_threads = report.through("allocate");
    let mut depths = Vec::new();
    for stack in &of_threads {
        let depth = stack.names().iter().filter(|name| **name == "dive").count();
        let dives = vec!["dive"; depth];
        stack.check(&[&["allocate"], &dives[..], &["thread_main"], &BELOW_THREAD].concat());
        let bytes = 16 + depth as u64 - 1;
        assert_eq!(stack.allocated.blocks, ROUNDS, "{stack}");
        assert_eq!(stack.allocated.bytes, bytes * ROUNDS, "{stack}");
        assert_eq!(stack.outstanding.blocks, 0, "{stack}");
        depths.push(depth);
    }
    depths.sort_unstable();
    assert_eq!(depths, (1..=THREADS).collect::<Vec<_>>());
    assert_eq!(report.lost.blocks, 0, "{report}");
    assert_eq!(
        of_threads.len(),
        report.stacks.len(),
        "no foreign stack:\n{report}"
    );
}

/// Starts `aligned_caller.c`.
#[track_caller]
fn aligned_caller(test: &str) -> Program {
    let directory = directory(test);
    let library = directory.join("libaligned.so");
    compile_as(
        &library,
        "stacks/aligned_library.c",
        &flags(&["-shared", "-fPIC"]),
    );
    let rpath = format!("-Wl,-rpath,{}", directory.display());
    let library = library.to_str().expect("UTF-8");
    let path = compile(&directory, "stacks/aligned_caller.c", &flags(&[&rpath, library]));
    let program = Program::start(&path, &[]);
    program.expect("ready");
    program
}

/// The CFA of a frame is in `rbx`, which a library without such frames has saved: the library's saves are
/// loaded when a walk first needs them, and that walk is finished in user space.
#[test]
fn register_saved_by_a_library() {
    let mut program = aligned_caller("known-aligned");
    let memleak = Memleak::attach_reporting(program.pid(), &[], &["0.2"]);
    let mut steps = 0;
    loop {
        program.step("ready");
        steps += 1;
        let report = memleak.report();
        let stacks = report.through("leak_in_library");
        let complete: Vec<_> = stacks.iter().filter(|stack| stack.end == "complete").collect();
        for stack in &complete {
            stack.check(&from_main(&["leak_in_library", "by_rbx", "main"]));
        }
        if complete.len() == 2 {
            break;
        }
        assert!(steps < 100, "{report}");
    }
    let report = memleak.finish();
    let rest: Vec<_> = report
        .stacks
        .iter()
        .filter(|stack| stack.end != "complete")
        .collect();
    for stack in &rest {
        assert_eq!(stack.end, "table_not_loaded", "{stack}");
        assert_eq!(stack.frames.last().expect("a frame").name(), "by_rbx", "{stack}");
    }
    let rest: u64 = rest.iter().map(|stack| stack.allocated.blocks).sum();
    assert!(rest <= report.unwinding.not_finished, "{report}");
    assert_eq!(report.allocated().blocks, 2 * steps);
}

/// A walk that needs a library's saves is finished even if others have asked in vain before, for mappings at
/// addresses that are garbage.
#[test]
fn register_saved_by_a_library_after_requests_in_vain() {
    let mut program = aligned_caller("known-aligned-astray");
    let memleak = Memleak::attach_reporting(program.pid(), &[], &["0.2"]);
    let (mut walks, mut finished) = (0, 0);
    // Until such walks are no longer sent to user space.
    let before = loop {
        program.send_line("astray");
        program.expect("ready");
        walks += 1;
        let astray = |report: &Report| -> u64 {
            let stacks = report.through("astray");
            stacks.iter().map(|stack| stack.allocated.blocks).sum()
        };
        let report = loop {
            let report = memleak.report();
            if astray(&report) == walks {
                break report;
            }
        };
        let known = std::mem::replace(&mut finished, report.unwinding.finished_in_user_space);
        if known == finished {
            break finished;
        }
        assert!(walks < 100, "{report}");
    };
    program.step("ready");
    let report = memleak.finish();
    let stacks = report.through("leak_in_library");
    assert_eq!(stacks.len(), 2, "{report}");
    for stack in stacks {
        assert_eq!(stack.end, "complete", "{stack}");
        stack.check(&from_main(&["leak_in_library", "by_rbx", "main"]));
    }
    assert!(report.unwinding.finished_in_user_space > before, "{report}");
}
