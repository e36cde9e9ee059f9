//! Recent growth of a quantity: the median of the slopes between all pairs of its values (Theil–Sen), which
//! single steps and peaks hardly change.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use leak_report::model::leak::theil_sen::{Interval, slope};

/// Time over which growth is judged.
const WINDOW: Duration = Duration::from_secs(60);
/// Minimum number of looks over which growth is judged, where they are far apart.
const MIN_LOOKS: u32 = 20;
/// Maximum number of values: the work for a slope grows with their square.
const MAX_VALUES: usize = 60;

/// Recent values of a quantity.
#[derive(Clone, Debug)]
pub(super) struct Course {
    window: Duration,
    /// Minimum time between two values that are kept.
    distance: Duration,
    values: VecDeque<(Instant, u64)>,
}

impl Course {
    /// A course of values that come each `interval`.
    pub(super) fn new(interval: Duration) -> Self {
        let window = WINDOW.max(interval.saturating_mul(MIN_LOOKS));
        Self {
            window,
            distance: window / 60,
            values: VecDeque::new(),
        }
    }

    /// Adds the value of a moment, not earlier than the last one's.
    pub(super) fn add(&mut self, now: Instant, bytes: u64) {
        let newest = self.values.iter().rev();
        let mut times = newest.map(|(at, _)| *at);
        // The newest value moves on until it is far enough from the one before.
        let is_close = match (times.next(), times.next()) {
            (Some(last), Some(before)) => last.saturating_duration_since(before) < self.distance * 3 / 4,
            (None | Some(_), _) => false,
        };
        if is_close {
            self.values.pop_back();
        }
        self.values.push_back((now, bytes));
        let is_old = |at: &Instant| now.saturating_duration_since(*at) > self.window;
        while self.values.len() > MAX_VALUES || self.values.front().is_some_and(|(at, _)| is_old(at)) {
            self.values.pop_front();
        }
    }

    /// Bytes per second, below 0 if it shrinks; `None` while there are too few values.
    pub(super) fn growth(&self) -> Option<f64> {
        if self.values.len() < Interval::MIN_POINTS {
            return None;
        }
        let first = self.values.front()?.0;
        let points = self.values.iter().map(|(at, bytes)| {
            let seconds = at.saturating_duration_since(first).as_secs_f64();
            (seconds, *bytes as f64)
        });
        Some(slope(&points.collect::<Vec<_>>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Growth after `looks` values at an interval.
    fn growth(interval: Duration, looks: u32, value: impl Fn(u32) -> u64) -> (usize, Option<f64>) {
        let mut course = Course::new(interval);
        let begin = Instant::now();
        for look in 0..looks {
            course.add(begin + interval * look, value(look));
        }
        (course.values.len(), course.growth())
    }

    /// A constant rate is found at any interval, from ten values on; few values are ever kept.
    #[test]
    fn constant_rates() {
        for milliseconds in [10, 100, 1000, 7000, 600_000] {
            let interval = Duration::from_millis(milliseconds);
            let per_look = 3 * milliseconds;
            let (values, rate) = growth(interval, 20_000, |look| u64::from(look) * per_look);
            assert!((10..=MAX_VALUES).contains(&values), "{milliseconds}: {values}");
            let rate = rate.expect("values enough");
            assert!((rate - 3000.0).abs() < 1e-3, "{milliseconds}: {rate}");
        }
        let second = Duration::from_secs(1);
        assert_eq!(growth(second, 9, u64::from).1, None);
        assert!(growth(second, 10, u64::from).1.is_some());
    }

    /// Levels and single steps do not grow, falling values shrink, and noise is nearly nothing.
    #[test]
    fn no_growth() {
        let second = Duration::from_secs(1);
        let rate = |value: fn(u32) -> u64| growth(second, 60, value).1.expect("values enough");
        assert!(rate(|_| 7).abs() < 1e-9);
        assert!(rate(|look| if look < 20 { 7 } else { 1 << 30 }).abs() < 1e-9);
        assert!((rate(|look| u64::from(1000 - look)) + 1.0).abs() < 1e-9);
        let noise = rate(|look| u64::from(look.wrapping_mul(2_654_435_761) >> 16));
        assert!(noise.abs() < 300.0, "{noise}");
    }

    /// Growth earlier than the window is forgotten.
    #[test]
    fn windows() {
        let stopped = |look: u32| u64::from(look.min(100)) * 1000;
        assert_eq!(growth(Duration::from_secs(1), 165, stopped).1, Some(0.0));
    }
}
