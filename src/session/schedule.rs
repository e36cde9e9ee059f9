//! Decides when reports are due, and which is the last. Pure: the time is an argument.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use super::TraceConfig;

/// Maximum time between two checks of the target and of signals.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// Maximum interval, 100 years: replaces those that clocks cannot count.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The times at which reports are due.
#[derive(Debug)]
pub(super) struct Schedule {
    interval: Duration,
    count: Option<NonZeroU64>,
    /// End of the trace, whether or not a report is due then.
    end: Option<Instant>,
    next: Instant,
    made: u64,
}

impl Schedule {
    pub(super) fn begin(config: &TraceConfig, now: Instant) -> Self {
        Self {
            interval: config.schedule.interval.min(FOR_EVER),
            count: config.schedule.count,
            end: config
                .schedule
                .duration
                .map(|duration| now + duration.min(FOR_EVER)),
            next: now,
            made: 0,
        }
    }

    /// Time of the next report: one interval after the last was due, however long that took; missed ones are
    /// not made up for.
    pub(super) fn next(&mut self, now: Instant) -> Instant {
        self.next = (self.next + self.interval).max(now);
        self.end.map_or(self.next, |end| self.next.min(end)).max(now)
    }

    /// Counts a report if one `is_made`, by conditions or at the time of [`Schedule::next`]. Returns whether
    /// it is the last.
    pub(super) fn is_last(&mut self, is_made: bool) -> bool {
        self.made += u64::from(is_made);
        self.count.is_some_and(|count| self.made >= count.get())
            || self.end.is_some_and(|end| self.next >= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds after the start at which reports are made, up to five, and whether the last of them ends the
    /// trace; making one takes `cost` seconds.
    fn reports(interval: u64, count: Option<u64>, duration: Option<u64>, cost: u64) -> (Vec<u64>, bool) {
        let begin = Instant::now();
        let mut config = TraceConfig::of_process(1);
        config.schedule.interval = Duration::from_secs(interval);
        config.schedule.count = count.and_then(NonZeroU64::new);
        config.schedule.duration = duration.map(Duration::from_secs);
        let mut schedule = Schedule::begin(&config, begin);
        let (mut now, mut made) = (begin, Vec::new());
        while made.len() < 5 {
            now = schedule.next(now);
            made.push((now - begin).as_secs());
            if schedule.is_last(true) {
                return (made, true);
            }
            now += Duration::from_secs(cost);
        }
        (made, false)
    }

    /// Reports are made at intervals until there are `count`, or until the duration is over: then with a last
    /// one.
    #[test]
    fn ends() {
        assert_eq!(reports(5, None, None, 0), (vec![5, 10, 15, 20, 25], false));
        assert_eq!(reports(5, Some(2), None, 0), (vec![5, 10], true));
        assert_eq!(reports(5, None, Some(12), 0), (vec![5, 10, 12], true));
        assert_eq!(reports(5, None, Some(10), 0), (vec![5, 10], true));
        assert_eq!(reports(5, Some(1), Some(12), 0), (vec![5], true));
        assert_eq!(reports(60, None, Some(3), 0), (vec![3], true));
    }

    /// `count` is of reports that are made. A look without a report can only end the trace by the duration.
    #[test]
    fn looks() {
        let begin = Instant::now();
        let mut config = TraceConfig::of_process(1);
        config.schedule.interval = Duration::from_secs(1);
        config.schedule.count = NonZeroU64::new(2);
        config.schedule.duration = Some(Duration::from_secs(5));
        let mut schedule = Schedule::begin(&config, begin);
        let mut now = begin;
        let mut looks = |made: &[bool]| -> Vec<bool> {
            let ends = made.iter().map(|&is_made| {
                now = schedule.next(now);
                schedule.is_last(is_made)
            });
            ends.collect()
        };
        assert_eq!(looks(&[false, true, false]), [false; 3]);
        assert_eq!(looks(&[false, false]), [false, true]);
        let mut schedule = Schedule::begin(&config, begin);
        let made = [true, false, true].map(|is_made| {
            schedule.next(begin);
            schedule.is_last(is_made)
        });
        assert_eq!(made, [false, false, true]);
    }

    /// A report that takes longer than an interval delays the next, and the end.
    #[test]
    fn slow_reports() {
        assert_eq!(reports(2, Some(3), None, 3), (vec![2, 5, 8], true));
        assert_eq!(reports(2, None, Some(4), 3), (vec![2, 5], true));
    }

    /// Times beyond what clocks count are limited to `FOR_EVER`.
    #[test]
    fn for_ever() {
        let (made, ended) = reports(u64::MAX, Some(1), Some(u64::MAX), 0);
        assert_eq!((made, ended), (vec![FOR_EVER.as_secs()], true));
    }
}
