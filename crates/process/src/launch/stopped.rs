//! A program under ptrace. The code that runs between fork and exec is here, and no other unsafe code.

#![allow(unsafe_code, reason = "code that runs between fork and exec")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{self, SigHandler, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use unwind_tables::addr::Avma;

use super::breakpoints;
use super::relay::Relay;
use super::user::RunAs;
use super::{LaunchError, ProgramEnd, Running, Streams, name_of};

/// Environment variables with memleak's credentials for servers, removed from the program's environment.
const SECRETS: [&str; 3] = ["MEMLEAK_PUSH_TOKEN", "MEMLEAK_PUSH_HEADER", "MEMLEAK_PUSH"];

/// A stopped program, killed when this is dropped. All calls must come from the thread that started it.
#[derive(Debug)]
pub struct StoppedProgram {
    name: String,
    relay: Arc<Relay>,
    /// `None` after it was released or has ended.
    pid: Option<Pid>,
}

impl StoppedProgram {
    /// Starts `program` and stops it at the loader's first instruction, when the kernel has mapped the
    /// program and its loader. From then on `relay` passes signals to it. `variable` is added to its
    /// environment. On an error, nothing is left running.
    pub fn start(
        program: &[OsString],
        variable: Option<(&'static str, OsString)>,
        streams: Streams,
        relay: &Arc<Relay>,
    ) -> Result<Self, LaunchError> {
        let name = name_of(program);
        let mut command = command(program, relay, &name)?;
        command.envs(variable);
        streams.give_to(&mut command);
        let mut stopped = relay.start(|| {
            // Returns when the exec has succeeded or failed.
            let child = command.spawn().map_err(|error| LaunchError::Refused {
                program: name.clone(),
                error,
            })?;
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or_default());
            let stopped = Self {
                name,
                relay: Arc::clone(relay),
                pid: Some(pid),
            };
            Ok((stopped, pid))
        })?;
        loop {
            let stopped_for = stopped.await_stop("exec")?;
            if stopped_for == Signal::SIGTRAP {
                break;
            }
            // A signal from elsewhere arrived first; the stop for the exec is still to come.
            let continued = ptrace::cont(stopped.live_pid()?, stopped_for);
            continued.map_err(|error| stopped.cannot("continue", error))?;
        }
        // If memleak is killed, the kernel kills the program too, instead of leaving it stopped.
        let options = ptrace::setoptions(stopped.live_pid()?, Options::PTRACE_O_EXITKILL);
        options.map_err(|error| stopped.cannot("options", error))?;
        Ok(stopped)
    }

    /// Process ID; 0 after it has ended.
    pub fn pid(&self) -> u32 {
        let pid = self.pid.map_or(0, Pid::as_raw);
        u32::try_from(pid).unwrap_or_default()
    }

    /// `AT_ENTRY`: the program's own first instruction, which runs after the loader is done.
    pub fn entry(&self) -> Option<Avma> {
        let vector = fs::read(format!("/proc/{}/auxv", self.pid())).ok()?;
        entry_of(&vector)
    }

    /// Runs it up to one of two instructions, stops before that, and returns which one it is.
    ///
    /// # Errors
    ///
    /// The program ended before, or no hardware breakpoint is available.
    pub fn run_to(&mut self, entry: Avma, other: Option<Avma>) -> Result<Avma, LaunchError> {
        let set = breakpoints::set(self.live_pid()?, entry, other);
        set.map_err(|error| self.cannot("hardware breakpoint", error))?;
        let mut signal = None;
        let at = loop {
            let continued = ptrace::cont(self.live_pid()?, signal);
            continued.map_err(|error| self.cannot("continue", error))?;
            let stopped_for = self.await_stop("breakpoint")?;
            if stopped_for == Signal::SIGTRAP {
                let at = self.program_counter()?;
                if at == entry || Some(at) == other {
                    break at;
                }
            }
            // The program's own signal: deliver it.
            signal = Some(stopped_for);
        };
        let cleared = breakpoints::clear(self.live_pid()?);
        cleared.map_err(|error| self.cannot("hardware breakpoint", error))?;
        Ok(at)
    }

    /// Executes one instruction, so that a probe placed on it does not trigger.
    pub fn step(&mut self) -> Result<(), LaunchError> {
        let mut signal = None;
        loop {
            let stepped = ptrace::step(self.live_pid()?, signal);
            stepped.map_err(|error| self.cannot("step", error))?;
            let stopped_for = self.await_stop("step")?;
            if stopped_for == Signal::SIGTRAP {
                return Ok(());
            }
            signal = Some(stopped_for);
        }
    }

    /// Detaches and lets it run. Fails if the program was killed.
    pub fn release(mut self) -> Result<Running, LaunchError> {
        let pid = self.live_pid()?;
        ptrace::detach(pid, None).map_err(|error| self.cannot("detach", error))?;
        self.pid = None;
        Ok(Running {
            pid,
            relay: Arc::clone(&self.relay),
        })
    }

    fn live_pid(&self) -> Result<Pid, LaunchError> {
        self.pid.ok_or_else(|| self.cannot("run", Errno::ESRCH))
    }

    /// Waits for the next stop and returns its signal.
    fn await_stop(&mut self, operation: &'static str) -> Result<Signal, LaunchError> {
        let pid = self.live_pid()?;
        loop {
            match waitpid(pid, Some(WaitPidFlag::__WALL)) {
                Ok(WaitStatus::Stopped(_, signal)) => return Ok(signal),
                Ok(status) => {
                    if let Some(end) = ProgramEnd::of(status) {
                        // The program was reaped: its pid may be reused.
                        self.relay.reap(|| self.pid.take());
                        let program = self.name.clone();
                        return Err(LaunchError::Ended { program, end });
                    }
                }
                Err(Errno::EINTR) => {}
                Err(error) => return Err(self.cannot(operation, error)),
            }
        }
    }

    fn program_counter(&self) -> Result<Avma, LaunchError> {
        breakpoints::program_counter(self.live_pid()?).map_err(|error| self.cannot("registers", error))
    }

    fn cannot(&self, operation: &'static str, error: Errno) -> LaunchError {
        LaunchError::Ptrace {
            program: self.name.clone(),
            operation,
            error,
        }
    }
}

impl Drop for StoppedProgram {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            _ = signal::kill(pid, Signal::SIGKILL);
            self.relay.reap(|| waitpid(pid, Some(WaitPidFlag::__WALL)).ok());
        }
    }
}

/// Builds the command that executes `program` as the user to run it as, and with the signals ignored that it
/// must ignore. The program stops at the exec.
fn command(program: &[OsString], relay: &Relay, name: &str) -> Result<Command, LaunchError> {
    let run_as = RunAs::find().map_err(|error| LaunchError::User {
        program: name.to_owned(),
        error,
    })?;
    let mut command = Command::new(program.first().cloned().unwrap_or_default());
    command.args(program.iter().skip(1));
    for secret in SECRETS {
        command.env_remove(secret);
    }
    if let Some(user) = &run_as {
        command.envs(user.environment(std::env::var_os("HOME").as_deref()));
    }
    let ignored = relay.ignored().to_vec();
    let memleak = Pid::this();
    let before_exec = move || {
        for &signal in &ignored {
            // SAFETY: no handler is installed.
            unsafe { signal::signal(signal, SigHandler::SigIgn) }?;
        }
        if let Some(user) = &run_as {
            user.become_user()?;
        }
        // Makes the following exec stop the program.
        ptrace::traceme()?;
        // The tracer is the parent. If memleak was killed before this, the parent is another process, which
        // would leave the program stopped for ever.
        if Pid::parent() != memleak {
            signal::raise(Signal::SIGKILL)?;
        }
        Ok(())
    };
    // SAFETY: makes system calls only; what these need was looked up before the fork.
    unsafe { command.pre_exec(before_exec) };
    Ok(command)
}

/// `AT_ENTRY` of an auxiliary vector: pairs of words, a type and its value.
fn entry_of(vector: &[u8]) -> Option<Avma> {
    let words = vector.chunks_exact(size_of::<u64>());
    let words: Vec<u64> = words
        .filter_map(|word| word.first_chunk().map(|&bytes| u64::from_ne_bytes(bytes)))
        .collect();
    let mut pairs = words.chunks_exact(2);
    pairs
        .find(|pair| pair[0] == libc::AT_ENTRY)
        .map(|pair| Avma::new(pair[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &[&str]) -> Vec<OsString> {
        command.iter().map(OsString::from).collect()
    }

    /// The entry point is found among other pairs, and not in a truncated vector.
    #[test]
    fn entry_point() {
        let vector: Vec<u8> = [6u64, 4096, libc::AT_ENTRY, 0x5555_0000_1040, 0, 0]
            .iter()
            .flat_map(|word| word.to_ne_bytes())
            .collect();
        assert_eq!(entry_of(&vector), Some(Avma::new(0x5555_0000_1040)));
        assert_eq!(entry_of(&vector[..31]), None);
        assert_eq!(entry_of(&[]), None);
    }

    fn start(program: &[&str]) -> Result<StoppedProgram, LaunchError> {
        StoppedProgram::start(&words(program), None, Streams::Inherited, &Arc::default())
    }

    /// A program runs to its entry point, is released there, and ends with its own status.
    #[test]
    fn programs_stop_at_their_entry_point() {
        let mut stopped = start(&["/bin/sh", "-c", "exit 3"]).expect("there is a shell");
        let entry = stopped.entry().expect("the kernel says where");
        assert_eq!(stopped.run_to(entry, None).expect("it comes there"), entry);
        stopped.step().expect("it goes on");
        let running = stopped.release().expect("it is let go");
        assert_eq!(running.wait(), Some(ProgramEnd::Exited(3)));
    }

    /// A program that is dropped while it is stopped has not run.
    #[test]
    fn dropped() {
        let file = std::env::temp_dir().join(format!("memleak-held-{}", std::process::id()));
        let path = file.to_str().expect("UTF-8");
        let mut stopped = start(&["/usr/bin/touch", path]).expect("there is touch");
        let entry = stopped.entry().expect("the kernel says where");
        stopped.run_to(entry, None).expect("it comes there");
        drop(stopped);
        assert!(!file.exists());
    }

    /// A program that cannot be started gives the exit status that shells use.
    #[test]
    fn refused() {
        for (program, status) in [
            ("/nonexistent", 127),
            ("nonexistent-program", 127),
            ("/etc/passwd", 126),
            ("/", 126),
        ] {
            let error = start(&[program]).expect_err(program);
            assert_eq!(error.status(2), status, "{error}");
            assert!(error.to_string().contains(program), "{error}");
        }
    }
}
