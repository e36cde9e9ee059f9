//! When to read the target's mappings again: at once when a walk asks for it, ever more rarely while that finds
//! nothing new (garbage on a stack asks too, and has no mapping).

use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The state of reloading.
#[derive(Debug)]
pub(super) struct Reloads {
    requested: bool,
    pause: Duration,
    not_before: Option<Instant>,
}

impl Default for Reloads {
    fn default() -> Self {
        Self {
            requested: false,
            pause: FIRST_PAUSE,
            not_before: None,
        }
    }
}

impl Reloads {
    /// A walk met an unknown mapping.
    pub(super) fn request(&mut self) {
        self.requested = true;
    }

    /// Whether to reload now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.requested && self.not_before.is_none_or(|not_before| now >= not_before)
    }

    /// A reload was done, and found something new or not.
    pub(super) fn done(&mut self, now: Instant, changed: bool) {
        self.requested = false;
        self.pause = if changed {
            FIRST_PAUSE
        } else {
            (2 * self.pause).min(LONGEST_PAUSE)
        };
        self.not_before = (!changed).then(|| now + self.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reloads follow requests at once while they find something, and back off while they do not.
    #[test]
    fn fruitless_reloads_back_off() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut reloads = Reloads::default();
        assert!(!reloads.is_due(start));
        reloads.request();
        assert!(reloads.is_due(start));
        reloads.done(start, true);
        assert!(!reloads.is_due(after(5000)), "nothing asked for it");
        reloads.request();
        assert!(reloads.is_due(start));
        reloads.done(start, false);
        reloads.request();
        assert!(!reloads.is_due(after(39)));
        assert!(reloads.is_due(after(40)));
        for _ in 0..10 {
            reloads.done(start, false);
            reloads.request();
        }
        assert!(!reloads.is_due(after(999)));
        assert!(reloads.is_due(after(1000)));
    }
}
