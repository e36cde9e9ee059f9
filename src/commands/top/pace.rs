//! Times of samples.

use std::thread;
use std::time::{Duration, Instant};

/// Maximum time until a signal is noticed.
const PAUSE: Duration = Duration::from_millis(50);

/// Time of the next sample; samples whose time has passed are skipped.
pub(super) fn next_sample(last: Instant, interval: Duration) -> Instant {
    (last + interval).max(Instant::now())
}

/// Waits until `time`, or until `is_wanted` returns true.
pub(super) fn pause_until(time: Instant, mut is_wanted: impl FnMut() -> bool) {
    loop {
        let left = time.saturating_duration_since(Instant::now());
        if left.is_zero() || is_wanted() {
            return;
        }
        thread::sleep(left.min(PAUSE));
    }
}
