//! The snapshots of a page, and which of them are dropped when there are too many.

use std::time::Duration;

use super::rows::Rows;
use crate::model::Parts;
use crate::model::TimeOfDay;

/// The state of a trace at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// Local time of day.
    pub(super) time: TimeOfDay,
    /// Milliseconds since 1970; 0 if unknown.
    pub(super) read_at_ms: u64,
    /// Time since the attach.
    pub(super) elapsed: Duration,
    /// True if the user marked it as the baseline.
    pub(super) marked: bool,
    /// Reason for the report, if conditions decide when reports are made.
    pub(super) reason: Option<String>,
    /// Amounts of every site.
    pub(super) rows: Rows,
    /// Resident memory of the running instances.
    pub(super) memory: Vec<Resident>,
}

/// Resident memory of an instance.
#[derive(Clone, Debug)]
pub(super) struct Resident {
    pub(super) instance: u32,
    pub(super) parts: Parts,
    /// Standard error of the tracked part in bytes; 0 where it is exact.
    pub(super) error: u64,
}

/// Snapshots in the order of time.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshots {
    pub(super) kept: Vec<Snapshot>,
    /// Number of snapshots dropped.
    pub(super) thinned: u64,
}

impl Snapshots {
    /// Adds a snapshot, and drops others until at most `max` are left. The snapshot of a report is the
    /// latest; that of a baseline may be earlier than others.
    pub(super) fn add(&mut self, snapshot: Snapshot, max: usize) {
        let at = self
            .kept
            .partition_point(|other| other.elapsed <= snapshot.elapsed);
        self.kept.insert(at, snapshot);
        while self.kept.len() > max {
            self.leave_one_out();
        }
    }

    /// Marks the snapshot at `elapsed` as the baseline. Returns false if there is none, as when the mark was
    /// set between two reports.
    pub(super) fn mark(&mut self, elapsed: Duration) -> bool {
        let found = self.kept.iter_mut().find(|snapshot| snapshot.elapsed == elapsed);
        found.map(|snapshot| snapshot.marked = true).is_some()
    }

    /// Drops the snapshot whose neighbours are nearest to one another, so that the rest is spread over the
    /// whole time; never the first or the last, and a marked one only if there is no other.
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

    /// However many snapshots are added, those kept are spread over the whole time: the first and the last
    /// are among them, and no gap is more than twice another, except for the last ones.
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

    /// A marked snapshot is kept; one between two reports is inserted in order.
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
