//! Processes whose code is executed in translated copies, as by valgrind: no probe is placed where it would
//! end one, and what is refused for that reason says so.

use std::process::{Command, Output};

use memleak_test::exclusion::alone;
use memleak_test::memleak::Memleak;
use memleak_test::program::{PATIENCE, Program, compile, directory, stock};
use memleak_test::started::Started;

/// Starts a program under valgrind that says when it is ready, and allocates for the first time after that by
/// each function.
fn translated(test: &str) -> Program {
    let program = compile(&directory(test), "amounts/plain.c", &["-O1"]);
    let mut command = Command::new(stock("/usr/bin/valgrind", "valgrind"));
    let program = Program::spawn(command.args(["-q", "--tool=none"]).arg(program).arg("10"));
    program.expect("ready");
    program
}

fn memleak(arguments: &[&str]) -> Output {
    assert_cmd::Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(arguments)
        .timeout(*PATIENCE)
        .output()
        .expect("it ends by itself")
}

/// Returns the only line of its messages.
#[track_caller]
fn refusal(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), errors.lines().count()),
        (Some(2), 1),
        "{output:?}"
    );
    errors.trim_end().to_owned()
}

/// A process under valgrind is refused in one line, by traces and by the doctor, and goes on to its end.
#[test]
fn under_valgrind() {
    let _alone = alone();
    let mut program = translated("translated-target");
    let pid = program.pid().to_string();
    let refused = refusal(&memleak(&["-p", &pid, "1", "1"]));
    assert!(refused.contains("runs under valgrind"), "{refused}");
    let doctor = memleak(&["doctor", "-p", &pid]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        doctor.status.code() == Some(2) && said.contains("runs under valgrind"),
        "{doctor:?}"
    );
    program.step("done");
    program.send_line("");
    assert!(program.end().success());
}

/// A trace of children does no harm to such a program, whether it runs before or is started while that goes
/// on.
#[test]
fn beside_valgrind() {
    let mut before = translated("translated-before");
    let target = compile(&directory("translated-beside"), "amounts/plain.c", &["-O1"]);
    let mut target = Program::start(&target, &["10"]);
    target.expect("ready");
    let memleak = Memleak::attach(target.pid(), &["--follow-fork"]);
    let mut later = translated("translated-later");
    for program in [&mut before, &mut later, &mut target] {
        program.step("done");
    }
    let report = memleak.finish();
    assert!(report.allocated.blocks >= 10, "{:?}", report.allocated);
    for program in [&mut before, &mut later, &mut target] {
        program.send_line("");
        assert!(program.end().success());
    }
}

/// Where children can only be followed by probes in all processes, following is refused while such a program
/// runs, as the probes would end it; the refusal names it.
#[test]
fn beside_valgrind_without_tracefs() {
    let _alone = alone();
    let mut bystander = translated("translated-bystander");
    let mut command = Command::new("unshare");
    let script = "umount /sys/kernel/tracing; umount /sys/kernel/debug; exec \"$0\" \"$@\"";
    command.args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_memleak")]);
    let pid = std::process::id().to_string();
    let output = command.args(["--follow-fork", "-p", &pid, "1", "1"]).output();
    let output = output.expect("unshare");
    let errors = String::from_utf8_lossy(&output.stderr);
    let refused = errors.lines().last().unwrap_or_default();
    let named = format!("{} (none-amd64-linu, by valgrind)", bystander.pid());
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        refused.contains(&named) && refused.contains("--ignore-translators"),
        "{errors}"
    );
    bystander.step("done");
    bystander.send_line("");
    assert!(bystander.end().success());
}

/// A command that starts a program under valgrind is refused in one line, and nothing is started.
#[test]
fn started_under_valgrind() {
    let program = compile(&directory("translated-command"), "amounts/plain.c", &["-O1"]);
    let command = format!("valgrind -q --tool=none {} 10", program.display());
    let output = memleak(&["-c", &command]);
    let refused = refusal(&output);
    assert!(
        refused.contains("valgrind") && output.stdout.is_empty(),
        "{output:?}"
    );
}

/// A traced program that executes valgrind loses its probes and goes on to its end; the trace ends, and says
/// why.
#[test]
fn executes_valgrind() {
    let _alone = alone();
    stock("/usr/bin/valgrind", "valgrind");
    let program = compile(&directory("translated-exec"), "amounts/plain.c", &["-O1"]);
    let command = format!("sh -c 'exec valgrind -q --tool=none {} 10'", program.display());
    let mut started = Started::start(&["-c", &command]);
    started.expect("ready");
    started.send_line("");
    started.expect("done");
    let outcome = started.finish();
    assert_eq!(outcome.status, Some(2), "{:#?}", outcome.messages);
    let last = outcome.messages.last().expect("a message");
    assert!(last.contains("runs under valgrind"), "{:#?}", outcome.messages);
}
