//! A profile of one process at one of many moments, for a store that adds up what happened in each and shows what is held
//! at each.
//!
//! What was allocated is that since the last report, not since the attach: a store's sum over an hour is what was allocated
//! in that hour. What is outstanding is the whole, as it is in every profile of that kind. There are as many stacks as
//! stores take; what the others hold is in one sample of them all, so that totals are right. Stacks that have nothing to
//! say are left out.

use std::cmp::Reverse;
use std::io;
use std::ops::Range;
use std::time::Duration;

use prost::Message;

use super::proto::Profile;
use super::table::{Table, Values};
use super::{ALL_TYPES, compress, finish, values};
use crate::model::{Report, StackRef, TargetFacts};

/// The most stacks of a profile. (Pyroscope refuses profiles of more than 16,000 samples, if nothing else is set:
/// `-validation.max-profile-stacktrace-samples`.)
const MAX_STACKS: usize = 8000;
/// The most bytes, before compression. (The same: `-validation.max-profile-size-bytes`.)
const MAX_BYTES: usize = 4 << 20;
/// The name of the sample of those that are more.
const OTHERS: &str = "[other stacks]";

/// What goes into a profile.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The process, if it is one's.
    pub target: Option<&'a TargetFacts>,
    /// Which of its amounts.
    pub amounts: Amounts,
    /// Whether code without a name is called by its module, for stores that leave out what has none. Others may find its
    /// name by its address.
    pub names_all: bool,
}

/// Which amounts go into a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amounts {
    /// What was allocated since the last report, and what is outstanding.
    Both,
    /// What was allocated since the last report. The profile has a duration.
    Came,
    /// What is outstanding. The profile is of a moment.
    Held,
}

impl Amounts {
    fn types(self) -> Range<usize> {
        match self {
            Self::Both => ALL_TYPES,
            Self::Came => 0..2,
            Self::Held => 2..4,
        }
    }
}

impl Part<'_> {
    /// The compressed profile of this part of `stacks`, which are of `report`; `None` if there is nothing in it.
    ///
    /// # Errors
    ///
    /// It cannot be compressed.
    pub fn render(&self, report: &Report, stacks: &[StackRef<'_>]) -> io::Result<Option<Vec<u8>>> {
        let mut samples: Vec<(StackRef<'_>, Values)> = stacks
            .iter()
            .map(|&stack| {
                (
                    stack,
                    values(stack.recent.since_last.allocated.amount, stack.shown()),
                )
            })
            .filter(|(_, values)| values[self.amounts.types()].iter().any(|&value| value > 0))
            .collect();
        if samples.is_empty() {
            return Ok(None);
        }
        let bytes = self.amounts.types().end - 1;
        samples.sort_by_key(|(_, values)| Reverse(values[bytes]));
        let mut most = MAX_STACKS;
        let mut profile = self.profile(report, &samples, most);
        while profile.encoded_len() > MAX_BYTES && most > 1 {
            most = most.min(samples.len()) / 2;
            profile = self.profile(report, &samples, most);
        }
        let mut bytes = Vec::new();
        compress(&profile, &mut bytes)?;
        Ok(Some(bytes))
    }

    /// The profile with the first `most` of the samples, and the rest together.
    fn profile(&self, report: &Report, samples: &[(StackRef<'_>, Values)], most: usize) -> Profile {
        let (first, others) = samples.split_at(most.min(samples.len()));
        let mut table = Table::of_part(report, self);
        for &(stack, values) in first {
            table.add(stack, values);
        }
        for &(_, values) in others {
            table.add_marker(OTHERS, values);
        }
        let duration = match self.amounts {
            Amounts::Held => Duration::ZERO,
            Amounts::Both | Amounts::Came => report.compared.since_last,
        };
        // Of this type whatever is sampled: stores take profiles with another for profiles of another kind. Estimates are
        // of all, not to be multiplied by anything, as Parca does with the rates of differences.
        let period = Some(("space", "bytes", 1));
        finish(report, table, self.amounts.types(), period, duration)
    }
}
