//! memleak is killed while it starts a program, at random moments: the program does all that it would do
//! without memleak, or nothing at all.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::prctl::set_child_subreaper;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use super::left_behind::{children, orphans};
use super::{rounds, seed, wait_until};
use memleak_test::program::{PATIENCE, compile_as, directory, require_root};
use memleak_test::random::Random;

/// Number of rounds of the program, after which it ends with the status [`DONE`].
const PROGRAM_ROUNDS: &str = "20";
const DONE: i32 = 42;
/// Environment variable by which processes that memleak started are found.
const TOKEN: &str = "MEMLEAK_CHAOS_HELD";

/// Fate of the program after memleak was killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    /// Not started yet.
    NotStarted,
    /// Killed with memleak, before it did anything.
    KilledBefore,
    /// Went on, to its end.
    Completed,
    /// Had ended before.
    EndedBefore,
}

/// Moment after which the test waits before it kills memleak.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Started,
    /// Program forked.
    Forked,
}

/// Starts memleak, which starts the program; the output of both goes to files in `directory`.
fn start(program: &Path, directory: &Path, attach: &str, token: &str) -> Child {
    fs::create_dir(directory).expect("a new directory");
    let file = |name| File::create(directory.join(name)).expect("a new file");
    Command::new(env!("CARGO_BIN_EXE_memleak"))
        .args(["--no-config", "--attach", attach, "--output", "report.json", "--"])
        .arg(program)
        .args([PROGRAM_ROUNDS, "stop"])
        .current_dir(directory)
        .env(TOKEN, token)
        .stdin(Stdio::null())
        .stdout(file("output"))
        .stderr(file("errors"))
        .spawn()
        .expect("memleak was built")
}

/// Returns the ends of processes that memleak had started, which are this process's children now. Leaves out
/// memleak's helpers that attach and detach: they end with 0, which the program never does.
fn statuses(pids: &[u32]) -> Vec<WaitStatus> {
    let pids = pids
        .iter()
        .map(|&pid| Pid::from_raw(i32::try_from(pid).expect("a pid")));
    let ends = pids.filter_map(|pid| waitpid(pid, None).ok());
    ends.filter(|end| !matches!(end, WaitStatus::Exited(_, 0)))
        .collect()
}

fn output(directory: &Path) -> String {
    fs::read_to_string(directory.join("output")).expect("a file of ours")
}

/// Kills memleak, and determines the program's fate.
#[track_caller]
fn kill(mut memleak: Child, directory: &Path, expected: &str, context: &str) -> Fate {
    let started = children(memleak.id());
    memleak.kill().expect("a child of ours");
    let status = memleak.wait().expect("a child of ours");
    let ends = statuses(&started);
    let printed = output(directory);
    let errors = || fs::read_to_string(directory.join("errors")).unwrap_or_default();
    match (status.code(), &ends[..]) {
        (Some(DONE), []) if printed == expected => Fate::EndedBefore,
        (None, []) if printed.is_empty() => Fate::NotStarted,
        (None, [WaitStatus::Signaled(..)]) if printed.is_empty() => Fate::KilledBefore,
        (None, [WaitStatus::Exited(_, DONE)]) if printed == expected => Fate::Completed,
        // The program had just ended, and memleak was about to report that.
        (None, []) if printed == expected => Fate::EndedBefore,
        _ => panic!(
            "{context}: memleak ended with {status}, the program with {ends:?}: {printed:?} {}",
            errors()
        ),
    }
}

/// Returns an error that names a process which memleak started, if one is left.
fn is_any_left(token: &str) -> Result<(), String> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    let token = format!("{TOKEN}={token}");
    for entry in entries {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment
            .split(|&byte| byte == 0)
            .any(|variable| variable == token.as_bytes())
        {
            return Err(format!("{} runs", entry.path().display()));
        }
    }
    Ok(())
}

/// memleak is killed at random moments by SIGKILL (other signals are for the program): the program runs to
/// its end, or not at all.
#[test]
fn program_runs_fully_or_not_at_all() {
    require_root();
    set_child_subreaper(true).expect("every process may");
    let directory = directory("starting");
    let flags = ["-O2", "-fomit-frame-pointer", "-pthread"];
    let program = compile_as(&directory.join("program"), "chaos/exceptions.cpp", &flags);
    let untraced = Command::new(&program).args([PROGRAM_ROUNDS, "stop"]).output();
    let expected = String::from_utf8(untraced.expect("it was compiled").stdout).expect("text");
    let token = std::process::id().to_string();
    let before = orphans();
    let mut random = Random::new(seed());
    let mut fates: BTreeMap<Fate, u64> = BTreeMap::new();
    let mut directories: Vec<PathBuf> = Vec::new();
    for round in 0..2 * rounds() {
        let attach = ["session", "multi", "perf"][random.index(3)];
        let (moment, max_wait) = [
            (Moment::Started, 2000),
            (Moment::Forked, 10),
            (Moment::Forked, 500),
        ][random.index(3)];
        let wait = Duration::from_micros(random.below(1000 * max_wait));
        let context = format!(
            "seed {}, round {round}: {attach}, {wait:?} after {moment:?}",
            seed()
        );
        let place = directory.join(round.to_string());
        let mut memleak = start(&program, &place, attach, &token);
        if let Moment::Forked = moment {
            let began = Instant::now();
            while children(memleak.id()).is_empty() && memleak.try_wait().is_ok_and(|end| end.is_none()) {
                assert!(began.elapsed() < *PATIENCE, "{context}: it starts nothing");
            }
        }
        sleep(wait);
        *fates
            .entry(kill(memleak, &place, &expected, &context))
            .or_default() += 1;
        directories.push(place);
    }
    wait_until("started programs", || is_any_left(&token));
    for place in directories {
        let printed = output(&place);
        assert!(
            printed.is_empty() || printed == expected,
            "{}: {printed}",
            place.display()
        );
    }
    wait_until("no kernel objects are left", || {
        match orphans().difference(&before).count() {
            0 => Ok(()),
            count => Err(format!("{count} objects in the kernel")),
        }
    });
    let _ = writeln!(stderr(), "chaos: started programs: {fates:?}; seed {}", seed());
}
