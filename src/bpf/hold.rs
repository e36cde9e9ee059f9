//! Stops of the program that memleak has started: after it has executed another program, until that has its
//! probes, and before it ends. A BPF program stops it; this module lets it continue, whatever becomes of
//! memleak.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, pipe2, write};

use super::memory::SharedWords;
use crate::base::helper::{self, close_gaps, gaps_between, wait_for_end};
use crate::base::proc_fields::ProcFields;

/// Time after the end of memleak in which BPF programs may still stop the started program, while their links
/// close.
const AFTERMATH: Duration = Duration::from_secs(5);
/// Pause between two checks of its state in that time.
const PAUSE: Duration = Duration::from_millis(10);

/// A program that BPF programs may stop. It continues once this is dropped, or memleak ends.
#[derive(Debug)]
pub struct Hold {
    program: Pid,
    /// Process that waits for the end of memleak.
    helper: Pid,
    /// Write end of the pipe that the helper waits on; `None` once this is dropped.
    write_end: Option<OwnedFd>,
}

impl Hold {
    /// Ensures that process `pid` continues once this is dropped or memleak ends; `None` if that cannot be
    /// guaranteed.
    pub fn of(pid: u32) -> Option<Self> {
        let program = Pid::from_raw(i32::try_from(pid).ok()?);
        let (read_end, write_end) = pipe2(OFlag::O_CLOEXEC).ok()?;
        let gaps = gaps_between(vec![read_end.as_raw_fd()]);
        let helper = helper::start(|| {
            close_gaps(&gaps);
            let is_dropped = wait_for_end(read_end.as_raw_fd());
            let ended = Instant::now();
            while !is_dropped && ended.elapsed() < AFTERMATH {
                go_on(program);
                sleep(PAUSE);
            }
        })?;
        Some(Self {
            program,
            helper,
            write_end: Some(write_end),
        })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        u32::try_from(self.program.as_raw()).unwrap_or_default()
    }

    /// Lets the program continue if it is stopped. After an exec, it has not yet set a handler for SIGCONT.
    pub fn go_on(&self) {
        go_on(self.program);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.go_on();
        if let Some(write_end) = self.write_end.take() {
            _ = write(&write_end, &[1]);
        }
        // The pid cannot have been reused before this call.
        _ = waitpid(self.helper, None);
    }
}

/// `struct started` in shared memory: stops of the started program when it executes others.
#[derive(Debug)]
pub struct ExecStops(SharedWords<AtomicU64>);

impl ExecStops {
    pub(super) fn new(words: SharedWords<AtomicU64>) -> Self {
        Self(words)
    }

    /// Ends these stops for good.
    pub fn end(&self) {
        if let [_, is_over, ..] = self.0.words() {
            is_over.store(1, Ordering::SeqCst);
        }
    }
}

/// Lets a process continue that was stopped when it executed a program that may translate code.
pub fn continue_stopped(pid: u32) {
    if let Ok(pid) = i32::try_from(pid) {
        go_on(Pid::from_raw(pid));
    }
}

/// Lets a process continue if it is stopped, or about to stop. Sends no unneeded SIGCONT, which would run its
/// handler.
fn go_on(program: Pid) {
    let status = || ProcFields::read(format!("/proc/{program}/status")).unwrap_or_default();
    let is_sent = || status().bits("ShdPnd").is_some_and(|pending| pending & STOP != 0);
    // In this order: the signal is pending until the state has changed.
    if is_sent() || status().words("State").next() == Some("T") {
        _ = kill(program, Signal::SIGCONT);
    }
}

/// SIGSTOP in a set of signals.
const STOP: u64 = 1 << (Signal::SIGSTOP as u64 - 1);

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    /// A stopped process continues when its hold is dropped.
    #[test]
    fn a_stopped_process_goes_on() {
        let mut child = Command::new("sleep").arg("0.2").spawn().expect("coreutils");
        let hold = Hold::of(child.id()).expect("a process");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("small"));
        kill(pid, Signal::SIGSTOP).expect("ours");
        sleep(Duration::from_millis(400));
        assert!(child.try_wait().expect("ours").is_none(), "it is stopped");
        drop(hold);
        assert!(child.wait().expect("ours").success());
    }

    /// A process that gets SIGCONT after SIGSTOP, but before it has stopped, never stops.
    #[test]
    fn a_process_that_is_about_to_stop_goes_on() {
        let mut child = Command::new("sleep").arg("0.2").spawn().expect("coreutils");
        let hold = Hold::of(child.id()).expect("a process");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("small"));
        for _ in 0..1000 {
            kill(pid, Signal::SIGSTOP).expect("ours");
            hold.go_on();
        }
        assert!(child.wait().expect("ours").success());
    }
}
