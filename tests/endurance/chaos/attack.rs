//! memleak, started with some flags and ended at some moment.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::left_behind::{Object, changed_code, objects_of};
use super::subject::Subject;
use memleak_test::program::{Lines, PATIENCE};
use memleak_test::random::Random;

/// Ways to attach and to walk.
const FLAGS: &[&[&str]] = &[
    &[],
    &["--attach", "session"],
    &["--attach", "multi"],
    &["--attach", "perf"],
    &["--attach", "perf"],
    &["--unwind", "fp"],
    &["--source", "uprobe"],
    &["--mmap"],
    &["--faults"],
    &["--attach", "multi", "--unwind", "fp"],
];
/// Flags for what is recorded and reported.
const MORE_FLAGS: &[&[&str]] = &[
    &[],
    &[],
    &["--sample-bytes", "1K"],
    &["--sample-bytes", "64K"],
    &["--sample-rate", "3"],
    &["--max-overhead", "5"],
    &["--trace"],
    &["--min-size", "100"],
    &["--max-blocks", "1000", "--stack-storage-size", "100"],
    &["--show-allocs"],
    &["--check-walks"],
    &["--record", "recording"],
    &["--output", "report.json"],
    &["--output", "flames.svg"],
    &["--output", "page.html"],
    &[
        "--record",
        "recording",
        "--output",
        "profile.pb.gz",
        "--format",
        "pprof",
    ],
];
/// Flags that `--mmap` and `--faults` exclude, or one of them.
const ONLY_WITH_BLOCKS: &[&str] = &[
    "--sample-bytes",
    "--sample-rate",
    "--max-overhead",
    "--show-allocs",
    "--check-walks",
    "--trace",
    "--min-size",
];
const FILES: [&str; 5] = [
    "recording",
    "report.json",
    "flames.svg",
    "page.html",
    "profile.pb.gz",
];

/// Moment after which an attack waits before it ends memleak.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Started,
    /// First byte of the program's code changed: its first probe is there.
    Probed,
    Tracing,
    /// Request to end sent.
    Interrupted,
    /// First of its probes removed.
    Unprobed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Kill,
    Interrupt,
    InterruptTwice,
    Terminate,
    /// Killed after it stood still for a while.
    FreezeAndKill,
}

#[derive(Debug)]
pub struct Attack {
    flags: Vec<&'static str>,
    moment: Moment,
    wait: Duration,
    action: Action,
    /// Files that the flags have memleak write.
    pub files: Vec<String>,
}

/// Phase of memleak when it was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Preparing,
    Attaching,
    Tracing,
    /// Told to end, with probes still in the program.
    Detaching,
    Reporting,
    /// Ended by itself, as told.
    Ended,
}

#[derive(Debug)]
pub struct Outcome {
    pub phase: Phase,
    /// BPF objects of which memleak had descriptors.
    pub objects: BTreeSet<Object>,
    pub attached_after: Option<Duration>,
}

impl Attack {
    /// Draws a random attack. `longest` is the time that an attach takes at most.
    pub fn draw(random: &mut Random, subject: &Subject, longest: Duration) -> Self {
        let moments = [
            (
                Moment::Started,
                u64::try_from(longest.as_micros()).expect("some seconds"),
            ),
            (Moment::Probed, 1_000),
            (Moment::Probed, 20_000),
            (Moment::Probed, 100_000),
            (Moment::Tracing, 200_000),
            (Moment::Interrupted, 100_000),
            (Moment::Interrupted, 300_000),
            (Moment::Unprobed, 30_000),
        ];
        let action = [
            Action::Kill,
            Action::Kill,
            Action::Kill,
            Action::Kill,
            Action::Interrupt,
            Action::Interrupt,
            Action::InterruptTwice,
            Action::Terminate,
            Action::FreezeAndKill,
        ];
        let (moment, max_wait) = moments[random.index(moments.len())];
        let mut flags = FLAGS[random.index(FLAGS.len())].to_vec();
        let more = MORE_FLAGS[random.index(MORE_FLAGS.len())];
        let has_no_blocks = flags.contains(&"--mmap") || flags.contains(&"--faults");
        let is_out = |flag: &&str| has_no_blocks && ONLY_WITH_BLOCKS.contains(flag);
        if !more.iter().any(is_out) {
            flags.extend(more);
        }
        if subject.has_children && random.below(3) == 0 {
            flags.push("--follow-fork");
        }
        let files = FILES
            .into_iter()
            .filter(|file| flags.contains(file))
            .map(str::to_owned)
            .collect();
        Self {
            flags,
            moment,
            wait: Duration::from_micros(random.below(max_wait)),
            action: action[random.index(action.len())],
            files,
        }
    }

    /// Starts memleak on `pid`, in an empty directory, and ends it.
    #[track_caller]
    pub fn carry_out(&self, pid: u32, scratch: &Path) -> Outcome {
        let mut memleak = Running::start(self, pid, scratch);
        self.await_moment(&mut memleak);
        sleep(self.wait);
        let phase = memleak.phase();
        let objects = objects_of(memleak.child.id());
        self.end(&mut memleak);
        let status = memleak.await_end();
        // Signals end memleak until it handles them.
        let is_killed = matches!(self.action, Action::Kill | Action::FreezeAndKill);
        let is_meant = match (status.code(), status.signal()) {
            (None, Some(9)) => is_killed,
            (None, Some(2 | 15)) | (Some(0 | 130 | 143), _) => !is_killed || memleak.is_interrupted,
            _ => false,
        };
        assert!(
            is_meant,
            "{self:?}, {phase:?}: {status}: {:#?}",
            memleak.seen_messages()
        );
        Outcome {
            phase,
            objects,
            attached_after: memleak.attached_after,
        }
    }

    fn await_moment(&self, memleak: &mut Running) {
        match self.moment {
            Moment::Started => {}
            Moment::Probed => memleak.await_code(|changed, _| changed > 0),
            Moment::Tracing => memleak.await_tracing(),
            Moment::Interrupted => memleak.interrupt_tracing(),
            Moment::Unprobed => {
                memleak.await_tracing();
                let probes = changed_code(memleak.target);
                memleak.interrupt();
                memleak.await_code(|changed, _| changed < probes.max(1));
            }
        }
    }

    fn end(&self, memleak: &mut Running) {
        match self.action {
            Action::Kill => memleak.signal(Signal::SIGKILL),
            Action::Terminate => memleak.signal(Signal::SIGTERM),
            Action::Interrupt => memleak.interrupt(),
            Action::InterruptTwice => {
                memleak.interrupt();
                sleep(self.wait / 4);
                memleak.interrupt();
            }
            Action::FreezeAndKill => {
                memleak.signal(Signal::SIGSTOP);
                sleep(Duration::from_millis(50));
                memleak.signal(Signal::SIGKILL);
            }
        }
    }
}

/// memleak; killed when dropped.
struct Running {
    child: Child,
    target: u32,
    began: Instant,
    messages: Lines,
    seen_messages: Vec<String>,
    attached_after: Option<Duration>,
    is_interrupted: bool,
}

impl Running {
    fn start(attack: &Attack, target: u32, scratch: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_memleak"))
            .args(["--no-config", "-v", "-p", &target.to_string()])
            .args(&attack.flags)
            .arg("0.2")
            .current_dir(scratch)
            .env("TMPDIR", scratch)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("memleak was built");
        Self {
            messages: Lines::of(child.stderr.take().expect("a pipe"), "memleak"),
            child,
            target,
            began: Instant::now(),
            seen_messages: Vec::new(),
            attached_after: None,
            is_interrupted: false,
        }
    }

    /// Takes note of the messages that it has written so far.
    fn listen(&mut self) {
        while let Some(line) = self.messages.try_next() {
            self.note_message(line);
        }
    }

    fn note_message(&mut self, line: String) {
        if line.contains("tracing ") && self.attached_after.is_none() {
            self.attached_after = Some(self.began.elapsed());
        }
        self.seen_messages.push(line);
    }

    /// Waits until all is attached.
    #[track_caller]
    fn await_tracing(&mut self) {
        while self.attached_after.is_none() {
            match self.messages.next() {
                Some(line) => self.note_message(line),
                None => panic!("memleak did not attach: {:#?}", self.seen_messages),
            }
        }
    }

    fn interrupt_tracing(&mut self) {
        self.await_tracing();
        self.interrupt();
    }

    fn interrupt(&mut self) {
        self.is_interrupted = true;
        self.signal(Signal::SIGINT);
    }

    /// Waits until `condition` is true of the number of changed bytes in the program's code, or memleak
    /// traces without probes, or has ended.
    fn await_code(&mut self, condition: impl Fn(usize, &Self) -> bool) {
        while !condition(changed_code(self.target), self) && !self.has_ended() {
            self.listen();
            if self.attached_after.is_some() && !self.is_interrupted {
                return;
            }
            assert!(self.began.elapsed() < *PATIENCE, "{:#?}", self.seen_messages);
        }
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_some()
    }

    fn phase(&mut self) -> Phase {
        self.listen();
        let has_probes = changed_code(self.target) > 0;
        match (
            self.has_ended(),
            self.is_interrupted,
            self.attached_after,
            has_probes,
        ) {
            (true, ..) => Phase::Ended,
            (_, true, _, true) => Phase::Detaching,
            (_, true, _, false) => Phase::Reporting,
            (_, _, Some(_), _) => Phase::Tracing,
            (_, _, None, true) => Phase::Attaching,
            (_, _, None, false) => Phase::Preparing,
        }
    }

    /// Sends a signal, unless memleak has ended: until it is waited for, its pid is not used again.
    fn signal(&mut self, signal: Signal) {
        if !self.has_ended() {
            let pid = i32::try_from(self.child.id()).expect("a pid");
            kill(Pid::from_raw(pid), signal).expect("a child of ours");
        }
    }

    #[track_caller]
    fn await_end(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                return status;
            }
            assert!(
                began.elapsed() < *PATIENCE,
                "it does not end: {:#?}",
                self.seen_messages()
            );
            sleep(Duration::from_millis(1));
        }
    }

    fn seen_messages(&mut self) -> &[String] {
        self.listen();
        &self.seen_messages
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
