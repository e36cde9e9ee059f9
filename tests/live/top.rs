//! `memleak top` on real processes: the rate of a leaking one is found, noise and single steps are not taken
//! for growth, and the chosen process is traced.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

use memleak_test::cgroup::memory_controller;
use memleak_test::program::{Program, compile_as, copy_program, directory, require_root};
use memleak_test::terminal::{Session, Terminal};

const RELEASE: [&str; 2] = ["-O2", "-fno-omit-frame-pointer"];
/// Bytes by which a steady program grows in a minute.
const RATE: f64 = 75.0 * (1 << 20) as f64;

/// Compiles the program under its own name.
fn build(name: &str) -> PathBuf {
    compile_as(
        &directory(&format!("top-{name}")).join(name),
        "amounts/resident.c",
        &RELEASE,
    )
}

#[track_caller]
fn start(path: &Path, arguments: &[&str]) -> Program {
    require_root();
    let program = Program::start(path, arguments);
    program.expect("ready");
    program
}

/// `memleak top` with tables in JSON, one after another; killed when dropped.
struct Top {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Top {
    #[track_caller]
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memleak"));
        command.args(["top", "--format", "json"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("memleak was built");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, lines }
    }

    #[track_caller]
    fn table(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("UTF-8");
        serde_json::from_str(&line).expect("a table")
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn pids(table: &Value) -> Vec<u64> {
    let processes = table["processes"].as_array().expect("a list").iter();
    processes
        .map(|process| process["pid"].as_u64().expect("a pid"))
        .collect()
}

#[track_caller]
fn process(table: &Value, program: &Program) -> Value {
    let mut processes = table["processes"].as_array().expect("a list").iter();
    let found = processes.find(|process| process["pid"] == program.pid());
    found
        .unwrap_or_else(|| panic!("no {} in {table}", program.pid()))
        .clone()
}

/// A steady leak is first, with its true rate; random sizes and one step are no growth; a process that comes
/// later is judged by what it does, and one that ends is gone.
#[test]
fn rates_of_processes() {
    let path = build("top-rates");
    let (steady, noise) = (start(&path, &["steady"]), start(&path, &["noise"]));
    let step = start(&path, &["step", "3000"]);
    let mut ends = start(&path, &["steady"]);
    let mut top = Top::start(&["-p", "top-rates", "6", "3"]);
    let first = top.table();
    let mut noisy = 0;
    assert_eq!(pids(&first).len(), 4, "{first}");
    let later = start(&path, &["steady"]);
    let second = top.table();
    ends.signal("KILL");
    ends.await_end();
    let third = top.table();
    for table in [&first, &second, &third] {
        let found = process(table, &steady);
        assert_eq!(found["trend"], "grows", "{found}");
        let growth = |name: &str| found["growth"][name].as_f64().expect("a number");
        let rate = growth("bytes_per_minute");
        assert!((rate - RATE).abs() < RATE / 20.0, "{found}");
        assert!(
            growth("low") <= rate && rate <= growth("high") && growth("low") > RATE * 0.9,
            "{found}"
        );
        assert_ne!(process(table, &step)["trend"], "grows", "{table}");
        // A result of 99 % certainty may be wrong once, but not twice in three tables.
        noisy += u32::from(process(table, &noise)["trend"] != "none");
        let last = pids(table)
            .into_iter()
            .rposition(|pid| pid == u64::from(noise.pid()));
        assert!(last >= Some(1), "{table}");
    }
    assert!(noisy <= 1, "{first}\n{second}\n{third}");
    assert_eq!(process(&second, &later)["trend"], "grows", "{second}");
    assert!(process(&second, &later)["samples"].as_u64() < process(&second, &steady)["samples"].as_u64());
    assert!(process(&second, &ends)["trend"] == "grows" && !pids(&third).contains(&ends.pid().into()));
    assert_eq!(third["trends"]["grows"], 2, "{third}");
    // By then, it has grown by some megabytes.
    let held = |table| {
        process(table, &steady)["anonymous_bytes"]
            .as_u64()
            .expect("a number")
    };
    assert!(held(&third) > held(&first) + 10 * (1 << 20));
}

/// The time until the limit of its cgroup is what is left of that, at the rate of the process.
#[test]
fn limits_of_cgroups() {
    let path = build("top-limit");
    let steady = start(&path, &["steady"]);
    let (mount, limit) = memory_controller();
    let group = mount.join(format!("memleak-top-{}", steady.pid()));
    fs::create_dir(&group).expect("root");
    fs::write(group.join(limit), (4_u64 << 30).to_string()).expect("root");
    fs::write(group.join("cgroup.procs"), steady.pid().to_string()).expect("root");
    let mut top = Top::start(&["-p", &steady.pid().to_string(), "5", "6"]);
    // While the machine pauses nothing grows, so that growth may not be certain at first.
    let mut tables = (0..6).map(|_| process(&top.table(), &steady));
    let found = tables
        .find(|found| found["trend"] == "grows")
        .expect("a certain rate");
    drop(steady);
    let began = std::time::Instant::now();
    while fs::remove_dir(&group).is_err() && began.elapsed().as_secs() < 5 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let full = &found["full"];
    assert_eq!(full["what"], "cgroup", "{found}");
    assert_eq!(full["limit_bytes"], 4_u64 << 30, "{found}");
    let cgroup = full["cgroup"].as_str().expect("a path");
    assert_eq!(mount.join(cgroup.trim_start_matches('/')), group);
    let minutes = full["after_ns"].as_f64().expect("a number") / 6e10;
    let expected = 4.0 * f64::from(1 << 30) / RATE;
    assert!((minutes - expected).abs() < expected / 10.0, "{minutes} {found}");
}

/// The table has the live view's look and keys; Enter traces the selected process as `memleak live -p PID`
/// does, and signals then make the last report.
#[test]
fn enter_traces_the_selected_process() {
    let path = build("top-view");
    let (steady, noise) = (start(&path, &["steady"]), start(&path, &["noise"]));
    let mut terminal = Terminal::start(&["top", "-p", "top-view", "0.2"]);
    let screen = terminal.await_screen("growth", |screen| {
        screen.contains("1 growing")
            && screen
                .lines()
                .any(|line| line.starts_with('>') && line.contains("MiB"))
    });
    assert!(screen.starts_with("memleak top  2 processes"), "{screen}");
    let row = |screen: &str, pid: u32| {
        let mut lines = screen.lines();
        lines
            .find(|line| line.contains(&format!(" {pid} ")))
            .unwrap_or_default()
            .to_owned()
    };
    assert!(row(&screen, steady.pid()).starts_with('>'), "{screen}");
    assert!(row(&screen, steady.pid()).contains("+7"), "{screen}");
    fs::write(directory("top-view-screen").join("screen.txt"), &screen).expect("our own directory");
    terminal.press("?");
    terminal.await_text("trace the selected process");
    terminal.press("\u{1b}");
    terminal.await_text("GROWTH/min▼");
    terminal.press("/no such name");
    terminal.await_text("No process has `no such name`");
    terminal.press("\u{1b}");
    terminal.await_text("Enter trace");
    terminal.press("o");
    terminal.await_text("ANON▼");
    terminal.press("g/");
    terminal.press(&noise.pid().to_string());
    terminal.press("\r");
    terminal.await_screen("the other one", |screen| {
        row(screen, noise.pid()).starts_with('>')
    });
    terminal.press("\r");
    let screen = terminal.await_text("nothing lost");
    assert!(
        screen.starts_with(&format!("memleak  {} top-view", noise.pid())),
        "{screen}"
    );
    memleak_test::program::signal(terminal.pid(), "INT");
    let (status, screen) = terminal.wait();
    assert_eq!(status, Some(0), "{screen}");
    assert!(screen.contains("0 B in 0 blocks outstanding"), "{screen}");
}

/// Copies memleak to where any user can execute it.
fn copy(place: &tempfile::TempDir) -> PathBuf {
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(place.path(), open).expect("our own directory");
    let path = place.path().join("memleak");
    copy_program(env!("CARGO_BIN_EXE_memleak"), &path);
    path
}

/// Without root, the table is whole; a trace is refused in the view, which goes on, and where processes are
/// hidden, that is said.
#[test]
fn without_rights() {
    let path = build("top-others");
    let steady = start(&path, &["steady"]);
    let place = tempfile::tempdir().expect("a directory");
    let memleak = copy(&place);
    let memleak = memleak.to_str().expect("UTF-8");
    let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups", memleak];
    let top = [&nobody[..], &["top", "-p", "top-others", "0.2"]].concat();
    let mut terminal = Terminal::run(Path::new("setpriv"), Session::Own, &top, &[]);
    terminal.await_text("1 growing");
    terminal.press("\r");
    let screen = terminal.await_text("cannot be traced: ");
    assert!(
        screen.contains(&format!("process {} cannot", steady.pid())),
        "{screen}"
    );
    terminal.press("j");
    terminal.await_screen("no message", |screen| !screen.contains("cannot be traced"));
    terminal.press("q");
    assert_eq!(terminal.wait().0, Some(0));
    // A new mount: options of the machine's own would apply to all processes.
    let hidden = format!(
        "mount -t proc -o hidepid=2 proc /proc && exec setpriv {} top --once 2",
        nobody.join(" ")
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &hidden])
        .output();
    let output = output.expect("unshare (apt-get install util-linux)");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        text.contains("Note: /proc hides the processes of other users (hidepid)"),
        "{text}"
    );
    assert!(!text.contains("top-others"), "{text}");
}
