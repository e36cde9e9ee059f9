//! The moments that a page can show, and which of them stay when there are too many.

use std::time::Duration;

use super::rows::Rows;
use crate::model::Parts;
use crate::model::TimeOfDay;

/// One moment of a trace.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// Local time.
    pub(super) time: TimeOfDay,
    /// Since 1970; 0 if that is not known.
    pub(super) read_at_ms: u64,
    /// Since the attach.
    pub(super) elapsed: Duration,
    /// The user marked it as the baseline.
    pub(super) marked: bool,
    /// What every site had.
    pub(super) rows: Rows,
    /// Resident memory of the instances that ran.
    pub(super) memory: Vec<Resident>,
}

/// Where the resident memory of an instance was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resident {
    pub(super) instance: u32,
    pub(super) parts: Parts,
    /// How far what is live can be off, in bytes; 0 where it is exact.
    pub(super) error: u64,
}

/// Moments in the order of time.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshots {
    pub(super) kept: Vec<Snapshot>,
    /// How many were left out.
    pub(super) thinned: u64,
}

impl Snapshots {
    /// Adds a moment, which is later than all others if it is a report's.
    pub(super) fn add(&mut self, snapshot: Snapshot, most: usize) {
        let at = self
            .kept
            .partition_point(|other| other.elapsed <= snapshot.elapsed);
        self.kept.insert(at, snapshot);
        while self.kept.len() > most {
            self.leave_one_out();
        }
    }

    /// Notes that the user marked a moment. Returns whether there is one; there is none if reports were made before and
    /// after it.
    pub(super) fn mark(&mut self, elapsed: Duration) -> bool {
        let found = self.kept.iter_mut().find(|snapshot| snapshot.elapsed == elapsed);
        found.map(|snapshot| snapshot.marked = true).is_some()
    }

    /// Drops the moment whose neighbours are nearest to one another, so that those that stay are spread over the whole
    /// time; never the first or the last, and one that was marked only if there is no other.
    fn leave_one_out(&mut self) {
        let gap = |at: usize| {
            self.kept[at + 1]
                .elapsed
                .saturating_sub(self.kept[at - 1].elapsed)
        };
        let inner = 1..self.kept.len().saturating_sub(1);
        let Some(nearest) = inner.min_by_key(|&at| (self.kept[at].marked, gap(at))) else {
            return;
        };
        self.kept.remove(nearest);
        self.thinned += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64, marked: bool) -> Snapshot {
        Snapshot {
            elapsed: Duration::from_secs(second),
            marked,
            ..Snapshot::default()
        }
    }

    fn seconds(snapshots: &Snapshots) -> Vec<u64> {
        snapshots
            .kept
            .iter()
            .map(|snapshot| snapshot.elapsed.as_secs())
            .collect()
    }

    /// However many moments come, those that stay are spread over the whole time: the first and the last are among them,
    /// and no gap is more than twice another, but for the last ones.
    #[test]
    fn thinning_is_even() {
        let mut snapshots = Snapshots::default();
        for second in 1..=1000 {
            snapshots.add(at(second, false), 60);
            let kept = seconds(&snapshots);
            assert_eq!(kept.len() as u64 + snapshots.thinned, second);
            assert!(kept.len() <= 60 && kept[0] == 1 && kept.last() == Some(&second));
        }
        let kept = seconds(&snapshots);
        let gaps: Vec<_> = kept.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let (inner, widest) = (
            &gaps[..gaps.len() - 1],
            gaps.iter().max().copied().unwrap_or_default(),
        );
        assert!(widest <= 32, "{gaps:?}");
        assert!(inner.iter().all(|&gap| 2 * gap >= widest), "{gaps:?}");
    }

    /// A moment that was marked stays; one between two reports finds its place.
    #[test]
    fn marks_stay() {
        let mut snapshots = Snapshots::default();
        for second in 1..=20 {
            snapshots.add(at(10 * second, false), 8);
            if second == 7 {
                assert!(snapshots.mark(Duration::from_secs(70)));
                assert!(!snapshots.mark(Duration::from_secs(71)));
                snapshots.add(at(65, true), 8);
            }
        }
        let kept = seconds(&snapshots);
        assert!(kept.contains(&65) && kept.contains(&70), "{kept:?}");
        assert!(kept.is_sorted() && kept.len() == 8, "{kept:?}");
    }
}
