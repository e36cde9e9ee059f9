//! When to read a process's mappings again: at once when a walk asks for it, ever more rarely while that finds
//! nothing new (garbage on a stack asks too, and has no mapping). After an exec also a few times unasked: the
//! program's libraries come one by one, and until its allocator is probed no walk can ask.

use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Times after an exec at which to look: this, and so many times more each, up to the last.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const LOOKS_GROW: u32 = 3;
const LAST_LOOK: Duration = Duration::from_millis(810);

/// The state of reloading.
#[derive(Debug)]
pub(super) struct Reloads {
    requested: bool,
    pause: Duration,
    not_before: Option<Instant>,
    /// When to look unasked, and how long after that again.
    look: Option<(Instant, Duration)>,
}

impl Default for Reloads {
    fn default() -> Self {
        Self {
            requested: false,
            pause: FIRST_PAUSE,
            not_before: None,
            look: None,
        }
    }
}

impl Reloads {
    /// A walk met an unknown mapping.
    pub(super) fn request(&mut self) {
        self.requested = true;
    }

    /// A program was started just now: looks at once and then a few times more.
    pub(super) fn settle(&mut self, now: Instant) {
        self.look = Some((now, FIRST_LOOK));
    }

    /// Whether to reload now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_due(now).is_some_and(|due| due <= now)
    }

    /// When to reload next, as far as is known.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let asked = self.requested.then(|| self.not_before.unwrap_or(now));
        let unasked = self.look.map(|(at, _)| at);
        asked.into_iter().chain(unasked).min()
    }

    /// A reload was done, and found something new or not.
    pub(super) fn done(&mut self, now: Instant, changed: bool) {
        self.requested = false;
        self.look = self.look.and_then(|(at, pause)| match at <= now {
            true => (pause <= LAST_LOOK).then(|| (now + pause, pause * LOOKS_GROW)),
            false => Some((at, pause)),
        });
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

    /// After an exec there are a few looks, further and further apart, and then no more.
    #[test]
    fn looks_after_an_exec_end() {
        let start = Instant::now();
        let mut reloads = Reloads::default();
        reloads.settle(start);
        let mut looks = Vec::new();
        while let Some(due) = reloads.next_due(start) {
            assert!(reloads.is_due(due) && looks.len() < 10);
            looks.push((due - start).as_millis());
            reloads.done(due, true);
        }
        assert_eq!(looks, [0, 10, 40, 130, 400, 1210]);
    }
}
