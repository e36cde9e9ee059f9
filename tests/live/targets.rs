//! Processes found by name, systemd unit, cgroup, container and user are those that are traced, and no other;
//! what cannot be found or traced is said, with what to do.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use memleak_test::cgroup::{Cgroup, mounts};
use memleak_test::memleak::{Memleak, spawn};
use memleak_test::program::{
    PATIENCE, Program, compile_as, directory, require_root, run_tool, signal, stock,
};
use memleak_test::report::Report;

const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

/// Compiles a program, under its own name, that leaks as many blocks as its argument says.
#[track_caller]
fn build(test: &str, name: &str, flags: &[&str]) -> PathBuf {
    let path = directory(&format!("targets-{test}-{name}")).join(name);
    compile_as(&path, "amounts/plain.c", flags)
}

#[track_caller]
fn start(path: &Path, blocks: &str) -> Program {
    let program = Program::start(path, &[blocks]);
    program.expect("ready");
    program
}

/// Returns the blocks that each process has allocated by `leak`, ascending by pid.
fn leaks(report: &Report) -> Vec<(u32, u64)> {
    let mut leaks: Vec<_> = report
        .targets
        .iter()
        .map(|target| {
            let stacks = report.through("leak").into_iter();
            let own = stacks.filter(|stack| stack.pid == target.pid);
            (target.pid, own.map(|stack| stack.allocated.blocks).sum())
        })
        .collect();
    leaks.sort_unstable();
    leaks
}

#[track_caller]
fn has_message(messages: &[String], part: &str) {
    assert!(
        messages.iter().any(|line| line.contains(part)),
        "{part}: {messages:#?}"
    );
}

/// Runs memleak to its end, which must be a refusal in one line.
#[track_caller]
fn refusal(arguments: &[&str]) -> String {
    require_root();
    let output: Output = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("memleak was built");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    text
}

/// All processes of a name are traced, also of one that the kernel has truncated, and none whose name only
/// contains it.
#[test]
fn instances_by_name() {
    for (name, other) in [
        ("a-name-target", "not-a-name-target"),
        ("target-with-a-long-name", "target-with-a-lie"),
    ] {
        let path = build("by_name", name, &RELEASE);
        let _other = start(&build("by_name", other, &RELEASE), "1");
        let mut programs = [start(&path, "10"), start(&path, "30")];
        let mut pids = programs.each_ref().map(Program::pid);
        let memleak = Memleak::attach_selected(&["-p", name]);
        for program in &mut programs {
            program.step("done");
        }
        let (report, messages) = memleak.finish_with_messages();
        let mut expected = [(pids[0], 10), (pids[1], 30)];
        expected.sort_unstable();
        assert_eq!(leaks(&report), expected);
        pids.sort_unstable();
        let [first, second] = pids;
        let comm = &name[..name.len().min(15)];
        has_message(&messages, &format!("2 processes: {first},{second} ({comm}, by "));
    }
}

/// Makes an id of a container that is this test's alone.
fn id(digit: char) -> String {
    format!("{:0>12}{}", std::process::id(), digit.to_string().repeat(52))
}

/// Whatever made a cgroup, its processes are found by it: systemd's units, and containers by their ids.
#[test]
fn cgroups_of_systemd_and_of_runtimes() {
    let unit = format!("memleak-test-{}", std::process::id());
    let (a, b, c) = (id('a'), id('b'), id('c'));
    let (short, template) = (&c[..20], format!("{unit}@"));
    let pod = format!("kubepods/burstable/pod{unit}");
    let (pod_flag, unit_flag) = (format!("/{pod}"), format!("{unit}.service"));
    let cases = [
        (format!("{unit}.slice/{unit}.service"), ["--systemd-unit", &unit]),
        (
            format!("{unit}.slice/{unit}.service/worker"),
            ["--systemd-unit", &unit_flag],
        ),
        (
            format!("{unit}.slice/{unit}@one.service"),
            ["--systemd-unit", &template],
        ),
        (format!("{unit}.slice/docker-{a}.scope"), ["--container", &a]),
        (format!("docker/{a}"), ["--container", &a]),
        (
            format!("machine.slice/libpod-{b}.scope/container"),
            ["--container", &b],
        ),
        (format!("{pod}/{c}"), ["--container", short]),
        (
            format!("{unit}.slice/cri-containerd-{c}.scope"),
            ["--container", short],
        ),
        (format!("{unit}.slice/crio-{c}.scope"), ["--container", short]),
        (format!("{pod}/{b}"), ["--cgroup", &pod_flag]),
    ];
    let path = build("cgroups", "cgroup-target", &RELEASE);
    let (unified, pids) = mounts();
    let _outside = start(&path, "1");
    for mount in [Some(unified), pids].into_iter().flatten() {
        for (cgroup, flags) in &cases {
            let cgroup = Cgroup::make(&mount, cgroup);
            let mut program = start(&path, "20");
            cgroup.add(&program);
            let memleak = Memleak::attach_selected(flags);
            program.step("done");
            let (report, messages) = memleak.finish_with_messages();
            assert_eq!(leaks(&report), [(program.pid(), 20)], "{flags:?}: {messages:#?}");
            has_message(
                &messages,
                &format!("process {} (cgroup-target, in ", program.pid()),
            );
            drop(program);
        }
    }
}

/// A path below a mount is of that hierarchy, and the cgroups below it belong to it.
#[test]
fn cgroup_by_its_path() {
    let (unified, pids) = mounts();
    let name = format!("memleak-path-{}", std::process::id());
    let path = build("path", "path-target", &RELEASE);
    for mount in [Some(unified), pids].into_iter().flatten() {
        let below = Cgroup::make(&mount, &format!("{name}/below"));
        let mut program = start(&path, "5");
        below.add(&program);
        let whole = mount.join(&name);
        for cgroup in [whole.to_str().expect("UTF-8"), &name, &format!("/{name}/below")] {
            let memleak = Memleak::attach_selected(&["--cgroup", cgroup]);
            assert_eq!(memleak.finish().targets.len(), 1, "{cgroup}");
        }
        let memleak = Memleak::attach_selected(&["--cgroup", &name, "-p", "path-target"]);
        program.step("done");
        assert_eq!(leaks(&memleak.finish()), [(program.pid(), 5)]);
        let other = whole.with_file_name(format!("{name}x"));
        let error = refusal(&["--cgroup", other.to_str().expect("UTF-8")]);
        assert!(error.contains("no process is in the cgroup"), "{error}");
        drop(program);
    }
}

/// Commands that look at one process select it in the ways of a trace, and refuse several.
#[test]
fn one_process_by_its_cgroup() {
    let (unified, _) = mounts();
    let path = build("one", "one-target", &RELEASE);
    let cgroup = Cgroup::make(&unified, &format!("memleak-one-{}", std::process::id()));
    let mut program = start(&path, "5");
    cgroup.add(&program);
    // It has a heap from then on.
    program.step("done");
    let name = cgroup.path().to_str().expect("UTF-8");
    for (command, pid) in [("doctor", "/process/pid"), ("verdict", "/pid")] {
        let output = Command::new(env!("CARGO_BIN_EXE_memleak"))
            .args([command, "--cgroup", name, "--format", "json"])
            .output()
            .expect("memleak was built");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let found: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(found.pointer(pid), Some(&program.pid().into()), "{text}");
        let error = refusal(&[command, "--cgroup", &format!("{name}x")]);
        assert!(error.contains("no process is in the cgroup"), "{error}");
    }
    let other = start(&path, "5");
    cgroup.add(&other);
    let error = refusal(&["verdict", "--cgroup", name]);
    assert!(error.contains("exactly one process, but 2 match"), "{error}");
    drop((program, other));
}

/// Names of containers come from what Docker, podman and Kubernetes have written; memleak runs in a mount
/// namespace with such files.
#[test]
fn containers_by_name() {
    let path = build("containers", "boxed-target", &RELEASE);
    let (unified, _) = mounts();
    let ids = ['d', 'e', 'f'].map(id);
    let [docker, podman, pod] = ids.each_ref();
    let script = format!(
        "mount --make-rprivate / && mount -t tmpfs tmpfs /var/lib && mount -t tmpfs tmpfs /var/log && \
         mkdir -p /var/lib/docker/containers/{docker} /var/lib/containers/storage/overlay-containers /var/log/containers && \
         echo '{{\"Name\":\"/front\"}}' > /var/lib/docker/containers/{docker}/config.v2.json && \
         echo '[{{\"id\":\"{podman}\",\"names\":[\"database\"]}}]' > /var/lib/containers/storage/overlay-containers/containers.json && \
         : > /var/log/containers/shop-7_default_web-{pod}.log && exec \"$@\""
    );
    let inside = || {
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "sh",
            "-ec",
            &script,
            "sh",
            env!("CARGO_BIN_EXE_memleak"),
        ]);
        command
    };
    let cgroups = [
        format!("docker/{docker}"),
        format!("machine.slice/libpod-{podman}.scope"),
        format!("kubepods/pod1/{pod}"),
    ];
    // Each in a separate directory, which nothing else keeps from being removed.
    let names = ["docker", "podman", "pod"].map(|name| format!("memleak-{name}-{}", std::process::id()));
    let cgroups = [0, 1, 2].map(|at| Cgroup::make(&unified, &format!("{}/{}", names[at], cgroups[at])));
    let mut programs = [start(&path, "2"), start(&path, "4"), start(&path, "6")];
    for (cgroup, program) in cgroups.iter().zip(&programs) {
        cgroup.add(program);
    }
    for (at, names) in [
        &["front"][..],
        &["database"],
        &["web", "shop-7", "default/shop-7/web"],
    ]
    .into_iter()
    .enumerate()
    {
        for name in names {
            let memleak = Memleak::attach_selected_by(inside(), &["--container", name]);
            let report = memleak.finish();
            assert_eq!(report.targets.len(), 1, "{name}");
            assert_eq!(report.targets[0].pid, programs[at].pid(), "{name}");
        }
    }
    let output = inside()
        .args(["--container", "databse"])
        .output()
        .expect("util-linux is installed");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("in the container `databse`: did you mean database?"),
        "{error}"
    );
    for program in &mut programs {
        program.step("done");
    }
    drop(programs);
}

/// The processes of one user are found, and with a name only those that match both.
#[test]
fn user_and_name() {
    // Another user cannot reach this one's directories.
    let built = build("user", "user-target", &RELEASE);
    let shelf = tempfile::tempdir().expect("a directory");
    let path = shelf.path().join("user-target");
    run_tool(Command::new("install").args(["-m", "755"]).arg(&built).arg(&path));
    run_tool(Command::new("chmod").arg("755").arg(shelf.path()));
    let _of_root = start(&path, "1");
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]);
    let mut program = Program::spawn(command.arg(&path).arg("7"));
    program.expect("ready");
    for user in ["nobody", "65534"] {
        let memleak = Memleak::attach_selected(&["--user", user, "-p", "user-target"]);
        let (report, messages) = memleak.finish_with_messages();
        assert_eq!(leaks(&report), [(program.pid(), 0)]);
        has_message(
            &messages,
            &format!("{} (user-target, by name, of user {user})", program.pid()),
        );
    }
    let memleak = Memleak::attach_selected(&["--user", "nobody", "-p", "user-target"]);
    program.step("done");
    assert_eq!(leaks(&memleak.finish()), [(program.pid(), 7)]);
    let own = std::process::id().to_string();
    for (arguments, part) in [
        (
            ["--user", "no-such-user", "-p", "user-target"],
            "no user is named `no-such-user`",
        ),
        (
            ["--user", "daemon", "-p", "user-target"],
            "is named `user-target` and is of user `daemon`",
        ),
        (
            ["--user", "nobody", "-p", &own],
            "and is of user `nobody`; `ps -e`",
        ),
    ] {
        let error = refusal(&arguments);
        assert!(error.contains(part), "{error}");
    }
}

/// A trace begins when what it waits for starts, and sees the first allocation after that; it can be ended
/// before.
#[test]
fn waits_for_a_start() {
    let path = build("waits", "late-target", &RELEASE);
    let waiting = || {
        require_root();
        let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
        command.args(["-p", "late-target", "--wait", "--format", "json", "1d"]);
        let (child, reports, messages) = spawn(&mut command);
        let first = messages.next().expect("a message");
        assert!(
            first.contains("waiting: no process is named `late-target` yet"),
            "{first}"
        );
        (child, reports, messages)
    };
    let (mut child, reports, messages) = waiting();
    let mut program = start(&path, "8");
    while !messages.next().expect("it attaches").contains("tracing ") {}
    program.step("done");
    signal(child.id(), "INT");
    let report = Report::parse(&reports.rest().pop().expect("a report"));
    assert_eq!(leaks(&report), [(program.pid(), 8)]);
    assert!(child.wait().expect("a child of ours").success());
    drop(program);
    for name in ["INT", "TERM"] {
        let (mut child, reports, messages) = waiting();
        signal(child.id(), name);
        let last = messages.rest().pop().expect("a message");
        assert!(last.contains("ended while waiting: nothing was traced"), "{last}");
        assert_eq!(child.wait().expect("a child of ours").code(), Some(2));
        assert!(reports.rest().is_empty());
    }
}

/// A search with no match, or too many, is refused by a line that says what to do; commands that look at one
/// process want one.
#[test]
fn none_or_too_many() {
    let path = build("many", "many-target", &RELEASE);
    let mut one = start(&path, "1");
    for (arguments, parts) in [
        (
            &["-p", "mny-target"][..],
            &[
                "no process is named `mny-target`: did you mean many-target?",
                "--wait",
            ][..],
        ),
        (
            &["-p", "many-target,no-such-program"],
            &["no process is named `no-such-program`;"],
        ),
        (
            &["--container", "no-such-container"],
            &["is in the container `no-such-container`"],
        ),
        (&["--unit", "nginx.service"], &["--systemd-unit nginx.service"]),
        (
            &["doctor", "-p", "no-such-program"],
            &["no process is named `no-such-program`; `ps -e`"],
        ),
        // Refused before the wait.
        (
            &[
                "-p",
                "no-such-program",
                "--wait",
                "--output",
                "/no-such-directory/report.txt",
            ],
            &["/no-such-directory/report.txt"],
        ),
    ] {
        let error = refusal(arguments);
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    let memleak = Memleak::attach_selected(&["-p", "many-target"]);
    assert_eq!(memleak.finish().targets.len(), 1);
    let others: Vec<_> = (1..64).map(|_| start(&path, "1")).collect();
    let error = refusal(&["-p", "many-target", "--max-processes", "63"]);
    assert!(error.contains("64 processes match, but at most 63"), "{error}");
    let error = refusal(&["doctor", "-p", "many-target"]);
    assert!(
        error.contains("64 match") && error.contains(&one.pid().to_string()),
        "{error}"
    );
    drop(others);
    // It has a heap from then on.
    one.step("done");
    let output = Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(["verdict", "-p", "many-target"])
        .output();
    let text = String::from_utf8_lossy(&output.expect("memleak was built").stdout).into_owned();
    assert!(
        text.contains(&format!("in process {} (many-target)", one.pid())),
        "{text}"
    );
}

/// Processes that were found, and in which nothing can be probed, are left out with a warning; one that is
/// given by its number is not.
#[test]
fn what_cannot_be_traced_is_left_out() {
    let mut program = start(&build("left_out", "mixed-target", &RELEASE), "3");
    let closed = directory("targets-left_out-static").join("mixed-target");
    let closed = start(
        &compile_as(&closed, "amounts/plain.c", &["-O2", "-static", "-s"]),
        "3",
    );
    let memleak = Memleak::attach_selected(&["-p", "mixed-target"]);
    program.step("done");
    let (report, messages) = memleak.finish_with_messages();
    assert_eq!(leaks(&report), [(program.pid(), 3)]);
    has_message(
        &messages,
        &format!("left out: nothing to probe in process {}", closed.pid()),
    );
    let error = refusal(&["-p", &format!("{},mixed-target", closed.pid())]);
    assert!(
        error.contains(&format!("nothing to probe in process {}", closed.pid())),
        "{error}"
    );
}

/// Processes that end while memleak attaches to all that it has found do not end the trace of the others.
#[test]
fn some_end_meanwhile() {
    require_root();
    let path = build("ending", "ending-target", &RELEASE);
    let mut programs: Vec<_> = (0..8).map(|_| start(&path, "2")).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
    command.args(["-p", "ending-target", "--format", "json", "1d"]);
    let (mut child, reports, messages) = spawn(&mut command);
    let first = messages.next().expect("a message");
    assert!(first.contains("8 processes: "), "{first}");
    for program in programs.drain(4..) {
        drop(program);
        std::thread::sleep(Duration::from_millis(40));
    }
    while !messages.next().expect("it attaches").contains("tracing ") {}
    for program in &mut programs {
        program.step("done");
    }
    signal(child.id(), "INT");
    let report = Report::parse(&reports.rest().pop().expect("a report"));
    let expected = programs.iter().map(|program| (program.pid(), 2));
    let traced = leaks(&report);
    assert!({ expected }.all(|one| traced.contains(&one)), "{traced:?}");
    assert!(child.wait().expect("a child of ours").success());
}

/// A redis server, as Debian ships it, by its name, in a separate cgroup, as others may run.
#[test]
fn redis() {
    let directory = directory("targets-redis");
    let socket = directory.join("socket");
    let mut command = Command::new(stock("/usr/bin/redis-server", "redis-server"));
    command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
    let server = Program::spawn(command.arg(&socket).current_dir(&directory));
    let began = Instant::now();
    while !socket.exists() {
        assert!(began.elapsed() < *PATIENCE, "redis-server makes no socket");
        std::thread::sleep(Duration::from_millis(50));
    }
    let (unified, _) = mounts();
    let unit = format!("memleak-redis-{}", std::process::id());
    let cgroup = Cgroup::make(&unified, &format!("system.slice/{unit}.service"));
    cgroup.add(&server);
    let memleak = Memleak::attach_selected(&["-p", "redis-server", "--systemd-unit", &unit]);
    let mut command = Command::new(stock("/usr/bin/redis-cli", "redis-tools"));
    run_tool(
        command
            .arg("-s")
            .arg(&socket)
            .args(["set", "key", &"x".repeat(5000)]),
    );
    let (report, messages) = memleak.finish_with_messages();
    assert_eq!(report.targets.len(), 1);
    assert_eq!(report.targets[0].pid, server.pid());
    assert!(report.allocated.bytes > 5000, "{report}");
    has_message(
        &messages,
        &format!(
            "{} (redis-server, by name, in /system.slice/{unit}.service)",
            server.pid()
        ),
    );
    drop(server);
}
