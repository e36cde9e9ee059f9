//! A diagnosis of a process that is shown: `memleak why`, run by this program's own executable as a child.
//!
//! The child traces by itself, and its end detaches, whatever becomes of the view. A thread starts it, reads
//! what it says and reaps it, so that the view never waits.

use std::env;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::text::printable;
use crate::base::parallel::lock;

/// Time that a diagnosis may take.
const TIME: Duration = Duration::from_secs(60);
/// Maximum bytes that are read of what a child says.
const MAX_TEXT: u64 = 256 << 10;

/// A diagnosis that is being made, or has been. Dropping it ends the child.
#[derive(Debug)]
pub(super) struct Diagnosing {
    pid: u32,
    began: Instant,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Process id of the child, until it is reaped: from then on, it can be another process's.
    child: Option<u32>,
    /// True once the window is closed.
    is_closed: bool,
    /// Lines, printable.
    answer: Option<Vec<String>>,
}

/// Command that diagnoses a process. Settings from elsewhere do not apply to it: they are about the trace
/// that is shown.
pub(super) fn command(pid: u32) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("memleak")
        .args(["why", "--no-config", "--color", "never", "-q", "--format", "text"])
        .args(["-p", &pid.to_string(), &format!("{}s", TIME.as_secs())]);
    for (name, _) in env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"MEMLEAK_") {
            command.env_remove(name);
        }
    }
    command
}

impl Diagnosing {
    /// Starts to diagnose a process by a command.
    pub(super) fn start(pid: u32, command: Command) -> Self {
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        let thread = thread::Builder::new().name("diagnosis".to_owned());
        let started = thread.spawn(move || {
            let said = answer(command, &shared).unwrap_or_else(|error| format!("cannot be told: {error}"));
            lock(&shared).answer = Some(said.lines().map(printable).collect());
        });
        if let Err(error) = started {
            lock(&state).answer = Some(vec![format!("cannot be told: {error}")]);
        }
        Self {
            pid,
            began: Instant::now(),
            state,
        }
    }

    /// The answer, or how long it will take; printable.
    pub(super) fn lines(&self) -> Vec<String> {
        if let Some(answer) = &lock(&self.state).answer {
            return answer.clone();
        }
        let left = TIME.saturating_sub(self.began.elapsed()).as_secs();
        let progress = match left {
            0 => "the answer is being made".to_owned(),
            left => format!("{left} s left"),
        };
        vec![
            format!("looking at process {} … {progress}", self.pid),
            String::new(),
            "First its memory is read again and again, which costs it nothing; then what grows is traced for a moment.".to_owned(),
        ]
    }
}

impl Drop for Diagnosing {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        if let Some(child) = state.child {
            end(child);
        }
    }
}

/// Requests the end of a child that is not reaped yet.
fn end(child: u32) {
    if let Ok(child) = i32::try_from(child) {
        // It may have ended already.
        _ = kill(Pid::from_raw(child), Signal::SIGTERM);
    }
}

/// Runs a command to its end, and returns what it says; if that is nothing, the errors.
fn answer(mut command: Command, state: &Mutex<State>) -> io::Result<String> {
    let piped = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = piped.spawn()?;
    {
        let mut state = lock(state);
        state.child = Some(child.id());
        if state.is_closed {
            end(child.id());
        }
    }
    let errors = child.stderr.take();
    let errors = thread::spawn(move || errors.map_or_else(String::new, text_of));
    let said = child.stdout.take().map_or_else(String::new, text_of);
    let errors = errors.join().unwrap_or_default();
    lock(state).child = None;
    child.wait()?;
    let errors = errors
        .lines()
        .map(|line| line.strip_prefix("memleak: ").unwrap_or(line));
    match said.is_empty() {
        true => Ok(errors.collect::<Vec<_>>().join("\n")),
        false => Ok(said),
    }
}

/// Reads a text to its end, or to its maximum length.
fn text_of(from: impl Read) -> String {
    let mut bytes = Vec::new();
    // What was read before an error is shown.
    _ = from.take(MAX_TEXT).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    fn awaited(mut is_true: impl FnMut() -> bool) -> bool {
        let began = Instant::now();
        while !is_true() && began.elapsed() < Duration::from_secs(20) {
            thread::sleep(Duration::from_millis(5));
        }
        is_true()
    }

    fn answer_to(script: &str) -> Vec<String> {
        let diagnosing = Diagnosing::start(7, shell(script));
        assert!(awaited(|| lock(&diagnosing.state).answer.is_some()), "{script}");
        diagnosing.lines()
    }

    /// The answer is what the child says, or else its errors; nothing in it acts on the terminal.
    #[test]
    fn answers() {
        assert_eq!(
            answer_to(r"printf 'grows\n   by a\033[2J\n'; echo no >&2"),
            ["grows", r"   by a\u{1b}[2J"]
        );
        assert_eq!(
            answer_to("echo 'memleak: no process 7' >&2; exit 2"),
            ["no process 7"]
        );
        let missing = Diagnosing::start(7, Command::new("/no/such/program"));
        assert!(awaited(|| missing.lines()[0].starts_with("cannot be told: ")));
    }

    /// Without an answer it says how long it takes. Closing it ends the child, which is reaped.
    #[test]
    fn closing_ends_the_child() {
        let directory = tempfile::tempdir().expect("a directory");
        let ended = directory.path().join("ended");
        let script = format!(
            "trap 'echo x > {}; exit' TERM; while :; do sleep 0.05; done",
            ended.display()
        );
        let diagnosing = Diagnosing::start(7, shell(&script));
        assert!(
            diagnosing.lines()[0].starts_with("looking at process 7 … "),
            "{:?}",
            diagnosing.lines()
        );
        let state = Arc::clone(&diagnosing.state);
        assert!(awaited(|| lock(&state).child.is_some()));
        // Until the trap is set.
        thread::sleep(Duration::from_millis(200));
        drop(diagnosing);
        assert!(awaited(|| ended.exists()));
        assert!(awaited(|| lock(&state).child.is_none()));
    }
}
