//! Detaching probes, all links in parallel, and completely even if memleak is killed meanwhile.
//!
//! The kernel removes a link's probes from the target when the link's last descriptor is closed; a thread
//! that is being killed does that only in part (see [`attach_helper`]). The descriptors that a process leaves
//! open are closed when it can no longer be killed. So helper processes hold the links, and close them by
//! ending. They hold nothing else of memleak's.

use std::ffi::c_uint;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use nix::fcntl::OFlag;
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, pipe2};

use super::attach::{Attached, AttachedHook};
use crate::base::helper::{self, close_gaps, gaps_between, wait_for_end};

/// Maximum number of helpers that detach in parallel.
const DETACHING_PROCESSES: usize = 16;

/// Detaches all of these in parallel, in no particular order: only for use after recording has ended.
///
/// The kernel removes a link's probes and then waits until no thread is in their programs, which takes 0.1 s
/// on a busy machine. Closed one after the other, the last link would wait for all others.
pub fn detach_at_once(
    probes: impl IntoIterator<Item = Attached>,
    hooks: impl IntoIterator<Item = AttachedHook>,
) {
    let probes = probes.into_iter();
    let links = probes.flat_map(|Attached { allocations, frees }| allocations.into_iter().chain(frees));
    let links = links.chain(hooks.into_iter().flat_map(|hook| hook.links));
    close(links.collect::<Vec<_>>(), DETACHING_PROCESSES);
}

/// Closes links by means of at most `processes` helpers, and waits until that is done.
pub(super) fn close<L: AsFd>(links: Vec<L>, processes: usize) {
    let Some(closers) = Closers::start(&links, processes) else {
        // Without helpers, the links are closed here.
        return drop(links);
    };
    drop(links);
    closers.finish();
}

/// Helper processes that hold links and end when `write_end` is closed.
struct Closers {
    processes: Vec<Pid>,
    /// Write end of the pipe that the helpers wait on; they end when its last descriptor is closed.
    write_end: OwnedFd,
}

impl Closers {
    /// Starts helpers that hold `links`; `None` if they cannot be started.
    fn start<L: AsFd>(links: &[L], processes: usize) -> Option<Self> {
        let (read_end, write_end) = pipe2(OFlag::O_CLOEXEC).ok()?;
        let share = links.len().div_ceil(processes).max(1);
        let mut closers = Self {
            processes: Vec::new(),
            write_end,
        };
        for links in links.chunks(share) {
            let kept = links.iter().map(|link| link.as_fd().as_raw_fd());
            let gaps = gaps_between(kept.chain([read_end.as_raw_fd()]).collect());
            let Some(closer) = start_closer(&gaps, read_end.as_raw_fd()) else {
                closers.finish();
                return None;
            };
            closers.processes.push(closer);
        }
        Some(closers)
    }

    /// Waits until all helpers have ended, which removes their probes.
    fn finish(self) {
        drop(self.write_end);
        for process in self.processes {
            // The pid cannot have been reused before this call.
            _ = waitpid(process, None);
        }
    }
}

/// Starts a process that closes `gaps`, waits until `read_end` has no writer left, and ends.
fn start_closer(gaps: &[(c_uint, c_uint)], read_end: RawFd) -> Option<Pid> {
    helper::start(|| {
        close_gaps(gaps);
        wait_for_end(read_end);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A helper's descriptors are closed when it ends, and it does not end before `write_end` is closed.
    #[test]
    fn closers_end_when_the_pipe_is_closed() {
        let (read, write) = pipe2(OFlag::O_CLOEXEC).expect("a pipe");
        let (read_end, write_end) = pipe2(OFlag::O_CLOEXEC).expect("a pipe");
        let gaps = gaps_between(vec![write.as_raw_fd(), read_end.as_raw_fd()]);
        let closer = start_closer(&gaps, read_end.as_raw_fd()).expect("a process");
        drop(write);
        let mut ready = [nix::poll::PollFd::new(read.as_fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut ready, 50_u8), Ok(0));
        drop(write_end);
        waitpid(closer, None).expect("it ends");
        let mut byte = [0];
        assert_eq!(nix::unistd::read(&read, &mut byte), Ok(0));
    }
}
