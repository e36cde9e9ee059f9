//! The kernel's own clocks, which its probes and logs use.
//!
//! A process in a time namespace sees other times: the kernel adds the namespace's offsets to `clock_gettime`
//! and to start times in `/proc/PID/stat` (`kernel/time/namespace.c`), but not to times that BPF programs and
//! perf events get.

use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

const SECOND: i64 = 1_000_000_000;

/// Nanoseconds by which the clocks of this process's time namespace are ahead of the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Offsets {
    monotonic: i64,
    boottime: i64,
}

impl Offsets {
    /// Offsets of this process. They are read once: a process stays in its namespace.
    fn own() -> Self {
        static OWN: OnceLock<Offsets> = OnceLock::new();
        *OWN.get_or_init(|| Self::read().unwrap_or_default())
    }

    /// Reads the offsets; `None` if the kernel has no time namespaces, or the offsets cannot be found.
    fn read() -> Option<Self> {
        let own = namespace_of("self", "time")?;
        // `timens_offsets` has the offsets of the children's namespace. It is the process's own, too, unless
        // the process has unshared.
        let has_them = |process: &str| namespace_of(process, "time_for_children").as_ref() == Some(&own);
        if has_them("self") {
            return Self::of("self");
        }
        // Before Linux 6.3, an exec after an unshare does not move the process to the new namespace. Find
        // another process whose children's namespace is ours, such as the parent.
        let processes = fs::read_dir("/proc").ok()?.flatten();
        let mut names = processes.filter_map(|entry| entry.file_name().into_string().ok());
        let found = names.find(|name| name.parse::<u32>().is_ok() && has_them(name));
        if found.is_none() {
            tracing::warn!("the offsets of this time namespace are unknown: ages may be wrong");
        }
        Self::of(&found?)
    }

    fn of(process: &str) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{process}/timens_offsets")).ok()?;
        Some(Self::parse(&text))
    }

    /// Parses lines of a clock's name, seconds and nanoseconds: `time_namespaces(7)`. The offset of a missing
    /// clock is 0.
    fn parse(text: &str) -> Self {
        let of = |clock: &str| {
            let lines = text.lines().map(|line| line.split_ascii_whitespace());
            let mut fields = lines
                .clone()
                .find_map(|mut fields| (fields.next() == Some(clock)).then_some(fields))?;
            let mut number = || fields.next()?.parse::<i64>().ok();
            let (seconds, nanoseconds) = (number()?, number()?);
            seconds.checked_mul(SECOND)?.checked_add(nanoseconds)
        };
        Self {
            monotonic: of("monotonic").unwrap_or_default(),
            boottime: of("boottime").unwrap_or_default(),
        }
    }
}

/// Time namespace of a process (`time`), or of its children (`time_for_children`).
fn namespace_of(process: &str, which: &str) -> Option<std::path::PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/{which}")).ok()
}

/// Nanoseconds of the kernel's `CLOCK_MONOTONIC`: `bpf_ktime_get_ns()`.
pub fn monotonic_nanoseconds() -> u64 {
    // Cannot fail: this clock always exists.
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    without(time, Offsets::own().monotonic)
}

/// Converts a start time in `/proc/PID/stat`, in clock ticks, from this process's time namespace to the
/// kernel's time after boot. The result is the same in all time namespaces, except for one tick: start time
/// and offset are both rounded down.
pub fn ticks_after_boot(start_time: u64) -> u64 {
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK);
    // `USER_HZ` is 100 on x86-64 and AArch64.
    let per_second = per_second
        .ok()
        .flatten()
        .filter(|&ticks| ticks > 0)
        .unwrap_or(100);
    let offset = Offsets::own().boottime.div_euclid(SECOND / per_second);
    start_time.saturating_add_signed(offset.saturating_neg())
}

fn without(time: Duration, offset: i64) -> u64 {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    nanoseconds.saturating_add_signed(offset.saturating_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets can have either sign and come in any order; one that is not a number counts as 0.
    #[test]
    fn offsets() {
        let parsed = Offsets::parse("monotonic           0         0\nboottime            0         0\n");
        assert_eq!(parsed, Offsets::default());
        for (text, monotonic, boottime) in [
            (
                "monotonic  -3000  0\nboottime  500000  7\n",
                -3000 * SECOND,
                500_000 * SECOND + 7,
            ),
            // The kernel's form of -0.5 s.
            ("boottime -1 500000000\nmonotonic 0 1\n", 1, -SECOND / 2),
            ("monotonic 9223372036854775807 0\nboottime x 0\n", 0, 0),
            ("monotonic 5\n", 0, 0),
            ("", 0, 0),
        ] {
            assert_eq!(Offsets::parse(text), Offsets { monotonic, boottime }, "{text:?}");
        }
    }

    /// The kernel's time is the namespace's minus the offset, and never before boot.
    #[test]
    fn time_without_offset() {
        let time = Duration::from_nanos(1000);
        for (offset, kernel) in [
            (0, 1000),
            (300, 700),
            (-300, 1300),
            (2000, 0),
            (i64::MIN, i64::MAX.unsigned_abs() + 1000),
        ] {
            assert_eq!(without(time, offset), kernel, "{offset}");
        }
    }

    /// The kernel's time is between two readings of this process's clock, each without the offset.
    #[test]
    fn own() {
        let offsets = Offsets::read().unwrap_or_default();
        let before = clock_gettime(ClockId::CLOCK_MONOTONIC)
            .map(Duration::from)
            .expect("it exists");
        let kernel = monotonic_nanoseconds();
        let after = clock_gettime(ClockId::CLOCK_MONOTONIC)
            .map(Duration::from)
            .expect("it exists");
        assert!((without(before, offsets.monotonic)..=without(after, offsets.monotonic)).contains(&kernel));
    }
}
