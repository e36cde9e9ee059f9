//! Starts a program and stops it before any of its own code runs: once its loader has mapped and relocated
//! everything, and before the first constructor.
//!
//! The program is started under ptrace, runs to a hardware breakpoint in its loader's hook for debuggers, and
//! is released there. Of all ways to stop a program, this one leaves no trace in it: its memory is not
//! written (a breakpoint instruction would be), it gets no signal (after SIGSTOP and SIGCONT, a handler for
//! the latter would run, and its parent would be notified), and it is no longer traced when its own code
//! begins. The caller decides at which address it stops.
//!
//! It inherits memleak's environment and process group, and its standard streams too, except those that are a
//! terminal which memleak needs for itself ([`Streams`]); signals meant for it are passed on ([`Relay`]).

mod account;
mod breakpoints;
mod relay;
mod stopped;
mod user;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, Uid};
use thiserror::Error;

pub use relay::{PASSED_ON, Relay, Relayed, Sender};
pub use stopped::StoppedProgram;

/// User and group ID of the user who called sudo; `None` without sudo, if root called it, or if memleak does
/// not run as root.
///
/// # Errors
///
/// The environment names a user that does not exist.
pub fn invoking_user() -> io::Result<Option<(u32, u32)>> {
    Ok(user::RunAs::find()?.map(|user| user.ids()))
}

/// User, group and all groups of the user who called sudo; `None` and errors as for [`invoking_user`].
pub(crate) fn invoking_groups() -> io::Result<Option<(u32, u32, Vec<u32>)>> {
    Ok(user::RunAs::find()?.map(|user| user.all_ids()))
}

/// Standard streams of the started program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// Inherited from memleak.
    Inherited,
    /// Inherited, with /dev/null in place of each terminal: the program must neither write to the terminal
    /// nor read its keys.
    InheritedWithoutTerminal,
}

impl Streams {
    fn give_to(self, command: &mut Command) {
        if self == Self::Inherited {
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

/// Home directory of the user who called sudo; `None` and errors as for [`invoking_user`].
pub fn invoking_home() -> io::Result<Option<PathBuf>> {
    Ok(user::RunAs::find()?.map(user::RunAs::into_home))
}

/// ID of the user with this name; `None` if it does not exist.
///
/// # Errors
///
/// The system cannot be asked.
pub(crate) fn user_named(name: &str) -> io::Result<Option<u32>> {
    account::Account::id_of(name)
}

/// Name of the user with this ID; `None` if there is none.
///
/// # Errors
///
/// The system cannot be asked.
pub fn name_of_user(id: u32) -> io::Result<Option<String>> {
    let account = account::Account::of(Uid::from_raw(id))?;
    Ok(account.map(|account| account.name.to_string_lossy().into_owned()))
}

/// Exit status of shells for a program that was not found.
const NOT_FOUND: u8 = 127;
/// Exit status of shells for a program that was found and cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// Base of the exit status of shells for a program killed by a signal; the signal's number is added.
const KILLED: u8 = 128;

/// Failure to start a program, or to keep it stopped until it can be traced.
#[derive(Debug, Error)]
pub enum LaunchError {
    #[error("cannot start `{program}`: {error}{}", remedy(.error))]
    Refused { program: String, error: io::Error },
    #[error(
        "cannot start `{program}` as the user who called sudo: {error}; without SUDO_UID it starts as root"
    )]
    User { program: String, error: io::Error },
    #[error("`{program}` ended before its first instruction, {end}: does it start without memleak?")]
    Ended { program: String, end: ProgramEnd },
    #[error(
        "cannot keep `{program}` stopped until it can be traced ({operation}: {error}); start it without \
         memleak, then trace it with -p PID"
    )]
    Ptrace {
        program: String,
        /// Operation that failed.
        operation: &'static str,
        error: Errno,
    },
}

impl LaunchError {
    /// Exit status for this error: as in shells if the program is at fault, else `otherwise`.
    pub fn status(&self, otherwise: u8) -> u8 {
        match self {
            Self::Refused { error, .. } if error.kind() == io::ErrorKind::NotFound => NOT_FOUND,
            Self::Refused { .. } => NOT_EXECUTABLE,
            Self::Ended { end, .. } => end.status(),
            Self::User { .. } | Self::Ptrace { .. } => otherwise,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProgramEnd {
    #[error("with status {0}")]
    Exited(u8),
    #[error("killed by signal {0}")]
    Killed(u8),
}

impl ProgramEnd {
    /// Converts a wait status; `None` if the program has not ended.
    fn of(status: WaitStatus) -> Option<Self> {
        let byte = |number: i32| u8::try_from(number & 0xff).unwrap_or_default();
        if let WaitStatus::Exited(_, status) = status {
            Some(Self::Exited(byte(status)))
        } else if let WaitStatus::Signaled(_, signal, _) = status {
            // The enum's values are the C library's signal numbers.
            Some(Self::Killed(byte(signal as i32)))
        } else {
            None
        }
    }

    /// Exit status that shells use for this end.
    pub fn status(self) -> u8 {
        match self {
            Self::Exited(status) => status,
            Self::Killed(signal) => KILLED.saturating_add(signal),
        }
    }
}

/// A program that was started and released. It continues to run when this is dropped.
#[derive(Debug)]
pub struct Running {
    pid: Pid,
    relay: Arc<Relay>,
}

impl Running {
    /// Reaps it and returns how it ended, if it has. Must not be called again after `Some`.
    pub fn end(&self) -> Option<ProgramEnd> {
        let status = || waitpid(self.pid, Some(WaitPidFlag::WNOHANG)).ok();
        self.relay.reap(|| status().and_then(ProgramEnd::of))
    }

    /// Waits for its end.
    pub fn wait(&self) -> Option<ProgramEnd> {
        // Wait without reaping first: [`Relay`] can pass signals on until `end` reaps it.
        let has_ended = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        while waitid(Id::Pid(self.pid), has_ended) == Err(Errno::EINTR) {}
        self.end()
    }
}

/// The program's name as given, for messages.
fn name_of(program: &[OsString]) -> String {
    program
        .first()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}
