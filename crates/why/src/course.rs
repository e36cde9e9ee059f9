//! Courses of memory over time, and whether they rise.

use std::time::Duration;

use leak_report::model::leak::theil_sen::Interval;

use crate::observed::Reading;
use crate::region::Region;

/// Minimum number of readings by which growth is judged.
pub const MIN_READINGS: usize = Interval::MIN_POINTS;
/// Growth below this share of all memory per minute does not count, and neither does growth below
/// [`MIN_RATE`]: programs breathe.
pub const MIN_SHARE: f64 = 0.001;
/// Minimum growth that counts, in bytes per second: two pages a minute.
pub const MIN_RATE: f64 = 8192.0 / 60.0;
/// Share of all memory per minute that must be excluded before memory is called steady.
pub const OPEN_SHARE: f64 = 0.02;

/// Memory of a region over time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Course {
    /// Bytes per second.
    pub rate: Interval,
    pub span: Duration,
    /// Bytes at the last reading.
    pub bytes: u64,
    /// Bytes of all regions at the last reading.
    all: u64,
}

impl Course {
    fn new(readings: &[Reading], bytes: impl Fn(&Reading) -> u64) -> Self {
        let points = readings.iter();
        let points: Vec<_> = points
            .map(|reading| (reading.at.as_secs_f64(), bytes(reading) as f64))
            .collect();
        let last = readings.last();
        let rate = Interval::of(&points);
        let steps = steps(&points).filter(|_| rate.low <= 0.0);
        Self {
            rate: steps.unwrap_or(rate),
            span: last.map_or(Duration::ZERO, |last| last.at),
            bytes: last.map_or(0, &bytes),
            all: last.map_or(0, |last| last.bytes.all()),
        }
    }

    /// True if the region certainly grows, and by an amount that matters.
    pub fn grows(&self) -> bool {
        let least = (MIN_SHARE * self.all as f64 / 60.0).max(MIN_RATE);
        self.rate.low > 0.0 && self.rate.slope >= least
    }

    /// True if it may still turn out to grow: it rises, and the limits are far apart.
    pub(crate) fn is_open(&self) -> bool {
        let most = OPEN_SHARE * self.all as f64 / 60.0;
        self.rate.slope > MIN_RATE && self.rate.high > most
    }
}

/// Rise of a series by steps, as heaps of runtimes rise that grow at collections only: its values are like
/// their neighbours, which [`Interval`] takes for chance. It rises if it never falls, and rises in each third
/// of the time. A random walk does not do that.
fn steps(points: &[(f64, f64)]) -> Option<Interval> {
    let (first, last) = (points.first()?, points.last()?);
    let (span, rise) = (last.0 - first.0, last.1 - first.1);
    let pairs = || points.windows(2).map(|pair| (pair[1].0, pair[1].1 - pair[0].1));
    let falls: f64 = pairs().map(|(_, change)| (-change).max(0.0)).sum();
    let in_third = |third: u32| {
        let from = first.0 + span * f64::from(third) / 3.0;
        let within = pairs().filter(|(at, _)| *at > from && *at <= from + span / 3.0);
        within.map(|(_, change)| change).sum::<f64>()
    };
    let rises = (0..3).all(|third| in_third(third) >= LEAST_STEP * rise);
    let is_sure = points.len() >= MIN_READINGS && rise > 0.0 && falls <= MOST_FALLS * rise && rises;
    let slope = rise / span.max(1e-3);
    is_sure.then_some(Interval {
        slope,
        low: LEAST_STEP * slope,
        high: slope / LEAST_STEP,
    })
}

/// Part of the whole rise that a series must rise by in each third of the time to rise by steps.
const LEAST_STEP: f64 = 0.1;
/// Part of the whole rise that falls may have.
const MOST_FALLS: f64 = 0.01;

/// Courses of all regions.
pub(crate) fn of(readings: &[Reading]) -> Vec<(Region, Course)> {
    let course = |region: Region| Course::new(readings, move |reading| reading.bytes.get(region));
    Region::ALL.map(|region| (region, course(region))).into()
}

/// Course of the sum of all regions.
pub(crate) fn of_all(readings: &[Reading]) -> Course {
    Course::new(readings, |reading| reading.bytes.all())
}
