//! Passes signals that memleak gets on to the program that it started: users of `memleak -- PROGRAM` signal
//! memleak, and mean the program. The terminal sends its signals to both, as they are in one process group.
//!
//! Also handles signals that memleak was started with as ignored (`nohup`, `&` in a script): memleak handles
//! them itself, and starts the program with them ignored, as it would have been without memleak.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::signal::{self, Signal};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use memleak_base::proc_fields::ProcFields;

/// Signals that are passed on. Not SIGUSR1, which memleak uses itself (a mark), nor SIGKILL, which ends
/// memleak alone.
pub const PASSED_ON: [Signal; 5] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR2,
];

/// Passes signals on to the program, while it exists.
#[derive(Debug, Default)]
pub struct Relay {
    stage: Mutex<Stage>,
    ignored: Vec<Signal>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    NotStarted,
    Started(Pid),
    /// Reaped: its pid may be reused.
    Ended,
}

/// Source of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A process, with its pid if known.
    Process(Option<i32>),
    /// The kernel, for a terminal.
    Terminal,
}

/// Result of [`Relay::pass_on`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relayed {
    /// The program got it, from memleak or directly.
    Delivered,
    /// The system did not permit it.
    Refused(Errno),
    NotStarted,
    Ended,
}

impl Relay {
    /// Reads which signals memleak was started with as ignored. Call it before any signal handler is
    /// installed.
    pub fn new() -> Self {
        Self {
            stage: Mutex::default(),
            ignored: ignored(&ProcFields::own_status()),
        }
    }

    /// Signals to be ignored by the program from its start.
    pub(super) fn ignored(&self) -> &[Signal] {
        &self.ignored
    }

    /// True if memleak was started with this signal ignored.
    pub fn ignores(&self, signal: Signal) -> bool {
        self.ignored.contains(&signal)
    }

    /// Passes a signal on, unless the program got it directly from the terminal, or sent it itself
    /// (`kill 0`).
    pub fn pass_on(&self, signal: Signal, sender: Sender) -> Relayed {
        let stage = self.stage();
        match *stage {
            Stage::NotStarted => Relayed::NotStarted,
            Stage::Ended => Relayed::Ended,
            Stage::Started(pid) if has_ended(pid) => Relayed::Ended,
            Stage::Started(_) if sender == Sender::Terminal => Relayed::Delivered,
            Stage::Started(pid) if sender == Sender::Process(Some(pid.as_raw())) => Relayed::Delivered,
            // While the stage is locked, the program is not reaped, so its pid cannot be reused.
            Stage::Started(pid) => match signal::kill(pid, signal) {
                Ok(()) => Relayed::Delivered,
                Err(error) => Relayed::Refused(error),
            },
        }
    }

    /// Starts a program by calling `start`; signals that arrive meanwhile wait for the lock.
    pub(super) fn start<T, E>(&self, start: impl FnOnce() -> Result<(T, Pid), E>) -> Result<T, E> {
        let mut stage = self.stage();
        let (started, pid) = start()?;
        *stage = Stage::Started(pid);
        Ok(started)
    }

    /// Calls `wait` to reap the program, and notes its end if `wait` returned `Some`.
    pub(super) fn reap<T>(&self, wait: impl FnOnce() -> Option<T>) -> Option<T> {
        let mut stage = self.stage();
        let end = wait();
        if end.is_some() {
            *stage = Stage::Ended;
        }
        end
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        // A poisoned lock is usable: every change of the stage is a single store.
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True if a child has ended and was not reaped.
fn has_ended(pid: Pid) -> bool {
    let options = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    waitid(Id::Pid(pid), options).is_ok_and(|status| status != WaitStatus::StillAlive)
}

/// Signals, of those that are passed on and those that memleak uses, which a process ignores: bit N - 1 is
/// signal N.
fn ignored(status: &ProcFields) -> Vec<Signal> {
    let mask = status.bits("SigIgn").unwrap_or_default();
    let is_ignored = |signal: &Signal| mask >> (*signal as i32 - 1) & 1 == 1;
    let handled = PASSED_ON.into_iter().chain([Signal::SIGUSR1, Signal::SIGXFSZ]);
    handled.filter(is_ignored).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::wait::waitpid;

    use super::*;

    /// The kernel's mask is read by signal number, and signals that memleak does not handle are left out.
    #[test]
    fn ignored_signals() {
        for (mask, expected) in [
            ("0000000000000000", &[][..]),
            ("0000000000000001", &[Signal::SIGHUP]),
            ("0000000000000006", &[Signal::SIGINT, Signal::SIGQUIT]),
            ("0000000000001000", &[]),
            ("0000000000000a00", &[Signal::SIGUSR2, Signal::SIGUSR1]),
            ("0000000001000000", &[Signal::SIGXFSZ]),
            ("nonsense", &[]),
        ] {
            let status = format!("Name:\tx\nSigBlk:\tffffffffffffffff\nSigIgn:\t{mask}\nSigCgt:\t0\n");
            assert_eq!(ignored(&status.as_bytes().into()), expected, "{mask}");
        }
        assert_eq!(ignored(&ProcFields::default()), []);
    }

    /// A signal is passed on while the program runs, unless the program has it already.
    #[test]
    fn signals_are_passed_on() {
        let relay = Relay::default();
        let process = Sender::Process(Some(1));
        assert_eq!(relay.pass_on(Signal::SIGTERM, process), Relayed::NotStarted);
        let child = relay.start(|| {
            let child = Command::new("sleep").arg("100").spawn()?;
            let pid = i32::try_from(child.id()).expect("a pid");
            std::io::Result::Ok((child, Pid::from_raw(pid)))
        });
        let pid = Pid::from_raw(i32::try_from(child.expect("there is sleep").id()).expect("a pid"));
        let wait = |flags| {
            let status = waitpid(pid, Some(flags)).expect("a child of ours");
            if let WaitStatus::Signaled(_, signal, _) = status {
                return Some(signal);
            }
            assert_eq!(status, WaitStatus::StillAlive);
            None
        };
        let by_itself = Sender::Process(Some(pid.as_raw()));
        for sender in [Sender::Terminal, by_itself] {
            assert_eq!(relay.pass_on(Signal::SIGKILL, sender), Relayed::Delivered);
        }
        assert_eq!(relay.reap(|| wait(WaitPidFlag::WNOHANG)), None);
        assert_eq!(relay.pass_on(Signal::SIGTERM, process), Relayed::Delivered);
        let ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(pid), ended).expect("a child of ours");
        assert_eq!(relay.pass_on(Signal::SIGTERM, process), Relayed::Ended);
        assert_eq!(relay.reap(|| wait(WaitPidFlag::empty())), Some(Signal::SIGTERM));
        assert_eq!(relay.pass_on(Signal::SIGTERM, process), Relayed::Ended);
    }
}
