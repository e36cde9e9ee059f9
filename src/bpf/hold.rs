//! Holds a started program where it is about to end. Its probe stops it; what is here lets it go on, whatever becomes of memleak.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, pipe2};

use crate::base::helper::{self, close_gaps, gaps_between, wait_for_end};
use crate::process::stat::Stat;

/// A program that may be stopped by its probe. When this is dropped, or memleak ends, it runs on.
#[derive(Debug)]
pub struct Hold {
    program: Pid,
    /// Process that waits for the end of memleak.
    helper: Pid,
    /// Write end of the pipe that it waits on, until this is dropped.
    write_end: Option<OwnedFd>,
}

impl Hold {
    /// Sees to it that process `pid` goes on once this is dropped; `None` if that cannot be guaranteed.
    pub fn of(pid: u32) -> Option<Self> {
        let program = Pid::from_raw(i32::try_from(pid).ok()?);
        let (read_end, write_end) = pipe2(OFlag::O_CLOEXEC).ok()?;
        let gaps = gaps_between(vec![read_end.as_raw_fd()]);
        let helper = helper::start(|| {
            close_gaps(&gaps);
            wait_for_end(read_end.as_raw_fd());
            go_on(program);
        })?;
        Some(Self {
            program,
            helper,
            write_end: Some(write_end),
        })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        go_on(self.program);
        drop(self.write_end.take());
        // The pid cannot have been reused before this call.
        _ = waitpid(self.helper, None);
    }
}

/// Lets a process go on that was stopped as it executed a program that may translate code.
pub fn continue_stopped(pid: u32) {
    if let Ok(pid) = i32::try_from(pid) {
        go_on(Pid::from_raw(pid));
    }
}

/// Lets a process go on if it is stopped. A signal that it does not need would run its handler.
fn go_on(program: Pid) {
    let stat = fs::read(format!("/proc/{program}/stat")).ok();
    let is_stopped = stat
        .and_then(|stat| Stat::parse(&stat))
        .is_some_and(|stat| stat.state == b'T');
    if is_stopped {
        _ = kill(program, Signal::SIGCONT);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    /// A stopped process goes on when its hold is dropped.
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
}
