//! Decides when to read a process's mappings again: at once when the loader announces a change or a walk
//! requests it, but ever more rarely while walks request it and nothing is new (garbage on a stack causes
//! requests too, and has no mapping). After an exec also a few times without a request: until the new
//! program's loader and allocator are probed, there is none.

use std::time::{Duration, Instant};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_millis(10);
/// First pause between checks after an exec; each further one is `CHECK_GROWTH` times as long, up to
/// `LAST_CHECK`.
const FIRST_CHECK: Duration = Duration::from_millis(10);
const CHECK_GROWTH: u32 = 3;
const LAST_CHECK: Duration = Duration::from_millis(810);

/// Pending reloads of one process's mappings.
#[derive(Debug)]
pub(super) struct Reloads {
    /// True if a walk met an unknown mapping.
    requested: bool,
    /// True if the mappings have changed or are about to.
    demanded: bool,
    /// Time for which requests of walks wait after a reload that found nothing.
    pause: Duration,
    /// Time before which requests of walks are not served.
    not_before: Option<Instant>,
    /// Time before which no request or demand is served: a rest as long as the last reload took, up to
    /// [`LONGEST_REST`].
    rested: Option<Instant>,
    /// Time of the next check without a request, and the pause after it.
    next_check: Option<(Instant, Duration)>,
}

impl Reloads {
    /// Starts with a reload due.
    pub(super) fn demanded() -> Self {
        Self {
            requested: false,
            demanded: true,
            pause: FIRST_PAUSE,
            not_before: None,
            rested: None,
            next_check: None,
        }
    }

    /// Starts for a program that was just executed: with a reload due, and a few checks without a request.
    pub(super) fn settling(now: Instant) -> Self {
        Self {
            next_check: Some((now, FIRST_CHECK)),
            ..Self::demanded()
        }
    }

    /// Notes that a walk met an unknown mapping.
    pub(super) fn request(&mut self) {
        self.requested = true;
    }

    /// Notes that the loader announced a change.
    pub(super) fn demand(&mut self) {
        self.demanded = true;
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.rest(now).is_some_and(|rest| rest.is_zero())
    }

    /// Time until a reload is due; `None` if nothing asks for one.
    pub(super) fn rest(&self, now: Instant) -> Option<Duration> {
        let until =
            |time: Option<Instant>| time.map_or(Duration::ZERO, |time| time.saturating_duration_since(now));
        let demanded = self.demanded.then(|| until(self.rested));
        let requested = self.requested.then(|| until(self.not_before.max(self.rested)));
        let checked = self.next_check.map(|(at, _)| until(Some(at)));
        [demanded, requested, checked].into_iter().flatten().min()
    }

    /// Notes the start of a reload. It does not serve requests from here on.
    pub(super) fn begin(&mut self) {
        self.requested = false;
        self.demanded = false;
    }

    /// Schedules the next check, if this one was due.
    fn schedule_check(&mut self, now: Instant) {
        if let Some((at, pause)) = self.next_check
            && at <= now
        {
            self.next_check = (pause <= LAST_CHECK).then(|| (now + pause, pause * CHECK_GROWTH));
        }
    }

    /// Notes the end of a reload, and whether it found a change.
    pub(super) fn done(&mut self, began: Instant, now: Instant, changed: bool) {
        self.schedule_check(began);
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

    /// Looks after an exec are further and further apart, and end.
    #[test]
    fn checks_after_an_exec_end() {
        let start = Instant::now();
        let mut reloads = Reloads::settling(start);
        let (mut now, mut checks) = (start, Vec::new());
        while let Some(rest) = reloads.rest(now) {
            now += rest;
            assert!(reloads.is_due(now) && checks.len() < 10);
            checks.push((now - start).as_millis());
            reloaded(&mut reloads, now, true);
        }
        assert_eq!(checks, [0, 10, 40, 130, 400, 1210]);
    }

    /// Announced changes are read at once, whatever walks requested in vain before, but not without a rest.
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
