//! The moment of a mapping, compared with times of files.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_getres};

use memleak_base::kernel_clock::monotonic_nanoseconds;

/// Moment of a mapping, by the clock of file times.
///
/// Wrong by as much as that clock was set since.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment(SystemTime);

impl Moment {
    /// Converts nanoseconds of the kernel's `CLOCK_MONOTONIC`. Gives the Unix epoch, before all files, if
    /// they are too long ago.
    pub(super) fn from_monotonic(nanoseconds: u64) -> Self {
        let now = SystemTime::now();
        let age = Duration::from_nanos(monotonic_nanoseconds().saturating_sub(nanoseconds));
        // File times are those of the preceding tick.
        let tick = clock_getres(ClockId::CLOCK_REALTIME_COARSE);
        let tick = tick.map_or(Duration::from_millis(10), Duration::from);
        let moment = now.checked_sub(age.saturating_add(tick));
        Self(moment.unwrap_or(SystemTime::UNIX_EPOCH))
    }

    /// Returns true if a file was created, and last written to, before this moment. On a file system without
    /// creation times, the time of its last change of any kind must be before, too.
    pub(super) fn is_before(&self, metadata: &Metadata) -> bool {
        let changed = || {
            let since_epoch = Duration::new(
                metadata.ctime().try_into().ok()?,
                metadata.ctime_nsec().try_into().ok()?,
            );
            SystemTime::UNIX_EPOCH.checked_add(since_epoch)
        };
        let made = metadata.created().ok().or_else(changed);
        let times = [made, metadata.modified().ok()];
        times.iter().all(|time| time.is_some_and(|time| time < self.0))
    }
}
