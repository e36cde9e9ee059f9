//! Suspicion: degree to which a site behaves like a leak, judged only by reports, without inspecting the
//! process. Pure.
//!
//! A leak keeps growing, frees nothing, and has blocks of all ages. A cache that is full has stopped growing;
//! data from the program's start never grew; churn has no old blocks. Each property is a part between 0 and
//! 1:
//!
//! | part | 1 for | 0 for |
//! |---|---|---|
//! | certainty | bytes that rise over all reports (Mann–Kendall) | bytes that stay, fall or go up and down |
//! | steadiness | growth as fast in the later half of the reports as in the earlier | growth that has ended |
//! | kept | blocks that are all outstanding long after their allocation | blocks that are all freed by then |
//! | age spread | ages as of blocks allocated evenly since the attach | ages that are all alike |
//!
//! score = 10 × certainty × steadiness × (2 + kept + age spread) / 4, rounded. Certain and lasting growth is
//! necessary for a leak; the ages and lifetimes of its blocks can at most halve the score, since a site that
//! leaks one block of a thousand frees nearly all. The score is no proof: a cache that is still being filled
//! looks the same.

use std::collections::HashMap;
use std::time::Duration;

use super::moments::{Moments, Noted, thin};
use super::theil_sen::{certainty_of_rise, slope};
use crate::model::{AGE_BOUNDS, Ages, RegionKind, Snapshot, StackTotals};
use serde::{Deserialize, Serialize};

/// Maximum number of remembered reports; more would only increase a certainty that is already high.
const MAX_MOMENTS: usize = 24;
/// Value of a part that is not known.
const UNKNOWN: f64 = 0.5;

/// Degree to which a site behaves like a leak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Suspicion {
    /// Number of reports it is based on, including this one.
    pub reports: u32,
    /// Slope of the outstanding bytes over the judged reports (Theil–Sen), in bytes per second.
    pub growth: f64,
    /// Certainty that the outstanding bytes rise, 0 to 1.
    pub certainty: f64,
    /// Slope in the later half of the reports as a share of that in the earlier half, 0 to 1.
    pub steadiness: f64,
    /// Outstanding share of the blocks allocated before a certain time; `None` if too little time has passed.
    pub kept: Option<f64>,
    /// Similarity of the outstanding blocks' ages to those of blocks allocated evenly since the attach, 0 to
    /// 1; `None` if ages are not known.
    pub age_spread: Option<f64>,
}

impl Suspicion {
    /// Maximum score.
    pub const MAX_SCORE: u8 = 10;

    /// Returns whether there were enough reports; two prove nothing.
    pub fn is_known(&self) -> bool {
        self.reports > 2
    }

    /// Score from 0 (nothing like a leak) to [`Suspicion::MAX_SCORE`].
    pub fn score(&self) -> u8 {
        let blocks = [self.kept, self.age_spread].map(|part| share(part.unwrap_or(UNKNOWN)));
        let factor = (2.0 + blocks.iter().sum::<f64>()) / 4.0;
        let score = share(self.certainty) * share(self.steadiness) * factor;
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 10"
        )]
        let score = (score * f64::from(Self::MAX_SCORE)).round() as u8;
        score
    }

    /// Sort key: the score, then, for scores above 0, the growth.
    pub fn rank(&self) -> [i128; 2] {
        let score = self.score();
        #[allow(
            clippy::cast_possible_truncation,
            reason = "of a number out of range the nearest will do"
        )]
        let growth = if score == 0 {
            0
        } else {
            (self.growth * 1000.0) as i128
        };
        [score.into(), growth]
    }
}

/// Clamps an untrusted part of a recording to 0..=1; NaN gives 0.
fn share(part: f64) -> f64 {
    if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) }
}

/// Amounts of a site at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Outstanding bytes without young blocks.
    pub bytes: u64,
    /// Blocks allocated since the attach.
    pub allocated: u64,
}

/// Amounts of stacks at the reports so far, by stack record.
#[derive(Clone, Debug)]
pub struct Course {
    moments: Moments,
    records: HashMap<(u32, Option<RegionKind>), Vec<Point>>,
}

impl Default for Course {
    fn default() -> Self {
        Self {
            moments: Moments::new(MAX_MOMENTS),
            records: HashMap::new(),
        }
    }
}

impl Course {
    /// Adds a report; `outstanding` returns the outstanding bytes of a stack without young blocks.
    pub fn note(&mut self, snapshot: &Snapshot, outstanding: impl Fn(&StackTotals) -> u64) {
        match self.moments.note(snapshot.elapsed.as_secs_f64()) {
            Noted::Skipped => return,
            Noted::Kept => {}
            Noted::KeptAfterThinning => self.records.values_mut().for_each(thin),
        }
        let before = self.moments.seconds().len() - 1;
        for stack in &snapshot.stacks {
            let points = self.records.entry((stack.record, stack.kind)).or_default();
            // A new record had nothing outstanding before; one missing from some reports is assumed unchanged
            // in them.
            let missed = points.last().copied().unwrap_or_default();
            points.resize(before, missed);
            points.push(Point {
                bytes: outstanding(stack),
                allocated: stack.allocated.amount.blocks,
            });
        }
    }

    /// Judges a site by the amounts of its records in past reports and now.
    pub fn suspicion(&self, site: &SiteState<'_>) -> Suspicion {
        let moments = self.moments.seconds();
        let mut points = vec![Point::default(); moments.len()];
        let known = site
            .records
            .iter()
            .filter_map(|&record| self.records.get(&(record, site.kind)));
        for record in known {
            for (sum, point) in points.iter_mut().zip(record) {
                sum.bytes = sum.bytes.saturating_add(point.bytes);
                sum.allocated = sum.allocated.saturating_add(point.allocated);
            }
        }
        let mut course: Vec<_> = moments.iter().copied().zip(points).collect();
        course.push((site.elapsed.as_secs_f64(), site.point));
        judge(&course, site.blocks, site.ages)
    }
}

/// Current state of a site.
#[derive(Clone, Copy, Debug)]
pub struct SiteState<'a> {
    /// Time since the attach.
    pub elapsed: Duration,
    /// Ids of its stack records.
    pub records: &'a [u32],
    /// Use of its mappings; `None` for blocks of an allocator.
    pub kind: Option<RegionKind>,
    /// Current amounts.
    pub point: Point,
    /// Outstanding blocks, including young ones.
    pub blocks: u64,
    /// Outstanding blocks by age; `None` if they were not read.
    pub ages: Option<Ages>,
}

/// Judges a series of seconds since the attach and amounts, ascending; the last entry is now.
fn judge(course: &[(f64, Point)], outstanding: u64, ages: Option<Ages>) -> Suspicion {
    let Some(&(elapsed, now)) = course.last() else {
        return Suspicion::default();
    };
    let bytes: Vec<_> = course
        .iter()
        .map(|&(at, point)| (at, point.bytes as f64))
        .collect();
    let values: Vec<_> = bytes.iter().map(|&(_, bytes)| bytes).collect();
    // Ages of an ended process are not known.
    let ages = ages.filter(|ages| ages.classes().any(|(_, class)| class.amount.blocks > 0));
    Suspicion {
        reports: u32::try_from(course.len()).unwrap_or(u32::MAX),
        growth: slope(&bytes),
        certainty: certainty_of_rise(&values),
        steadiness: steadiness(&bytes),
        kept: match ages {
            Some(ages) => kept(course, &ages, elapsed),
            None => ratio(outstanding as f64, now.allocated as f64),
        },
        age_spread: ages.and_then(|ages| age_spread(&ages, elapsed)),
    }
}

/// Computes the steadiness. The halves share a point, so that growth between them counts.
fn steadiness(bytes: &[(f64, f64)]) -> f64 {
    let middle = bytes.len().saturating_sub(1) / 2;
    let (earlier, later) = (
        slope(&bytes[..=middle.min(bytes.len() - 1)]),
        slope(&bytes[middle..]),
    );
    match (earlier > 0.0, later > 0.0) {
        (_, false) => 0.0,
        (false, true) => 1.0,
        (true, true) => (later / earlier).min(1.0),
    }
}

/// Outstanding share of the blocks allocated more than a certain time ago: the longest age bound that is at
/// most half of the trace.
fn kept(course: &[(f64, Point)], ages: &Ages, elapsed: f64) -> Option<f64> {
    let bounds = AGE_BOUNDS.iter().rev();
    let bound = bounds
        .map(Duration::as_secs_f64)
        .find(|&bound| bound <= elapsed / 2.0)?;
    let is_old = |upper: Option<Duration>| upper.is_none_or(|upper| upper.as_secs_f64() > bound);
    let old: u64 = ages
        .classes()
        .filter(|&(upper, _)| is_old(upper))
        .map(|(_, class)| class.amount.blocks)
        .sum();
    ratio(old as f64, allocated_at(course, elapsed - bound))
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole >= 1.0).then(|| share(part / whole))
}

/// Blocks allocated by a moment, interpolated linearly between two reports.
fn allocated_at(course: &[(f64, Point)], moment: f64) -> f64 {
    let mut before = (0.0, 0.0);
    for &(at, point) in course {
        let after = (at, point.allocated as f64);
        if at >= moment {
            let time = (after.0 - before.0).max(f64::MIN_POSITIVE);
            return before.1 + (after.1 - before.1) * ((moment - before.0) / time).clamp(0.0, 1.0);
        }
        before = after;
    }
    before.1
}

/// Overlap of two distributions over age classes: the outstanding blocks, and blocks allocated evenly since
/// the attach. Classes up to one second are omitted once a trace is longer than ten: every site has churn.
fn age_spread(ages: &Ages, elapsed: f64) -> Option<f64> {
    let min = if elapsed > 10.0 { 1.0 } else { 0.0 };
    let mut classes = Vec::with_capacity(AGE_BOUNDS.len() + 1);
    let mut lower: f64 = 0.0;
    for (upper, class) in ages.classes() {
        let bound = upper.map_or(f64::INFINITY, |upper| upper.as_secs_f64());
        if bound > min {
            let expected = bound.min(elapsed) - lower.max(min).min(elapsed);
            classes.push((class.amount.blocks as f64, expected.max(0.0)));
        }
        lower = bound;
    }
    let found: f64 = classes.iter().map(|(found, _)| found).sum();
    let expected: f64 = classes.iter().map(|(_, expected)| expected).sum();
    if found < 1.0 || expected <= 0.0 {
        return None;
    }
    let overlap = classes
        .iter()
        .map(|(has, expects)| (has / found).min(expects / expected));
    Some(share(overlap.sum()))
}

#[cfg(test)]
mod tests;
