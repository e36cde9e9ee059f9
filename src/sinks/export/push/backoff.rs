//! Computes the delay before the next request to a failing server. Pure, except for randomness.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Maximum delay that a server can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(600);

/// Exponential backoff.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Creates a backoff that starts at `first` and doubles up to `longest`.
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            failures: 0,
        }
    }

    /// Restarts at the first delay, after a success.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// The delay after one more failure, at least `retry_after` (the server's `Retry-After`). Half of it is
    /// random, so that many clients do not retry at the same moment.
    pub(super) fn next(&mut self, retry_after: Option<Duration>) -> Duration {
        self.wait(retry_after, random())
    }

    fn wait(&mut self, retry_after: Option<Duration>, random: u64) -> Duration {
        let factor = 1_u32.checked_shl(self.failures.min(31)).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        let whole = self.first.saturating_mul(factor).min(self.longest);
        let half = whole / 2;
        #[allow(clippy::cast_precision_loss, reason = "chance needs no more digits")]
        let share = random as f64 / u64::MAX as f64;
        let own = half + half.mul_f64(share);
        match retry_after.map(|retry_after| retry_after.min(MAX_RETRY_AFTER)) {
            None => own,
            // Spreads out clients that got the same `Retry-After`.
            Some(retry_after) => own.max(retry_after + self.first.mul_f64(share)),
        }
    }
}

/// An unpredictable number: the keys of hash maps are seeded from the kernel's random numbers.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Delays double up to the longest, half of each is random, and a reset restarts them.
    #[test]
    fn waits_grow() {
        let seconds = Duration::from_secs;
        let mut backoff = Backoff::new(seconds(1), seconds(60));
        let longest: Vec<u64> = (0..9).map(|_| backoff.wait(None, u64::MAX).as_secs()).collect();
        assert_eq!(longest, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(backoff.wait(None, 0), seconds(30));
        backoff.failures = u32::MAX;
        assert_eq!(backoff.wait(None, u64::MAX), seconds(60));
        backoff.reset();
        assert_eq!(backoff.wait(None, 0), Duration::from_millis(500));
        let mut waits: Vec<_> = (0..20)
            .map(|_| Backoff::new(seconds(1), seconds(60)).next(None))
            .collect();
        assert!(
            waits
                .iter()
                .all(|wait| (seconds(1) / 2..=seconds(1)).contains(wait))
        );
        waits.dedup();
        assert!(waits.len() > 1, "there is chance in it");
    }

    /// A server can make the delay longer, up to 600 s, but not shorter.
    #[test]
    fn retry_after_only_delays_more() {
        let seconds = Duration::from_secs;
        for (retry_after, random, expected) in [
            (seconds(30), 0, seconds(30)),
            (seconds(30), u64::MAX, seconds(31)),
            (seconds(0), u64::MAX, seconds(1)),
            (Duration::MAX, 0, seconds(600)),
        ] {
            let mut backoff = Backoff::new(seconds(1), seconds(60));
            assert_eq!(
                backoff.wait(Some(retry_after), random),
                expected,
                "{retry_after:?}"
            );
        }
    }
}
