//! Probes out of their sites, all at once, and out for good even if memleak is killed meanwhile.
//!
//! The kernel takes a probe out of a process when the last descriptor of its link is closed, which a thread that is being
//! killed does in part (see [`attach_helper`]). What a process leaves open at its end is closed after that, when it cannot be
//! killed any more. So links are left to processes of their own to be closed at their end. Of memleak they have nothing
//! but these.
#![allow(unsafe_code, reason = "processes that only close descriptors")]

use std::ffi::c_uint;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use nix::fcntl::OFlag;
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, pipe2};

use super::attach::{Attached, AttachedHook};
use super::attach_helper;

/// Processes that detach at once.
const DETACHING_PROCESSES: usize = 16;

/// Detaches all of these at once, in no order: for when nothing is recorded any more.
///
/// The kernel takes the probes of a link out of the process, and then waits until no thread is in their programs, which
/// on a busy machine takes a tenth of a second. One after the other, the last link's probes would wait for all others.
pub fn detach_at_once(
    probes: impl IntoIterator<Item = Attached>,
    hooks: impl IntoIterator<Item = AttachedHook>,
) {
    let probes = probes.into_iter();
    let links = probes.flat_map(|Attached { allocations, frees }| allocations.into_iter().chain(frees));
    let links = links.chain(hooks.into_iter().map(|hook| hook.link));
    close(links.collect::<Vec<_>>(), DETACHING_PROCESSES);
}

/// Closes links by so many processes at most, and waits until that is done.
pub(super) fn close<L: AsFd>(links: Vec<L>, processes: usize) {
    let Some(closers) = Closers::start(&links, processes) else {
        // What cannot be left to others is closed here.
        return drop(links);
    };
    drop(links);
    closers.finish();
}

/// Processes that hold links, and end when they are told to.
struct Closers {
    processes: Vec<Pid>,
    /// They end when nobody has this any more.
    told: OwnedFd,
}

impl Closers {
    /// `None` if there cannot be such processes.
    fn start<L: AsFd>(links: &[L], processes: usize) -> Option<Self> {
        let (awaited, told) = pipe2(OFlag::O_CLOEXEC).ok()?;
        let share = links.len().div_ceil(processes).max(1);
        let mut closers = Self {
            processes: Vec::new(),
            told,
        };
        for links in links.chunks(share) {
            let kept = links.iter().map(|link| link.as_fd().as_raw_fd());
            let gaps = gaps_between(kept.chain([awaited.as_raw_fd()]).collect());
            let Some(closer) = start_closer(&gaps, awaited.as_raw_fd()) else {
                closers.finish();
                return None;
            };
            closers.processes.push(closer);
        }
        Some(closers)
    }

    /// Waits until they have ended, and all probes are gone.
    fn finish(self) {
        drop(self.told);
        for process in self.processes {
            // It cannot be anybody else's.
            _ = waitpid(process, None);
        }
    }
}

/// The descriptors that are not `kept`, as ranges, both ends included.
fn gaps_between(mut kept: Vec<RawFd>) -> Vec<(c_uint, c_uint)> {
    kept.sort_unstable();
    let mut gaps = Vec::new();
    let mut next = 0;
    for descriptor in kept.into_iter().filter_map(|kept| c_uint::try_from(kept).ok()) {
        if next < descriptor {
            gaps.push((next, descriptor - 1));
        }
        next = descriptor + 1;
    }
    gaps.push((next, c_uint::MAX));
    gaps
}

/// A process that closes `gaps`, waits until nobody can write to `awaited`, and ends.
fn start_closer(gaps: &[(c_uint, c_uint)], awaited: RawFd) -> Option<Pid> {
    attach_helper::start(|| {
        for &(first, last) in gaps {
            // SAFETY: nothing of this process is used any more that needs them.
            unsafe { libc::close_range(first, last, 0) };
        }
        let mut byte = 0_u8;
        // SAFETY: a byte of ours. Nobody writes one; no signal that is handled comes in between.
        unsafe { libc::read(awaited, (&raw mut byte).cast(), 1) };
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Just the kept ones are in none of them.
    #[test]
    fn gaps() {
        let most = c_uint::MAX;
        assert_eq!(gaps_between(vec![]), [(0, most)]);
        assert_eq!(gaps_between(vec![7, 3, 4]), [(0, 2), (5, 6), (8, most)]);
        assert_eq!(gaps_between(vec![0]), [(1, most)]);
    }

    /// What such a process holds is closed when it has ended, and not before it is told to.
    #[test]
    fn closed_at_the_end() {
        let (read, write) = pipe2(OFlag::O_CLOEXEC).expect("a pipe");
        let (awaited, told) = pipe2(OFlag::O_CLOEXEC).expect("a pipe");
        let gaps = gaps_between(vec![write.as_raw_fd(), awaited.as_raw_fd()]);
        let closer = start_closer(&gaps, awaited.as_raw_fd()).expect("a process");
        drop(write);
        let mut ready = [nix::poll::PollFd::new(read.as_fd(), nix::poll::PollFlags::POLLIN)];
        assert_eq!(nix::poll::poll(&mut ready, 50_u8), Ok(0));
        drop(told);
        waitpid(closer, None).expect("it ends");
        let mut byte = [0];
        assert_eq!(nix::unistd::read(&read, &mut byte), Ok(0));
    }
}
