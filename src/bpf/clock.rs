//! Clocks that the standard library does not tell the time of: the one that probes use, and CPU time.

#![allow(unsafe_code)]

/// Microseconds of `CLOCK_MONOTONIC`, modulo 2^32: `bpf_ktime_get_ns() / 1000` in a `u32`.
pub(super) fn monotonic_microseconds() -> u32 {
    let microseconds = monotonic_nanoseconds() / 1000 % (1 << 32);
    u32::try_from(microseconds).unwrap_or_default()
}

/// Nanoseconds of `CLOCK_MONOTONIC`: `bpf_ktime_get_ns()`.
pub(crate) fn monotonic_nanoseconds() -> u64 {
    nanoseconds(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of CPU time that this thread has taken.
pub(super) fn thread_nanoseconds() -> u64 {
    nanoseconds(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid, writable timespec; the call does nothing else with memory. It cannot fail: these
    // clocks always exist. If it did, the time would be 0.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    let nanoseconds = i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
    u64::try_from(nanoseconds).unwrap_or_default()
}
