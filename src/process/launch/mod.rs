//! Starts a program and holds it before any code of its own runs: once its loader has mapped and relocated
//! everything, and before the first constructor.
//!
//! How: the program is started under ptrace, runs to a hardware breakpoint in its loader's hook for debuggers, and is
//! let go from there. Of all ways to hold a program this one leaves no trace in it: nothing of its memory is written
//! (a breakpoint instruction would be), it gets no signal (after SIGSTOP and SIGCONT a handler for the latter would run,
//! and its parent would be told), and it is not traced any more when its own code begins. What is at the address where it
//! is held is the caller's affair.
//!
//! Its environment and its process group are ours, and its standard streams too, unless they are a terminal that we need
//! for ourselves ([`Streams`]); signals that are meant for it are passed on ([`Relay`]).

mod account;
mod breakpoints;
mod held;
mod relay;
mod user;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;
use thiserror::Error;

pub use held::Held;
pub use relay::{PASSED_ON, Relay, Relayed, Sender};

/// User and group of who called sudo; `None` when nobody did, when it was root, or when we are not root.
///
/// # Errors
///
/// The environment names a user that does not exist.
pub fn invoking_user() -> io::Result<Option<(u32, u32)>> {
    Ok(user::RunAs::find()?.map(|user| user.ids()))
}

/// The standard streams of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// Ours.
    Ours,
    /// Ours, but /dev/null for each that is a terminal: the program is not to write there, and not to take keys from it.
    OursWithoutTerminal,
}

impl Streams {
    fn give_to(self, command: &mut Command) {
        if self == Self::Ours {
            return;
        }
        if io::stdin().is_terminal() {
            command.stdin(Stdio::null());
        }
        if io::stdout().is_terminal() {
            command.stdout(Stdio::null());
        }
        if io::stderr().is_terminal() {
            command.stderr(Stdio::null());
        }
    }
}

/// The home of that user.
///
/// # Errors
///
/// As [`invoking_user`].
pub fn invoking_home() -> io::Result<Option<PathBuf>> {
    Ok(user::RunAs::find()?.map(user::RunAs::into_home))
}

/// The program was not found, as shells say it.
const NOT_FOUND: u8 = 127;
/// The program was found and cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// Of a program that a signal killed, shells say this plus the signal's number.
const KILLED: u8 = 128;

/// A program was not started, or did not come as far as to be traced.
#[derive(Debug, Error)]
pub enum LaunchError {
    /// The system refused it.
    #[error("cannot start `{program}`: {error}{}", remedy(.error))]
    Refused {
        /// The program as it was given.
        program: String,
        /// What the system said.
        error: io::Error,
    },
    /// The user to run it as is not known.
    #[error(
        "cannot start `{program}` as the user who called sudo: {error}; without SUDO_UID it starts as root"
    )]
    User {
        /// The program as it was given.
        program: String,
        /// What is wrong.
        error: io::Error,
    },
    /// It ended before any of its own code ran.
    #[error("`{program}` ended before its first instruction, {how}: does it start without memleak?")]
    Ended {
        /// The program as it was given.
        program: String,
        /// How it ended.
        how: ProgramEnd,
    },
    /// It could not be held.
    #[error(
        "cannot hold `{program}` until it can be traced ({what}: {error}); start it by itself, then trace it with -p PID"
    )]
    Held {
        /// The program as it was given.
        program: String,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: Errno,
    },
}

impl LaunchError {
    /// The exit status for it: as shells have it where the program is at fault, `otherwise` in other cases.
    pub fn status(&self, otherwise: u8) -> u8 {
        match self {
            Self::Refused { error, .. } if error.kind() == io::ErrorKind::NotFound => NOT_FOUND,
            Self::Refused { .. } => NOT_EXECUTABLE,
            Self::Ended { how, .. } => how.status(),
            Self::User { .. } | Self::Held { .. } => otherwise,
        }
    }
}

fn remedy(error: &io::Error) -> &'static str {
    let kind = error.kind();
    if kind == io::ErrorKind::NotFound {
        "; give its path, or a name that is found by PATH"
    } else if kind == io::ErrorKind::PermissionDenied {
        "; is it executable (chmod +x), for this user?"
    } else {
        ""
    }
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProgramEnd {
    /// By itself.
    #[error("with status {0}")]
    Exited(u8),
    /// By a signal.
    #[error("killed by signal {0}")]
    Killed(u8),
}

impl ProgramEnd {
    /// The end that a status says; `None` where it says that the program goes on.
    fn of(status: WaitStatus) -> Option<Self> {
        let byte = |number: i32| u8::try_from(number & 0xff).unwrap_or_default();
        if let WaitStatus::Exited(_, status) = status {
            Some(Self::Exited(byte(status)))
        } else if let WaitStatus::Signaled(_, signal, _) = status {
            // The C library's numbers, which the enum has for its values.
            Some(Self::Killed(byte(signal as i32)))
        } else {
            None
        }
    }

    /// The exit status that shells have for it.
    pub fn status(self) -> u8 {
        match self {
            Self::Exited(status) => status,
            Self::Killed(signal) => KILLED.saturating_add(signal),
        }
    }
}

/// A program that was started and let go. It runs on when this is dropped.
#[derive(Debug)]
pub struct Running {
    pid: Pid,
    relay: Arc<Relay>,
}

impl Running {
    /// How it ended, if it has. To be asked until it has, and not again.
    pub fn end(&self) -> Option<ProgramEnd> {
        let status = || waitpid(self.pid, Some(WaitPidFlag::WNOHANG)).ok();
        self.relay.reap(|| status().and_then(ProgramEnd::of))
    }

    /// How it ended; waits for that.
    pub fn wait(&self) -> Option<ProgramEnd> {
        // Signals can be passed on until it is known to have ended.
        let has_ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        while waitid(Id::Pid(self.pid), has_ended) == Err(Errno::EINTR) {}
        self.end()
    }
}

/// The program's name for messages.
fn name_of(program: &[OsString]) -> String {
    program
        .first()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}
