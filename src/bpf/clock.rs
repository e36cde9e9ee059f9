//! Clocks that the standard library does not offer: the one that probes use, and CPU time.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

pub(crate) use crate::base::kernel_clock::monotonic_nanoseconds;

/// Microseconds of the kernel's `CLOCK_MONOTONIC`, modulo 2^32: `bpf_ktime_get_ns() / 1000` in a `u32`.
pub(super) fn monotonic_microseconds() -> u32 {
    let microseconds = monotonic_nanoseconds() / 1000 % (1 << 32);
    u32::try_from(microseconds).unwrap_or_default()
}

/// CPU time of this thread, in nanoseconds.
pub(super) fn thread_nanoseconds() -> u64 {
    // Cannot fail: this clock always exists.
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from);
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
