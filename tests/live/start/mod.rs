//! Programs that memleak starts are traced from their first allocation on, with complete stacks, and do not
//! notice.

mod exec;
mod gates;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memleak_test::program::{PATIENCE, Program, compile, compile_as, copy_program, directory, signal};
use memleak_test::report::{Amount, Report};
use memleak_test::started::Started;

const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

fn one(bytes: u64) -> Amount {
    Amount { bytes, blocks: 1 }
}

/// Checks that both of the program's own allocations were seen, by complete stacks.
#[track_caller]
fn check_allocations(report: &Report) {
    report.check_sums();
    assert_eq!(report.lost.blocks, 0, "{report}");
    let early = report.only_through("allocate_early");
    assert_eq!(
        (&early.names()[..2], &early.end[..]),
        (&["allocate_early", "constructor"][..], "complete")
    );
    assert_eq!(early.outstanding, one(123), "{report}");
    let late = report.only_through("allocate");
    assert_eq!(
        (&late.names()[..2], &late.end[..]),
        (&["allocate", "main"][..], "complete")
    );
    assert_eq!(late.outstanding, one(456), "{report}");
}

/// Checks the amounts of both allocations, where the C library has no CFI.
#[track_caller]
fn check_amounts(report: &Report) {
    for (symbol, bytes) in [("allocate_early", 123), ("allocate", 456)] {
        assert_eq!(report.only_through(symbol).outstanding, one(bytes), "{report}");
    }
}

/// Compiles the program for musl.
fn musl_program(directory: &Path) -> PathBuf {
    let program = directory.join("started-musl");
    let status = Command::new("musl-gcc")
        .args(RELEASE)
        .args(["tests/programs/processes/started.c", "-o"])
        .arg(&program)
        .status();
    assert!(status.expect("musl-gcc (apt-get install musl-tools)").success());
    program
}

/// Waits until a process is gone.
#[track_caller]
fn await_end(pid: u32) {
    let began = std::time::Instant::now();
    while Path::new(&format!("/proc/{pid}")).exists() {
        assert!(began.elapsed() < *PATIENCE, "{pid} runs on");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A started program sees its arguments as given, no tracer and no signal. Its allocations are known from the
/// constructors on, by complete stacks, and in the last report although it has exited; its status is
/// memleak's.
#[test]
fn started_program_sees_no_tracer() {
    let program = compile(&directory("start-noticed"), "processes/started.c", &RELEASE);
    let command = format!("'{}' 'a b' \"it's\" x\\ y", program.display());
    for attach in ["session", "multi", "perf"] {
        let mut started = Started::start(&["--attach", attach, "-c", &command]);
        for line in ["a b", "it's", "x y", "traced 0 0, continued 0, user 0"] {
            started.expect(line);
        }
        started.send_line("");
        let outcome = started.finish();
        assert_eq!(outcome.status, Some(7), "{:#?}", outcome.messages);
        let report = outcome.report();
        check_allocations(report);
        let [target] = &report.targets[..] else {
            panic!("one target: {report}")
        };
        assert_eq!(target.ended.as_deref(), Some("exited"));
    }
}

/// Words behind `--` name a program as `-c` does, also one without a loader, and one that lies in PATH: its
/// allocations are known, and its status is memleak's.
#[test]
fn commands_and_paths_of_programs() {
    let directory = directory("start-ways");
    let in_path = compile(&directory, "processes/started.c", &RELEASE);
    let fixed = compile_as(
        &directory.join("static"),
        "processes/started.c",
        &[&RELEASE[..], &["-static"]].concat(),
    );
    let path = format!("{}:/usr/bin", directory.display());
    for name in [Path::new("started"), &in_path, &fixed] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
        command.env("PATH", &path).args(["5", "9"]);
        let mut started = Started::spawn_with(&mut command, &["--", name.to_str().expect("UTF-8"), "-c"]);
        started.expect("-c");
        started.expect("traced 0 0, continued 0, user 0");
        started.send_line("");
        let outcome = started.finish();
        assert_eq!(outcome.status, Some(7), "{:#?}", outcome.messages);
        check_allocations(outcome.report());
    }
}

/// A loader that gets the program to load as an argument, with options: stopped at its own first instruction
/// it has mapped nothing yet, and the program that it loads is traced from its constructors on.
#[test]
fn loaders_as_commands() {
    let directory = directory("start-loader");
    let glibc = compile(&directory, "processes/started.c", &RELEASE);
    let musl = musl_program(&directory);
    for (loader, options, program) in [
        ("/lib64/ld-linux-x86-64.so.2", "", &glibc),
        (
            "/lib64/ld-linux-x86-64.so.2",
            "--argv0 server --library-path /nonexistent",
            &glibc,
        ),
        ("/lib/ld-musl-x86_64.so.1", "", &musl),
    ] {
        let command = format!("{loader} {options} '{}'", program.display());
        let mut started = Started::start(&["-c", &command]);
        started.expect("traced 0 0, continued 0, user 0");
        started.send_line("");
        let outcome = started.finish();
        assert_eq!(outcome.status, Some(7), "{:#?}", outcome.messages);
        if *program == glibc {
            check_allocations(outcome.report());
        } else {
            check_amounts(outcome.report());
        }
    }
    // A loader that loads nothing is not stopped for ever.
    let outcome = Started::start(&["-c", "/lib64/ld-linux-x86-64.so.2 --version"]).finish();
    assert_eq!(outcome.status, Some(0), "{:#?}", outcome.messages);
}

/// musl's loader has another hook and no record; its program is traced from its constructors on too.
#[test]
fn musl() {
    let program = musl_program(&directory("start-musl"));
    let mut started = Started::start(&["-c", &program.display().to_string()]);
    started.expect("traced 0 0, continued 0, user 0");
    started.send_line("");
    let outcome = started.finish();
    assert_eq!(outcome.status, Some(7), "{:#?}", outcome.messages);
    check_amounts(outcome.report());
}

/// Constructors of libraries are called by the loader, whose first code has no CFI, and is the outermost
/// frame.
#[test]
fn constructors_of_libraries() {
    let directory = directory("start-constructors");
    let library = directory.join("libconstructed.so");
    let source = "processes/constructed.c";
    compile_as(
        &library,
        source,
        &[&RELEASE[..], &["-shared", "-fPIC", "-DLIBRARY"]].concat(),
    );
    let rpath = format!("-Wl,-rpath,{}", directory.display());
    let linked = ["-Wl,--no-as-needed", &rpath, library.to_str().expect("UTF-8")];
    let program = compile(&directory, source, &[&RELEASE[..], &linked].concat());
    let outcome = Started::start(&["-c", program.to_str().expect("UTF-8")]).finish();
    let stack = outcome.report().only_through("allocate_in_library");
    assert_eq!(
        (&stack.names()[..2], &stack.end[..]),
        (&["allocate_in_library", "constructor"][..], "complete"),
        "{stack}"
    );
    let outermost = stack.frames.last().expect("a frame");
    assert!(outermost.module_name().starts_with("ld-linux"), "{stack}");
}

/// A script is run by its interpreter, which is the program that is traced.
#[test]
fn script() {
    let directory = directory("start-script");
    let (text, script) = (directory.join("text"), directory.join("script"));
    fs::write(&text, "#!/bin/sh\nread line\nexit $1\n").expect("our own directory");
    copy_program(&text, &script);
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("our own file");
    let outcome = Started::start(&["-c", &format!("{} 5", script.display())]).finish();
    assert_eq!(outcome.status, Some(5), "{:#?}", outcome.messages);
    assert_eq!(outcome.report().targets[0].comm, "script");
    assert!(outcome.report().events.allocations > 0, "{}", outcome.report());
}

/// A program that a signal kills gives memleak the status that shells have for that, and there is a last
/// report.
#[test]
fn killed() {
    let program = compile(&directory("start-killed"), "processes/started.c", &RELEASE);
    let mut started = Started::start(&["-c", &format!("{} die", program.display())]);
    started.send_line("");
    let outcome = started.finish();
    assert_eq!(outcome.status, Some(128 + 9), "{:#?}", outcome.messages);
    check_allocations(outcome.report());
}

/// The program goes on as before once memleak has made its reports.
#[test]
fn program_goes_on() {
    let program = compile(&directory("start-goes_on"), "processes/started.c", &RELEASE);
    let mut started = Started::start(&["-c", &program.display().to_string(), "0.2", "1"]);
    started.expect("traced 0 0, continued 0, user 0");
    let report = Report::parse(&started.line());
    check_allocations(&report);
    assert_eq!(started.await_memleak(), Some(0));
    let pid = report.targets[0].pid;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs on");
    assert!(status.contains("TracerPid:\t0"), "{status}");
    started.send_line("");
    await_end(pid);
}

/// Signals that are sent to memleak are the program's: it gets each once, and memleak goes on until it ends.
/// One that it does not handle ends it. Signals that memleak was started to ignore, the program ignores, as
/// it would without memleak.
#[test]
fn signals_are_the_programs() {
    let program = compile(&directory("start-signals"), "processes/gated.c", &RELEASE);
    let program = program.display().to_string();
    let all = [("TERM", 15), ("INT", 2), ("HUP", 1), ("QUIT", 3), ("USR2", 12)];
    let actions = ["1000", "--", &program, "5", "leak"];
    let mut started = Started::start(&[&actions[..], &["catch"; 5]].concat());
    for (name, number) in all {
        started.expect("ignored:");
        signal(started.pid(), name);
        started.expect("caught");
        std::thread::sleep(Duration::from_millis(20));
        started.send_line("");
        started.expect(&format!("signal {number}, times 1"));
    }
    let outcome = started.finish();
    assert_eq!(outcome.status, Some(5), "{:#?}", outcome.messages);
    assert_eq!(outcome.report().only_through("leak").outstanding.blocks, 10);

    let mut command = Command::new("sh");
    let ignoring = "trap '' HUP INT; exec \"$0\" \"$@\"";
    command.args(["-c", ignoring, env!("CARGO_BIN_EXE_memleak")]);
    let started = Started::spawn_with(&mut command, &["1000", "--", &program, "catch"]);
    started.expect("ignored: 1 2");
    signal(started.pid(), "HUP");
    signal(started.pid(), "TERM");
    started.expect("caught");
    let outcome = started.finish();
    assert_eq!(outcome.status, Some(0), "{:#?}", outcome.messages);

    let started = Started::start(&["1000", "--", "sleep", "1000"]);
    started.await_message("tracing sleep");
    signal(started.pid(), "TERM");
    let outcome = started.finish();
    assert_eq!(outcome.status, Some(128 + 15), "{:#?}", outcome.messages);
    assert_eq!(outcome.report().targets[0].ended.as_deref(), Some("exited"));
}

/// Ctrl-C at a terminal reaches both by itself: the program gets it once, and memleak makes its last report
/// when that ends.
#[test]
fn interrupted_at_a_terminal() {
    let directory = directory("start-terminal");
    let program = compile(&directory, "processes/gated.c", &RELEASE);
    let reports = directory.join("leaks.json");
    // Not every shell that `script` finds would leave the terminal's signals to its only command.
    let command = format!(
        "exec {} --output {} 1000 -- {} leak catch 5",
        env!("CARGO_BIN_EXE_memleak"),
        reports.display(),
        program.display()
    );
    let mut script = Command::new("script");
    // It gives its input to a terminal, and takes the command's status for its own.
    let mut terminal = Program::spawn(script.args(["-qec", &command, "/dev/null"]));
    let expect = |terminal: &mut Program, wanted: &str| {
        while !terminal.line().contains(wanted) {}
    };
    expect(&mut terminal, "ignored:");
    terminal.send_line("\x03");
    expect(&mut terminal, "caught");
    std::thread::sleep(Duration::from_millis(100));
    terminal.send_line("");
    expect(&mut terminal, "signal 2, times 1");
    assert_eq!(terminal.await_end().code(), Some(5));
    let report = Report::parse(&fs::read_to_string(reports).expect("a report was written"));
    assert_eq!(report.only_through("leak").outstanding.blocks, 10);
}

/// Children of a started program are traced with `--follow-fork`; the trace ends with the last of them.
/// (Programs that they execute are not stopped: their first stacks are not complete.)
#[test]
fn children() {
    let program = compile(&directory("start-children"), "processes/started.c", &RELEASE);
    let script = format!("'{0}' one; '{0}' two", program.display());
    let mut started = Started::start(&["--follow-fork", "5", "--", "sh", "-c", &script]);
    started.send_line("\n");
    let outcome = started.finish();
    assert_eq!(outcome.status, Some(7), "{:#?}", outcome.messages);
    assert_eq!(outcome.lines.len(), 4, "{:?}", outcome.lines);
    let report = outcome.report();
    report.check_sums();
    let mut children = report.targets.iter().filter(|target| target.comm == "started");
    for _ in 0..2 {
        let child = children
            .next()
            .unwrap_or_else(|| panic!("two children: {report}"));
        let own = report
            .stacks
            .iter()
            .filter(|stack| stack.instance == child.instance);
        let outstanding: Amount = own.map(|stack| stack.outstanding).sum();
        assert_eq!(
            outstanding,
            Amount {
                bytes: 123 + 456,
                blocks: 2
            },
            "{report}"
        );
    }
}

/// A program that cannot be started, or cannot be traced once it is, has not run; the last line says so, with
/// the status that shells have for it.
#[test]
fn refused() {
    let directory = directory("start-refused");
    let fixed = ["-O2", "-static", "-s"];
    let unprobed = compile_as(&directory.join("unprobed"), "amounts/plain.c", &fixed);
    let unprobed = unprobed.display().to_string();
    let plain = directory.join("plain");
    fs::write(&plain, "text").expect("our own directory");
    let plain = plain.display().to_string();
    for (command, status, parts) in [
        (
            "/nonexistent 1",
            127,
            &["`/nonexistent`", "No such file", "PATH"][..],
        ),
        ("no-such-program", 127, &["`no-such-program`", "PATH"]),
        ("''", 127, &["No such file"]),
        ("/", 126, &["`/`", "chmod +x"]),
        (&plain, 126, &[&plain, "chmod +x"]),
        (&unprobed, 2, &["nothing to probe"]),
    ] {
        let outcome = Started::start(&["-c", command]).finish();
        assert_eq!(outcome.status, Some(status), "{:#?}", outcome.messages);
        assert!(
            outcome.lines.is_empty() && outcome.reports.is_empty(),
            "{command}"
        );
        let last = outcome.messages.last().expect("a message");
        for part in parts {
            assert!(last.starts_with("memleak: ") && last.contains(part), "{last}");
        }
    }
}

/// A program that cannot be loaded, here for lack of a library, ends with the status that its loader gives
/// it.
#[test]
fn unloadable_program_gives_its_status() {
    let directory = directory("start-ended");
    let library = compile_as(
        &directory.join("libgone.so"),
        "stacks/aligned_library.c",
        &["-shared", "-fPIC"],
    );
    let needs = [
        "-Wl,--no-as-needed",
        "-L",
        directory.to_str().expect("UTF-8"),
        "-lgone",
    ];
    let program = compile(&directory, "processes/started.c", &needs);
    fs::remove_file(library).expect("our own file");
    let outcome = Started::start(&["-c", &program.display().to_string()]).finish();
    assert_eq!(outcome.status, Some(127), "{:#?}", outcome.messages);
    let messages = outcome.messages.join("\n");
    assert!(
        messages.contains("libgone.so") && messages.contains("before its first instruction"),
        "{messages}"
    );
}

/// Secrets that prove to servers who memleak is stay in memleak; all else of the environment is the
/// program's.
#[test]
fn secrets_are_not_inherited() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
    let secrets = [
        ("MEMLEAK_PUSH_TOKEN", "secret"),
        ("MEMLEAK_TOP", "3"),
        ("OTHER", "kept"),
    ];
    command.envs(secrets).args(["-c", "/usr/bin/env"]);
    let outcome = Started::spawn(&mut command).finish();
    assert_eq!(outcome.status, Some(0), "{:#?}", outcome.messages);
    let is_printed = |line: &str| outcome.lines.iter().any(|printed| printed == line);
    assert!(
        is_printed("OTHER=kept") && is_printed("MEMLEAK_TOP=3"),
        "{:?}",
        outcome.lines
    );
    let leaked = outcome.lines.iter().find(|line| line.contains("secret"));
    assert_eq!(leaked, None);
}

/// Descriptors of memleak, for files and maps, a port and the output of other things, are not inherited by a
/// program that it starts.
#[test]
fn descriptors_are_not_inherited() {
    let directory = directory("start-descriptors");
    let list = "exec ls /proc/self/fd";
    let alone = Command::new("/bin/sh")
        .args(["-c", list])
        .output()
        .expect("a shell");
    let alone = String::from_utf8(alone.stdout).expect("numbers");
    let recording = directory.join("leaks.memleak");
    let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
    command
        .args(["--metrics", "127.0.0.1:0", "--record"])
        .arg(&recording);
    command.args(["-c", &format!("/bin/sh -c '{list}'")]);
    let outcome = Started::spawn(&mut command).finish();
    assert_eq!(outcome.status, Some(0), "{:#?}", outcome.messages);
    assert_eq!(outcome.lines, alone.lines().collect::<Vec<_>>());
    let mode = fs::metadata(&recording).expect("recorded").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

/// The user who called sudo is the one that the program runs as.
#[test]
fn under_sudo() {
    let built = compile(&directory("start-sudo"), "processes/started.c", &RELEASE);
    let directory = std::env::temp_dir().join(format!("memleak-start-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a new directory");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("our own directory");
    let program: PathBuf = directory.join("started");
    copy_program(&built, &program);
    let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
    command.env("SUDO_UID", "1").arg("-c").arg(&program);
    let mut started = Started::spawn(&mut command);
    started.expect("traced 0 0, continued 0, user 1");
    started.send_line("");
    let outcome = started.finish();
    fs::remove_dir_all(directory).expect("our own directory");
    assert_eq!(outcome.status, Some(7), "{:#?}", outcome.messages);
    check_allocations(outcome.report());
}
