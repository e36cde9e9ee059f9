//! Profile of all processes, for clients that request one from a server, with the contents of
//! `/debug/pprof/heap` and `/debug/pprof/allocs` of Go's `net/http/pprof`: both have all values, and differ
//! in the value that is shown first.
//!
//! Allocated is counted from the attach: scrapers that want differences compute them. The profile is of a
//! moment, without a duration, as Go's are. The number of stacks is limited as in profiles that are pushed.

use std::cmp::Reverse;
use std::io;
use std::time::Duration;

use super::part::{OTHERS, fitting};
use super::proto::Profile;
use super::table::{Table, Values};
use super::{SAMPLE_TYPES, compress, finish, types, values};
use crate::model::{Report, StackRef};

/// The values that a profile shows unless its reader chooses others. Stacks with the largest of these values
/// are kept if there are too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Outstanding bytes, as at `/debug/pprof/heap`.
    Outstanding,
    /// Allocated bytes, as at `/debug/pprof/allocs`.
    Allocated,
}

impl Shown {
    const fn sample_type(self) -> &'static str {
        match self {
            Self::Outstanding => "inuse_space",
            Self::Allocated => "alloc_space",
        }
    }
}

/// Renders the compressed profile of all processes of `report`.
///
/// # Errors
///
/// Fails if the profile cannot be compressed.
pub fn pulled(report: &Report, shown: Shown) -> io::Result<Vec<u8>> {
    let number = SAMPLE_TYPES
        .iter()
        .position(|(kind, _)| *kind == shown.sample_type());
    let number = number.unwrap_or(SAMPLE_TYPES.len() - 1);
    let stacks = report.suspects();
    let mut samples: Vec<_> = stacks
        .map(|stack| (stack, values(stack, stack.allocated.amount)))
        .collect();
    samples.sort_by_key(|(_, values)| Reverse(values[number]));
    let of_first = |max| of_first(report, &samples, max);
    let mut profile = fitting(samples.len(), of_first, |profile| profile);
    let shown = types(report).iter().position(|&kind| kind == number);
    if let Some(kind) = shown.and_then(|at| profile.sample_type.get(at)) {
        profile.default_sample_type = kind.kind;
    }
    let mut bytes = Vec::new();
    compress(&profile, &mut bytes)?;
    Ok(bytes)
}

/// The profile with the first `max` samples, and one sample for the rest.
fn of_first(report: &Report, samples: &[(StackRef<'_>, Values)], max: usize) -> Profile {
    let (first, others) = samples.split_at(max);
    let mut table = Table::of(report).naming_all();
    for &(stack, values) in first {
        table.add(stack, values);
    }
    for &(_, values) in others {
        table.add_marker(OTHERS, values);
    }
    // As in a profile that is pushed, the period is of this type and 1 whatever is sampled.
    let period = Some(("space", "bytes", 1));
    finish(report, table, &types(report), period, Duration::ZERO)
}
