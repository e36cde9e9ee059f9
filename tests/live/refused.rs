//! A kernel that refuses BPF programs: what works without them is traced, and what is missing is said, in one
//! line each. Programs are broken for that (`--break-program`), so that the real verifier refuses them.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use memleak_test::attach_paths::attach_paths;
use memleak_test::exclusion::alone;
use memleak_test::machine::{Feature, lacks};
use memleak_test::memleak::Memleak;
use memleak_test::program::{PATIENCE, Program, compile_as, directory, require_root, stock};
use memleak_test::report::Report;
use memleak_test::started::Started;

/// Programs for allocations, by all ways.
const ALLOCATIONS: &str = "allocation_session,allocation_entry,allocation_return";
/// Beginning of the verifier's complaint of a broken program.
const REASON: &str = "infinite loop detected at insn ";
const BLOCKS: u64 = 50;

fn build(test: &str) -> PathBuf {
    let path = directory(&format!("refused-{test}")).join(format!("refused-{test}"));
    compile_as(&path, "amounts/plain.c", &["-O2", "-fomit-frame-pointer"])
}

#[track_caller]
fn start(test: &str) -> Program {
    let program = Program::start(&build(test), &[&BLOCKS.to_string()]);
    program.expect("ready");
    program
}

fn release() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").expect("it has one");
    text.trim().to_owned()
}

/// Checks that every block is there, with a complete stack, and that exactly `part` is missing, as `program`
/// was refused.
#[track_caller]
fn check_missing(report: &Report, messages: &[String], part: &str, program: &str) {
    report.check_sums();
    let [missing] = &report.missing[..] else {
        panic!("{program}: {:?}", report.missing);
    };
    assert_eq!((missing.part.as_str(), missing.program.as_str()), (part, program));
    assert!(missing.reason.starts_with(REASON), "{missing:?}");
    assert!(missing.reason.ends_with(" (verifier, EINVAL)"), "{missing:?}");
    let warnings: Vec<_> = messages
        .iter()
        .filter(|line| line.contains("warning: "))
        .collect();
    let [warning] = warnings[..] else {
        panic!("{program}: {messages:#?}");
    };
    for words in [
        &missing.text,
        &format!(
            "the kernel (Linux {}) refused the program {program}: {REASON}",
            release()
        ),
        "memleak doctor --report",
    ] {
        assert!(warning.contains(words), "no {words:?} in {warning}");
    }
}

/// Returns the number of the program's blocks that were allocated by complete stacks.
fn blocks(report: &Report) -> u64 {
    let stacks = report.through("leak").into_iter();
    let whole = stacks.filter(|stack| stack.end == "complete");
    whole.map(|stack| stack.outstanding.blocks).sum()
}

/// No program is refused: with each way to attach, a trace begins soon, also with a slow verifier on a slow
/// machine, where a refused attempt would take more time.
#[test]
#[allow(clippy::print_stdout, reason = "what tests/kernels.sh shows")]
fn traces_begin_soon() {
    for way in attach_paths() {
        let program = start("soon");
        let began = Instant::now();
        let memleak = Memleak::attach(program.pid(), &["--attach", way]);
        let seconds = began.elapsed().as_secs_f64();
        println!("@found start {way} {seconds:.1}");
        assert!(seconds < 60.0, "{way}: {seconds} s");
        assert!(memleak.finish().missing.is_empty());
    }
}

/// Each program that is not essential can be refused: what it is not for is traced, exactly, and the report
/// and one warning say what is missing.
#[test]
fn what_does_not_need_it_is_traced() {
    let trap = match attach_paths()[0] {
        "session" => "calibration_session",
        _ => "calibration_return",
    };
    for (program, part, flags) in [
        ("loader_hook", "loader_hook", &[][..]),
        ("forget_blocks", "ended_blocks", &[]),
        (trap, "trap_cost", &[]),
        ("process_fork", "children", &["--follow-fork"]),
        ("python_code_end", "python", &["--follow-fork"]),
    ] {
        let mut traced = start("parts");
        let memleak = Memleak::attach(traced.pid(), &[&["--break-program", program], flags].concat());
        traced.step("done");
        let (report, messages) = memleak.finish_with_messages();
        assert_eq!(blocks(&report), BLOCKS, "{program}: {report}");
        check_missing(&report, &messages, part, program);
    }
    let mut traced = start("cgroups");
    let memleak = Memleak::attach_selected(&["-p", "refused-cgroups", "--break-program", "cgroup_attach"]);
    traced.step("done");
    let (report, messages) = memleak.finish_with_messages();
    assert_eq!(blocks(&report), BLOCKS, "{report}");
    check_missing(&report, &messages, "cgroups", "cgroup_attach");
}

/// A started program is traced to its end where it cannot be stopped there for a verdict.
#[test]
fn end_of_a_program_that_cannot_be_held() {
    let path = build("held").display().to_string();
    let count = BLOCKS.to_string();
    let flags = ["--verdict", "--break-program", "exit_hook", "--", &path, &count];
    let mut started = Started::start(&flags);
    for line in ["ready", "done"] {
        started.expect(line);
        started.send_line("");
    }
    let outcome = started.finish();
    assert_eq!(outcome.status, Some(0), "{:#?}", outcome.messages);
    check_missing(outcome.report(), &outcome.messages, "program_end", "exit_hook");
    assert_eq!(blocks(outcome.report()), BLOCKS);
}

/// A process that runs Python is traced without its functions, by its native frames, and the report says so
/// in text, too.
#[test]
fn python_without_its_functions() {
    let python = stock("/usr/bin/python3", "python3");
    let script = "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n\
                  def grow():\n  return [bytearray(70000 + n) for n in range(50)]\n\
                  kept = grow()\nprint('done', flush=True)\nsys.stdin.readline()";
    for flags in [
        &["--break-program", "python_code_end"][..],
        &["--break-program", "python_code_end", "--format", "text"],
    ] {
        let mut program = Program::start(&python, &["-c", script]);
        program.expect("ready");
        let memleak = Memleak::attach(program.pid(), flags);
        program.step("done");
        if flags.contains(&"text") {
            let text = memleak.finish_text();
            let said = format!(
                "missing: functions of Python are not in stacks: the kernel refused the program {}: {REASON}",
                flags[1]
            );
            assert!(text.contains(&said), "{text}");
            assert!(!text.contains(" grow "), "{text}");
            continue;
        }
        let (report, messages) = memleak.finish_with_messages();
        check_missing(&report, &messages, "python", "python_code_end");
        assert!(report.outstanding.bytes > 50 * 70_000, "{report}");
        assert!(report.through("grow").is_empty(), "{report}");
    }
}

/// Where session probes are refused, the next way is used and nothing is missing; a warning says what that
/// costs.
#[test]
fn another_way_is_used() {
    if attach_paths()[0] != "session" {
        return;
    }
    let mut program = start("way");
    let memleak = Memleak::attach(program.pid(), &["--break-program", "allocation_session"]);
    program.step("done");
    let (report, messages) = memleak.finish_with_messages();
    report.check_sums();
    assert_eq!((blocks(&report), report.missing.len()), (BLOCKS, 0), "{report}");
    let said = format!(
        "the kernel (Linux {}) refused the program allocation_session: {REASON}",
        release()
    );
    let warning = messages
        .iter()
        .find(|line| line.contains(&said))
        .expect("a warning");
    assert!(
        warning.contains("traces use multi-probe links instead"),
        "{warning}"
    );
}

/// Runs memleak to its end, and returns its output.
#[track_caller]
fn run(arguments: &[&str]) -> Output {
    require_root();
    let mut memleak = Command::new(env!("CARGO_BIN_EXE_memleak"));
    let output = memleak.args(arguments).stdin(Stdio::null()).output();
    output.expect("memleak was built")
}

/// Where no way works, one line says which program was refused, why, by which kernel, and what to do; soon,
/// as what was refused is not tried again.
#[test]
fn no_way_works() {
    let program = start("none");
    let pid = program.pid().to_string();
    let began = Instant::now();
    for (broken, flags, named, advice) in [
        (ALLOCATIONS, &[][..], "allocation_", "try another kernel; "),
        (
            "free_entry",
            &["--follow-fork"],
            "free_entry",
            "try another kernel; ",
        ),
        (
            "free_entry",
            &["--attach", "perf"],
            "free_entry",
            "try another way to attach, without --attach; ",
        ),
        (
            "process_exec",
            &["--mmap"],
            "process_exec",
            "try a trace without --mmap; ",
        ),
    ] {
        let output = run(&[&["-q", "-p", &pid, "--break-program", broken], flags].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert_eq!(errors.trim_end().lines().count(), 1, "{errors}");
        for words in [
            &format!(
                "cannot trace process {pid}: the kernel (Linux {}) refused the program {named}",
                release()
            ),
            REASON,
            " (verifier, EINVAL)",
            advice,
            "to report it: memleak doctor --report",
        ] {
            assert!(errors.contains(words), "no {words:?} in {errors}");
        }
    }
    assert!(began.elapsed() < *PATIENCE, "{:?}", began.elapsed());
}

/// Allocators of the kernel can be refused one by one: the others are traced.
#[test]
fn allocators_of_the_kernel() {
    let _alone = alone();
    if lacks(Feature::Tracefs) {
        return;
    }
    let flags = ["--break-program", "kernel_page_free"];
    let memleak = Memleak::attach_to_kernel(&flags, "1d");
    let (report, messages) = memleak.finish_with_messages();
    let missing = report
        .missing
        .iter()
        .find(|missing| missing.part == "kernel_pages");
    assert_eq!(missing.expect("it is missing").program, "kernel_page_free");
    assert!(
        report.stacks.iter().all(|stack| stack.allocator != "alloc_pages"),
        "{report}"
    );
    assert!(
        report.stacks.iter().any(|stack| stack.allocator == "kmalloc"),
        "{report}"
    );
    assert!(
        messages
            .iter()
            .any(|line| line.contains("whole pages are not traced: the kernel ")),
        "{messages:#?}"
    );
    let output = run(&["-q", "--break-program", "kernel_kfree", "--duration", "1"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("refused the program kernel_kfree: "), "{errors}");
}
