//! Suspicion: how much a site behaves like a leak, judged by what reports know without looking into the process. Pure.
//!
//! A leak grows, goes on growing, frees nothing, and has blocks of all ages. A cache that has settled has stopped growing;
//! what a program sets up at its start never grew; churn has no old blocks. Each of that is a part between 0 and 1:
//!
//! | part | 1 for | 0 for |
//! |---|---|---|
//! | certainty | outstanding bytes that rise over all reports (Mann–Kendall) | those that stay, fall or go up and down |
//! | steadiness | growth that is as fast in the later half of the reports as in the earlier | growth that has ended |
//! | kept | blocks that are all still there long after they were allocated | blocks that are all freed by then |
//! | age spread | ages as of blocks that came evenly since the attach | ages that are all alike |
//!
//! score = 10 × certainty × steadiness × (2 + kept + age spread) / 4, rounded. Growth that is certain and lasts is what a
//! leak cannot do without; how its blocks live can halve the score and no more, since a site that leaks one block of a
//! thousand frees nearly all. It is no verdict: a cache that is still being filled looks the same.

use std::collections::HashMap;
use std::time::Duration;

use super::moments::{Moments, Noted, thin};
use super::theil_sen::{certainty_of_rise, slope};
use crate::model::{AGE_BOUNDS, Ages, RegionKind, Snapshot, StackTotals};
use serde::{Deserialize, Serialize};

/// Reports that are remembered. More would sharpen the certainty of what is certain already.
const MAX_MOMENTS: usize = 24;
/// Stands for a part that is not known.
const UNKNOWN: f64 = 0.5;

/// How much a site behaves like a leak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Suspicion {
    /// Reports that it is judged by, this one among them.
    pub reports: u32,
    /// Slope of the outstanding bytes over them (Theil–Sen), in bytes per second.
    pub growth: f64,
    /// How certain it is that the outstanding bytes rise, 0 to 1.
    pub certainty: f64,
    /// The slope in the later half of the reports as a share of that in the earlier half, 0 to 1.
    pub steadiness: f64,
    /// The share that is still live of the blocks allocated before some time; `None` if too little time has passed.
    pub kept: Option<f64>,
    /// How much of the live blocks' ages is as if they had come evenly since the attach; `None` if ages are not known.
    pub age_spread: Option<f64>,
}

impl Suspicion {
    /// The highest score.
    pub const MAX_SCORE: u8 = 10;

    /// There were enough reports to tell; of two, nothing can be.
    pub fn is_known(&self) -> bool {
        self.reports > 2
    }

    /// From 0, nothing like a leak, to [`Suspicion::MAX_SCORE`].
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

    /// The key to rank by: the score, and among equal ones above 0 the growth.
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

/// Between 0 and 1, whatever a recording says.
fn share(part: f64) -> f64 {
    if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) }
}

/// A site at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Outstanding bytes, without those of young blocks.
    pub bytes: u64,
    /// Blocks allocated since the attach.
    pub allocated: u64,
}

/// Amounts of stacks at the reports made so far, by stack record.
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
    /// Notes the stacks of a report; `held` gives the outstanding bytes of one, without those of young blocks.
    pub fn note(&mut self, snapshot: &Snapshot, held: impl Fn(&StackTotals) -> u64) {
        match self.moments.note(snapshot.elapsed.as_secs_f64()) {
            Noted::Skipped => return,
            Noted::Kept => {}
            Noted::KeptAfterThinning => self.records.values_mut().for_each(thin),
        }
        let before = self.moments.seconds().len() - 1;
        for stack in &snapshot.stacks {
            let points = self.records.entry((stack.record, stack.kind)).or_default();
            // A record that is new held nothing before; one that was left out for a while is taken to have stayed.
            let missed = points.last().copied().unwrap_or_default();
            points.resize(before, missed);
            points.push(Point {
                bytes: held(stack),
                allocated: stack.allocated.amount.blocks,
            });
        }
    }

    /// Judges a site by what its records were, and by what it is `elapsed` after the attach.
    pub fn suspicion(&self, site: &Now<'_>) -> Suspicion {
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

/// A site as it is now.
#[derive(Clone, Copy, Debug)]
pub struct Now<'a> {
    /// Time since the attach.
    pub elapsed: Duration,
    /// The records of its stacks.
    pub records: &'a [u32],
    /// The kind of its mappings; `None` for blocks of an allocator.
    pub kind: Option<RegionKind>,
    /// Its amounts now.
    pub point: Point,
    /// Blocks that are outstanding, young or not.
    pub blocks: u64,
    /// Its live blocks by age, if they were read.
    pub ages: Option<Ages>,
}

/// Judges by seconds since the attach and what was held then, ascending, the last of them now.
fn judge(course: &[(f64, Point)], outstanding: u64, ages: Option<Ages>) -> Suspicion {
    let Some(&(elapsed, now)) = course.last() else {
        return Suspicion::default();
    };
    let bytes: Vec<_> = course
        .iter()
        .map(|&(at, point)| (at, point.bytes as f64))
        .collect();
    let values: Vec<_> = bytes.iter().map(|&(_, bytes)| bytes).collect();
    // Of a process that has ended no ages are known.
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

/// The halves have a point in common, so that what happens between them counts.
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

/// Of the blocks allocated up to some time ago, the share that is still live. The time is the longest that separates two
/// classes of ages and is no more than half of the trace.
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

/// Blocks allocated by a moment, taken to have come evenly between two reports.
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

/// The overlap of two distributions over classes of ages: that of the live blocks, and that of blocks that came evenly
/// since the attach. Classes of a second and less are left out once a trace is longer than ten: churn is in each site.
fn age_spread(ages: &Ages, elapsed: f64) -> Option<f64> {
    let least = if elapsed > 10.0 { 1.0 } else { 0.0 };
    let mut classes = Vec::with_capacity(AGE_BOUNDS.len() + 1);
    let mut lower: f64 = 0.0;
    for (upper, class) in ages.classes() {
        let bound = upper.map_or(f64::INFINITY, |upper| upper.as_secs_f64());
        if bound > least {
            let expected = bound.min(elapsed) - lower.max(least).min(elapsed);
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
