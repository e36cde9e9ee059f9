//! Clocks that the standard library does not offer: the one that probes use, and CPU time.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Microseconds of `CLOCK_MONOTONIC`, modulo 2^32: `bpf_ktime_get_ns() / 1000` in a `u32`.
pub(super) fn monotonic_microseconds() -> u32 {
    let microseconds = monotonic_nanoseconds() / 1000 % (1 << 32);
    u32::try_from(microseconds).unwrap_or_default()
}

/// Nanoseconds of `CLOCK_MONOTONIC`: `bpf_ktime_get_ns()`.
pub(crate) fn monotonic_nanoseconds() -> u64 {
    nanoseconds(ClockId::CLOCK_MONOTONIC)
}

/// CPU time of this thread, in nanoseconds.
pub(super) fn thread_nanoseconds() -> u64 {
    nanoseconds(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

fn nanoseconds(clock: ClockId) -> u64 {
    // Cannot fail: these clocks always exist.
    let time = clock_gettime(clock).map_or(Duration::ZERO, Duration::from);
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
