//! Helper processes, whose task must be completed even if memleak is killed. Nothing else knows them, and
//! each has its own process group, so that killing memleak's group spares them.
#![allow(unsafe_code, reason = "processes that do one thing, without an exec")]

use std::ffi::c_uint;
use std::os::fd::RawFd;

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use nix::unistd::{ForkResult, Pid, fork, setpgid};

/// Starts a process that runs `work` and exits; `None` if it cannot be started.
///
/// Only the calling thread exists in it, so `work` must not take a lock that another thread may hold; the C
/// library takes care of its own locks at a fork.
pub fn start(work: impl FnOnce()) -> Option<Pid> {
    /// Exits the process however `work` ends, also by a panic, so that none of memleak's other code runs in
    /// it.
    struct Last;

    impl Drop for Last {
        fn drop(&mut self) {
            // SAFETY: exits the process.
            unsafe { libc::_exit(0) }
        }
    }

    let mut before = SigSet::empty();
    // Block signals: in the helper, memleak's handlers would report them through shared descriptors.
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&SigSet::all()), Some(&mut before)).ok()?;
    // SAFETY: the child runs `work` alone, with the restriction on locks above.
    let forked = unsafe { fork() };
    if let Ok(ForkResult::Child) = forked {
        let _last = Last;
        _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
        work();
    }
    _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None);
    match forked {
        Ok(ForkResult::Parent { child }) => Some(child),
        Ok(ForkResult::Child) | Err(_) => None,
    }
}

/// Ranges of descriptors that are not `kept`, both ends included.
pub fn gaps_between(mut kept: Vec<RawFd>) -> Vec<(c_uint, c_uint)> {
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

/// Closes ranges of descriptors, in a helper process.
pub fn close_gaps(gaps: &[(c_uint, c_uint)]) {
    for &(first, last) in gaps {
        // SAFETY: no later code of this process uses these descriptors.
        unsafe { libc::close_range(first, last, 0) };
    }
}

/// Waits, in a helper process where signals are blocked, for a byte from a pipe, or until it has no writer
/// left. Returns true if there was a byte.
pub fn wait_for_end(read_end: RawFd) -> bool {
    let mut byte = 0_u8;
    // SAFETY: the buffer is one byte.
    unsafe { libc::read(read_end, (&raw mut byte).cast(), 1) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gaps contain every descriptor except the kept ones.
    #[test]
    fn gaps() {
        let last = c_uint::MAX;
        assert_eq!(gaps_between(vec![]), [(0, last)]);
        assert_eq!(gaps_between(vec![7, 3, 4]), [(0, 2), (5, 6), (8, last)]);
        assert_eq!(gaps_between(vec![0]), [(1, last)]);
    }
}
