//! Profile of one process at one of many moments, for a store that adds up allocations over time and shows
//! outstanding memory at each moment.
//!
//! Allocated is counted from the last report, not from the attach: a store's sum over an hour is the amount
//! allocated in that hour. Outstanding is the total, as in every profile of that kind. The number of stacks
//! is limited to what stores accept; the amounts of the others are in one sample, so that totals are right.
//! Stacks with all values 0 are omitted.

use std::cmp::Reverse;
use std::io;
use std::time::Duration;

use prost::Message;

use super::proto::Profile;
use super::table::{LocationKind, Table, Values};
use super::{ALLOCATED_TYPES, HEAP_TYPES, OUTSTANDING_TYPES, compress, finish, values};
use crate::model::{Report, StackRef, TargetFacts};

/// Maximum number of stacks in a profile. (Pyroscope refuses profiles of more than 16,000 samples by default:
/// `-validation.max-profile-stacktrace-samples`.)
const MAX_STACKS: usize = 8000;
/// Maximum size in bytes before compression. (Pyroscope's limit: `-validation.max-profile-size-bytes`.)
const MAX_BYTES: usize = 4 << 20;
/// Name of the sample that sums up the other stacks.
pub(super) const OTHERS: &str = "[other stacks]";

/// The content of a profile.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The process; `None` if the profile is not of one process.
    pub target: Option<&'a TargetFacts>,
    /// Amounts that are included.
    pub amounts: Amounts,
    /// True if code without a symbol is named by its module, for stores that drop nameless frames. Others may
    /// symbolize it by its address.
    pub names_all: bool,
}

/// The amounts in a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amounts {
    /// Allocated since the last report, and outstanding.
    Both,
    /// Allocated since the last report. The profile has a duration.
    Allocated,
    /// Outstanding. The profile is of a moment.
    Outstanding,
}

impl Amounts {
    const fn types(self) -> &'static [usize] {
        match self {
            Self::Both => HEAP_TYPES,
            Self::Allocated => ALLOCATED_TYPES,
            Self::Outstanding => OUTSTANDING_TYPES,
        }
    }
}

impl Part<'_> {
    /// Renders the compressed profile of this part of `stacks`, which belong to `report`; `None` if all
    /// values are 0.
    ///
    /// # Errors
    ///
    /// Fails if the profile cannot be compressed.
    pub fn render(&self, report: &Report, stacks: &[StackRef<'_>]) -> io::Result<Option<Vec<u8>>> {
        let Some((profile, _)) = self.profile(report, stacks) else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        compress(&profile, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// The profile of this part of `stacks`, with the kinds of its locations; `None` if all values are 0.
    pub(in super::super) fn profile(
        &self,
        report: &Report,
        stacks: &[StackRef<'_>],
    ) -> Option<(Profile, Vec<LocationKind>)> {
        let mut samples: Vec<(StackRef<'_>, Values)> = stacks
            .iter()
            .map(|&stack| (stack, values(stack, stack.recent.since_last.allocated.amount)))
            .filter(|(_, values)| self.amounts.types().iter().any(|&number| values[number] > 0))
            .collect();
        if samples.is_empty() {
            return None;
        }
        let bytes = self.amounts.types().last().copied().unwrap_or_default();
        samples.sort_by_key(|(_, values)| Reverse(values[bytes]));
        let of_first = |max| self.of_first(report, &samples, max);
        Some(fitting(samples.len(), of_first, |(profile, _)| profile))
    }

    /// The profile with the first `max` samples, and one sample for the rest.
    fn of_first(
        &self,
        report: &Report,
        samples: &[(StackRef<'_>, Values)],
        max: usize,
    ) -> (Profile, Vec<LocationKind>) {
        let (first, others) = samples.split_at(max);
        let mut table = Table::of_part(report, self);
        for &(stack, values) in first {
            table.add(stack, values);
        }
        for &(_, values) in others {
            table.add_marker(OTHERS, values);
        }
        let duration = match self.amounts {
            Amounts::Outstanding => Duration::ZERO,
            Amounts::Both | Amounts::Allocated => report.compared.since_last,
        };
        let kinds = table.kinds();
        // The period has this type whatever is sampled: stores treat profiles with another type as profiles
        // of another kind. It is 1 since estimates are of the total and must not be multiplied by it, as
        // Parca does for the rates of differences.
        let period = Some(("space", "bytes", 1));
        let profile = finish(report, table, self.amounts.types(), period, duration);
        (profile, kinds)
    }
}

/// The profile that `of_first` makes of the first samples, of `samples` in all, as many as stores accept.
pub(super) fn fitting<T>(
    samples: usize,
    of_first: impl Fn(usize) -> T,
    profile_of: impl Fn(&T) -> &Profile,
) -> T {
    let mut max = samples.min(MAX_STACKS);
    let mut made = of_first(max);
    // Sizes of stacks differ, so the number that fits is found by halving.
    while profile_of(&made).encoded_len() > MAX_BYTES && max > 1 {
        max /= 2;
        made = of_first(max);
    }
    made
}
