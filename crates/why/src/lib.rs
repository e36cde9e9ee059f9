//! Why the memory of a process grows: observations in, causes in order out. Pure: no clock, no process.
//!
//! `observed` has what is known of the process: memory by `region` over time, the uses of the allocator's
//! memory at the first and at the last moment, and the places that took memory in between. `course` tells
//! which regions grow, `heap` divides the growth of the heap into lost, kept, pinned and free memory,
//! `causes` names the causes of all regions, and `words` says what each means and what to do.
//! [`diagnose`] puts them in order.

#![allow(
    missing_docs,
    reason = "of a program, a comment is for what its names do not say; unwind-tables and leak-report have one everywhere"
)]

mod causes;
mod course;
mod heap;
mod idle;
mod observed;
mod region;
#[cfg(test)]
mod tests;
mod words;

pub use course::{Course, MIN_RATE, MIN_READINGS, MIN_SHARE, OPEN_SHARE};
pub use observed::{HeapUse, Observed, Reading, Site, Took, Trace};
pub use region::{Amounts, Region};

use std::time::Duration;

use leak_report::model::diagnosis::{Cause, Growth};

/// Causes with less than this part of the largest one's share are not named, and not looked for.
const LEAST_CAUSE: f64 = 0.03;

/// An answer: whether memory grows, how fast, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub growth: Growth,
    /// Growth of all regions that grow, in bytes per second.
    pub bytes_per_second: f64,
    /// Causes of the growth, largest first, then memory that is held without use.
    pub causes: Vec<Cause>,
}

/// Finds the causes. The more of `observed` there is, the surer they are.
pub fn diagnose(observed: &Observed) -> Answer {
    let courses = course::of(&observed.readings);
    let growing: Vec<_> = courses.iter().filter(|(_, course)| course.grows()).collect();
    let bytes_per_second: f64 = growing.iter().map(|(_, course)| course.rate.slope).sum();
    let mut causes = Vec::new();
    for (region, course) in growing.iter().copied() {
        causes.extend(causes::of_region(*region, course, observed));
    }
    for cause in &mut causes {
        cause.share = cause.bytes_per_second / bytes_per_second;
    }
    causes.sort_by(|one, other| other.bytes_per_second.total_cmp(&one.bytes_per_second));
    let largest = causes.first().map_or(0.0, |cause| cause.share);
    causes.retain(|cause| cause.share >= LEAST_CAUSE * largest);
    causes.extend(idle::of(observed, &causes));
    Answer {
        growth: growth(observed, growing.is_empty()),
        bytes_per_second,
        causes,
    }
}

/// Regions that grow by now and matter, the fastest first.
pub fn growing(observed: &Observed) -> Vec<Region> {
    let courses = course::of(&observed.readings);
    let mut growing: Vec<_> = courses.iter().filter(|(_, course)| course.grows()).collect();
    growing.sort_by(|(_, one), (_, other)| other.rate.slope.total_cmp(&one.rate.slope));
    let fastest = growing.first().map_or(0.0, |(_, course)| course.rate.slope);
    let matter = growing
        .into_iter()
        .filter(|(_, course)| course.rate.slope >= LEAST_CAUSE * fastest);
    matter.map(|(region, _)| *region).collect()
}

/// Tells whether anything grows, if that is known by now.
fn growth(observed: &Observed, is_steady: bool) -> Growth {
    let readings = &observed.readings;
    if readings.len() < MIN_READINGS {
        let so_far = readings.last().map_or(Duration::ZERO, |last| last.at);
        let pauses = readings.len().saturating_sub(1).max(1) as f64;
        let missing = (MIN_READINGS - readings.len()) as f64;
        return Growth::NotSure {
            more: so_far.mul_f64(missing / pauses),
        };
    }
    if !is_steady {
        return Growth::Grows;
    }
    let all = course::of_all(readings);
    match all.is_open() {
        true => Growth::NotSure { more: 2 * all.span },
        false => Growth::Steady {
            at_most: all.rate.high.max(0.0),
        },
    }
}
