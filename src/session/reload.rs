//! When to read a process's mappings again: at once when the loader says that they change or a walk asks for it,
//! ever more rarely while walks ask and there is nothing new (garbage on a stack asks too, and has no mapping).
//! After an exec also a few times unasked: until the new program's loader and allocator are probed, nobody can ask.

use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_millis(10);
/// Pauses between looks after an exec: this, and so many times more each, up to the last.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const LOOKS_GROW: u32 = 3;
const LAST_LOOK: Duration = Duration::from_millis(810);

/// The state of reloading.
#[derive(Debug)]
pub(super) struct Reloads {
    /// A walk met what it does not know.
    requested: bool,
    /// The mappings have changed, or are about to.
    demanded: bool,
    /// After a reload that found nothing, walks wait for this long.
    pause: Duration,
    /// When a request is heard again.
    not_before: Option<Instant>,
    /// When anything is: there is a rest as long as the work, up to [`LONGEST_REST`].
    rested: Option<Instant>,
    /// When to look unasked, and how long after that again.
    look: Option<(Instant, Duration)>,
}

impl Reloads {
    /// The state in which a reload is due.
    pub(super) fn demanded() -> Self {
        Self {
            requested: false,
            demanded: true,
            pause: FIRST_PAUSE,
            not_before: None,
            rested: None,
            look: None,
        }
    }

    /// The same for a program that has just been started: looks a few times more.
    pub(super) fn settling(now: Instant) -> Self {
        Self {
            look: Some((now, FIRST_LOOK)),
            ..Self::demanded()
        }
    }

    /// A walk met an unknown mapping.
    pub(super) fn request(&mut self) {
        self.requested = true;
    }

    /// The loader announced a change.
    pub(super) fn demand(&mut self) {
        self.demanded = true;
    }

    /// Whether to reload now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.rest(now).is_some_and(|rest| rest.is_zero())
    }

    /// How long until a reload is due; `None` when nothing asks for one.
    pub(super) fn rest(&self, now: Instant) -> Option<Duration> {
        let until =
            |time: Option<Instant>| time.map_or(Duration::ZERO, |time| time.saturating_duration_since(now));
        let demanded = self.demanded.then(|| until(self.rested));
        let requested = self.requested.then(|| until(self.not_before.max(self.rested)));
        let unasked = self.look.map(|(at, _)| until(Some(at)));
        [demanded, requested, unasked].into_iter().flatten().min()
    }

    /// A reload begins: what asks for one from here on is not answered by it.
    pub(super) fn begin(&mut self) {
        self.requested = false;
        self.demanded = false;
    }

    /// Goes on to the next look, if this one was due.
    fn looked(&mut self, now: Instant) {
        if let Some((at, pause)) = self.look
            && at <= now
        {
            self.look = (pause <= LAST_LOOK).then(|| (now + pause, pause * LOOKS_GROW));
        }
    }

    /// A reload was done, and found something new or not.
    pub(super) fn done(&mut self, began: Instant, now: Instant, changed: bool) {
        self.looked(began);
        self.pause = if changed {
            FIRST_PAUSE
        } else {
            (2 * self.pause).min(LONGEST_PAUSE)
        };
        self.not_before = (!changed).then(|| now + self.pause);
        self.rested = Some(now + now.saturating_duration_since(began).min(LONGEST_REST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reloaded(reloads: &mut Reloads, now: Instant, changed: bool) {
        reloads.begin();
        reloads.done(now, now, changed);
    }

    /// Reloads follow requests at once while they find something, and back off while they do not.
    #[test]
    fn fruitless_reloads_back_off() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut reloads = Reloads::demanded();
        assert!(reloads.is_due(start));
        reloaded(&mut reloads, start, true);
        assert!(!reloads.is_due(after(5000)), "nothing asked for it");
        reloads.request();
        assert!(reloads.is_due(start));
        reloaded(&mut reloads, start, false);
        reloads.request();
        assert!(!reloads.is_due(after(39)));
        assert!(reloads.is_due(after(40)));
        for _ in 0..10 {
            reloaded(&mut reloads, start, false);
            reloads.request();
        }
        assert!(!reloads.is_due(after(999)));
        assert!(reloads.is_due(after(1000)));
    }

    /// After an exec there are a few looks, further and further apart, and then no more.
    #[test]
    fn looks_after_an_exec_end() {
        let start = Instant::now();
        let mut reloads = Reloads::settling(start);
        let (mut now, mut looks) = (start, Vec::new());
        while let Some(rest) = reloads.rest(now) {
            now += rest;
            assert!(reloads.is_due(now) && looks.len() < 10);
            looks.push((now - start).as_millis());
            reloaded(&mut reloads, now, true);
        }
        assert_eq!(looks, [0, 10, 40, 130, 400, 1210]);
    }

    /// What the loader announces is read at once, whatever walks asked for before in vain, but not without
    /// rest.
    #[test]
    fn announced_changes_are_read_at_once() {
        let start = Instant::now();
        let after = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut reloads = Reloads::demanded();
        reloaded(&mut reloads, start, false);
        reloads.request();
        assert!(!reloads.is_due(start));
        reloads.demand();
        assert!(reloads.is_due(start));
        reloads.begin();
        reloads.done(start, after(5), true);
        assert_eq!(reloads.rest(after(5)), None);
        reloads.demand();
        assert_eq!(reloads.rest(after(5)), Some(Duration::from_millis(5)));
        assert!(reloads.is_due(after(10)));
    }
}
