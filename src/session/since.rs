//! References that reports compare with: the previous report, and the baseline that the user marks.

use super::describe::{RecentFacts, time_of_day};
use crate::bpf::collect::LiveBlocks;
use leak_report::model::Snapshot;
use leak_report::model::TimeOfDay;
use leak_report::model::leak::Growth;

/// Reference points of growth.
#[derive(Default)]
pub(super) struct Since {
    growth: Growth,
    /// Time at which the user marked the baseline.
    marked: Option<TimeOfDay>,
}

impl Since {
    /// Makes the amounts outstanding in `snapshot`, which was just taken, the baseline.
    pub(super) fn mark(&mut self, snapshot: &Snapshot) {
        let time = time_of_day();
        self.growth.mark(snapshot);
        self.marked = Some(time);
        tracing::info!("marked at {time}: reports say what has changed since");
    }

    /// Facts of a report beyond the totals of `snapshot`. `blocks` is set if ages were read.
    pub(super) fn recently<'a>(
        &'a self,
        snapshot: &Snapshot,
        blocks: Option<&'a LiveBlocks>,
    ) -> RecentFacts<'a> {
        RecentFacts {
            changes: self.growth.changes(snapshot),
            first: !self.growth.has_reported(),
            marked: self.marked,
            blocks,
        }
    }

    /// Makes `snapshot` the one to compare the next report with. Blocks of instances that `has_ended` are no
    /// longer in `blocks`.
    pub(super) fn reported(
        &mut self,
        snapshot: &Snapshot,
        blocks: Option<&LiveBlocks>,
        has_ended: impl Fn(u32) -> bool,
    ) {
        self.growth.reported(snapshot, |stack| {
            let outstanding = stack.outstanding().amount.bytes;
            match blocks.filter(|_| !has_ended(stack.instance)) {
                Some(blocks) => blocks.of(stack.record).old.amount.bytes.min(outstanding),
                None => outstanding,
            }
        });
    }
}
