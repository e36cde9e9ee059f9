//! Changes between two moments, by stack. Pure.
//!
//! Two readings are compared by stack record, before stacks are merged into sites: a record is always the
//! same stack, while its site can change between two reports when mappings become known. A site's change is
//! the sum of its records' changes, which stays correct when sites merge.

use std::collections::HashMap;
use std::ops::Add;
use std::time::Duration;

use super::Site;
use super::suspicion::{Course, Point, SiteState, Suspicion};
use crate::model::{Ages, Amount, Estimate, RegionKind, Snapshot, Spread, StackBlocks, StackTotals};
use serde::{Deserialize, Serialize};

/// Allocations and frees in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Allocated in the period.
    pub allocated: Estimate,
    /// Freed in the period, whenever allocated.
    pub freed: Estimate,
}

impl Change {
    /// Net growth in bytes (allocated - freed); saturates.
    pub fn net_bytes(&self) -> i64 {
        net(self.allocated.amount.bytes, self.freed.amount.bytes)
    }

    /// Net growth in blocks (allocated - freed); saturates.
    pub fn net_blocks(&self) -> i64 {
        net(self.allocated.amount.blocks, self.freed.amount.blocks)
    }

    /// Upper bound of the variance of the net growth: blocks both allocated and freed in the period cancel
    /// out.
    pub fn net_spread(&self) -> Spread {
        self.allocated.spread + self.freed.spread
    }
}

impl Add for Change {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            allocated: self.allocated + other.allocated,
            freed: self.freed + other.freed,
        }
    }
}

/// Difference, clamped to the range of `i64`.
fn net(more: u64, less: u64) -> i64 {
    let difference = i128::from(more) - i128::from(less);
    let nearest = difference.clamp(i64::MIN.into(), i64::MAX.into());
    i64::try_from(nearest).unwrap_or_default()
}

/// Changes and block ages of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    /// Change since the last report.
    pub since_last: Change,
    /// Change since the baseline.
    pub since_baseline: Change,
    /// Blocks in the block table; `None` if it was not read.
    pub blocks: Option<StackBlocks>,
}

impl Add for Recent {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            since_last: self.since_last + other.since_last,
            since_baseline: self.since_baseline + other.since_baseline,
            blocks: match (self.blocks, other.blocks) {
                (Some(own), Some(others)) => Some(own + others),
                (own, others) => own.or(others),
            },
        }
    }
}

/// Totals at an earlier moment.
#[derive(Clone, Debug, Default)]
struct EarlierTotals {
    at: Duration,
    /// Allocated and freed, by record and kind.
    totals: HashMap<(u32, Option<RegionKind>), Change>,
}

impl EarlierTotals {
    fn of(snapshot: &Snapshot) -> Self {
        let totals = |stack: &StackTotals| ((stack.record, stack.kind), total(stack));
        Self {
            at: snapshot.elapsed,
            totals: snapshot.stacks.iter().map(totals).collect(),
        }
    }

    fn change(&self, stack: &StackTotals) -> Change {
        let (now, then) = (total(stack), self.totals.get(&(stack.record, stack.kind)));
        let then = then.copied().unwrap_or_default();
        Change {
            allocated: now.allocated.less(then.allocated),
            freed: now.freed.less(then.freed),
        }
    }
}

fn total(stack: &StackTotals) -> Change {
    Change {
        allocated: stack.allocated,
        freed: stack.freed,
    }
}

/// Earlier moments that each report is compared with: the last report and the baseline.
#[derive(Clone, Debug, Default)]
pub struct Growth {
    /// Totals of the last report; `None` before the first, when the attach takes its place.
    last: Option<EarlierTotals>,
    /// Totals at the baseline; `None` if it is the attach.
    baseline: Option<EarlierTotals>,
    /// Amounts at the reports since the baseline.
    course: Course,
}

/// Changes up to a snapshot.
#[derive(Debug)]
pub struct Changes<'a> {
    growth: &'a Growth,
    /// Time since the attach.
    elapsed: Duration,
    /// Time since the last report, or since the attach if there was none.
    pub since_last: Duration,
    /// Time since the baseline.
    pub since_baseline: Duration,
}

impl Growth {
    /// Makes `snapshot` the baseline.
    pub fn mark(&mut self, snapshot: &Snapshot) {
        self.baseline = Some(EarlierTotals::of(snapshot));
        self.course = Course::default();
    }

    /// Makes `snapshot` the last report; `outstanding` returns the outstanding bytes of a stack without young
    /// blocks.
    pub fn reported(&mut self, snapshot: &Snapshot, outstanding: impl Fn(&StackTotals) -> u64) {
        self.last = Some(EarlierTotals::of(snapshot));
        self.course.note(snapshot, outstanding);
    }

    /// Returns whether a report was made.
    pub fn has_reported(&self) -> bool {
        self.last.is_some()
    }

    /// Compares `snapshot` with the last report and the baseline.
    pub fn changes(&self, snapshot: &Snapshot) -> Changes<'_> {
        let since = |earlier: &Option<EarlierTotals>| {
            let at = earlier.as_ref().map_or(Duration::ZERO, |earlier| earlier.at);
            snapshot.elapsed.saturating_sub(at)
        };
        Changes {
            growth: self,
            elapsed: snapshot.elapsed,
            since_last: since(&self.last),
            since_baseline: since(&self.baseline),
        }
    }
}

impl Changes<'_> {
    /// Changes of a stack of the snapshot.
    pub fn of(&self, stack: &StackTotals, blocks: Option<StackBlocks>) -> Recent {
        let change = |earlier: &Option<EarlierTotals>| match earlier {
            Some(earlier) => earlier.change(stack),
            None => total(stack),
        };
        Recent {
            since_last: change(&self.growth.last),
            since_baseline: change(&self.growth.baseline),
            blocks,
        }
    }

    /// Degree to which a site behaves like a leak. `shown` is outstanding without young blocks; `ages` is
    /// `None` if not known.
    pub fn suspicion<M>(&self, site: &Site<M>, shown: Amount, ages: Option<Ages>) -> Suspicion {
        self.growth.course.suspicion(&SiteState {
            elapsed: self.elapsed,
            records: &site.records,
            kind: site.kind,
            point: Point {
                bytes: shown.bytes,
                allocated: site.allocated.amount.blocks,
            },
            blocks: site.outstanding().amount.blocks,
            ages,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::totals;
    use super::*;

    fn amount(bytes: u64, blocks: u64) -> Amount {
        Amount { bytes, blocks }
    }

    fn snapshot(seconds: u64, stacks: &[(u32, Amount, Amount)]) -> Snapshot {
        let stack = |&(record, allocated, freed): &(u32, Amount, Amount)| totals(record, allocated, freed);
        Snapshot {
            elapsed: Duration::from_secs(seconds),
            stacks: stacks.iter().map(stack).collect(),
            ..Snapshot::default()
        }
    }

    /// The change of a stack is its difference to the last report and to the baseline, each over its own
    /// period; a new stack counts from zero.
    #[test]
    fn differences_to_the_last_report_and_to_the_baseline() {
        let mut growth = Growth::default();
        let first = snapshot(5, &[(7, amount(100, 10), amount(40, 4))]);
        let change = |allocated: Amount, freed: Amount| Change {
            allocated: allocated.into(),
            freed: freed.into(),
        };
        {
            let changes = growth.changes(&first);
            assert_eq!(
                (changes.since_last.as_secs(), changes.since_baseline.as_secs()),
                (5, 5)
            );
            let recent = changes.of(&first.stacks[0], None);
            let all = change(amount(100, 10), amount(40, 4));
            assert_eq!((recent.since_last, recent.since_baseline), (all, all));
        }
        growth.reported(&first, |_| 0);
        growth.mark(&snapshot(6, &[(7, amount(110, 11), amount(40, 4))]));
        let second = snapshot(
            9,
            &[
                (7, amount(120, 12), amount(90, 9)),
                (8, amount(1, 1), amount(0, 0)),
            ],
        );
        let changes = growth.changes(&second);
        assert_eq!(
            (changes.since_last.as_secs(), changes.since_baseline.as_secs()),
            (4, 3)
        );
        let recent = changes.of(&second.stacks[0], None);
        assert_eq!(recent.since_last, change(amount(20, 2), amount(50, 5)));
        assert_eq!(
            (recent.since_last.net_bytes(), recent.since_last.net_blocks()),
            (-30, -3)
        );
        assert_eq!(recent.since_baseline, change(amount(10, 1), amount(50, 5)));
        let new = changes.of(&second.stacks[1], None);
        assert_eq!(new.since_last, change(amount(1, 1), Amount::default()));
    }

    /// Totals that decreased, since a block was lost after it had been counted, give a change of zero.
    #[test]
    fn nothing_wraps() {
        let mut growth = Growth::default();
        growth.reported(&snapshot(1, &[(1, amount(10, 2), amount(0, 0))]), |_| 0);
        let now = snapshot(1, &[(1, amount(5, 1), amount(0, 0))]);
        let changes = growth.changes(&now);
        assert_eq!(changes.of(&now.stacks[0], None).since_last, Change::default());
        assert_eq!(changes.since_last, Duration::ZERO);
        assert_eq!(net(u64::MAX, 0), i64::MAX);
        assert_eq!(net(0, u64::MAX), i64::MIN);
        assert_eq!(net(u64::MAX, u64::MAX), 0);
    }

    /// Changes of the records of one site add up; blocks that were not read stay unknown.
    #[test]
    fn changes_add_up() {
        let one = Change {
            allocated: amount(10, 1).into(),
            freed: amount(3, 1).into(),
        };
        let recent = Recent {
            since_last: one,
            since_baseline: one,
            blocks: None,
        };
        let two = recent + recent;
        assert_eq!(two.since_last.net_bytes(), 14);
        assert_eq!(two.blocks, None);
    }
}
