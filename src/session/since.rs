//! What reports compare with: the one before, and the baseline that the user marks.

use super::describe::{Recently, time_of_day};
use crate::bpf::collect::LiveBlocks;
use leak_report::model::Snapshot;
use leak_report::model::TimeOfDay;
use leak_report::model::leak::Growth;

/// What growth is measured from.
#[derive(Default)]
pub(super) struct Since {
    growth: Growth,
    /// When the user marked the baseline.
    marked: Option<TimeOfDay>,
}

impl Since {
    /// What is outstanding in `snapshot`, which is of now, is the baseline from now on.
    pub(super) fn mark(&mut self, snapshot: &Snapshot) {
        let time = time_of_day();
        self.growth.mark(snapshot);
        self.marked = Some(time);
        tracing::info!("marked at {time}: reports say what has changed since");
    }

    /// What a report of `snapshot` says beyond totals. `blocks`: if ages were looked at.
    pub(super) fn recently<'a>(
        &'a self,
        snapshot: &Snapshot,
        blocks: Option<&'a LiveBlocks>,
    ) -> Recently<'a> {
        Recently {
            changes: self.growth.changes(snapshot),
            first: !self.growth.has_reported(),
            marked: self.marked,
            blocks,
        }
    }

    /// The next report compares with that of `snapshot`; blocks of instances that `has_ended` are no longer in `blocks`.
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
