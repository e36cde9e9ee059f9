//! Libraries that are loaded while their program is traced: stacks through them are whole from the first one
//! on, as user space finishes walks until the table is loaded.

use crate::known::{RELEASE, lazy_library};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory};
use memleak_test::report::{Report, from_main};
use memleak_test::started::Started;

/// Stacks are complete, or say that the table was not there yet.
#[test]
fn library_loaded_later() {
    let directory = directory("late");
    let library = lazy_library(&directory);
    let path = compile(&directory, "stacks/late.c", &RELEASE);
    let mut program = Program::start(&path, &[library.to_str().expect("UTF-8")]);
    program.expect("ready");
    let memleak = Memleak::attach_reporting(program.pid(), &[], &["0.2"]);
    let mut seen = 0;
    loop {
        program.step("done");
        let report = memleak.report();
        let complete = report.through("call_late");
        if let [stack] = complete[..] {
            stack.check(&from_main(&["leak_in_library", "call_late", "main"]));
            check_late_report(&report);
            return;
        }
        seen += 1;
        assert!(seen < 50, "never complete:\n{report}");
    }
}

/// Stacks of the late library are complete or say that its table was not there yet.
#[track_caller]
fn check_late_report(report: &Report) {
    for stack in &report.stacks {
        match stack.end.as_str() {
            "complete" => {}
            "no_mapping" | "table_not_loaded" => {
                assert!(!stack.passes("main"), "{stack}");
                assert!(report.unwinding.not_finished > 0, "{report}");
            }
            other => panic!("ends by {other}:\n{stack}"),
        }
    }
}

/// The first stack of a thread is whole, though nothing is known of its end yet and it is larger than what is
/// copied of other stacks.
#[test]
fn first_stack_of_a_thread() {
    let directory = directory("late-thread");
    let library = lazy_library(&directory);
    let path = compile(
        &directory,
        "stacks/late_thread.c",
        &[&RELEASE[..], &["-pthread"]].concat(),
    );
    let [path, library] = [&path, &library].map(|path| path.to_str().expect("UTF-8"));
    for _ in 0..50 {
        let mut outcome = Started::start(&["1d", "--", path, library]).finish();
        let report = outcome.reports.pop().expect("a report");
        let stack = report.only_through("leak_in_library");
        assert_eq!(stack.end, "complete", "{stack}");
        for name in ["use_much_stack", "thread_main"] {
            assert!(stack.passes(name), "{stack}");
        }
        if report.unwinding.finished_in_user_space > 0 {
            return;
        }
    }
    panic!("the table was always there before");
}
