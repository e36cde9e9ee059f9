//! What of a site's outstanding memory is young. Pure.
//!
//! Two readings meet here, made one after the other while the process runs: the totals, which say what is outstanding,
//! and the block table, which says how old blocks are. What was freed between the two was outstanding and is in no
//! table any more.

use super::Site;
use crate::model::Estimate;

/// Whose memory a site's is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// An instance that runs.
    Running,
    /// One that has ended: its blocks are out of the table.
    Ended,
    /// Several instances, some of which may have ended.
    Several,
}

impl<M> Site<M> {
    /// What of the outstanding is young, or cannot be shown to be old; `None` if ages were not looked at.
    ///
    /// A running instance's blocks are old if they were found to be: what was freed while the table was read is not,
    /// or whatever comes and goes quickly would seem to leave something behind. Blocks that ended instances held are
    /// nobody's to free, hence old, and are not found.
    pub fn young(&self, holder: Holder) -> Option<Estimate> {
        let blocks = self.recent.blocks?;
        let outstanding = self.outstanding();
        Some(match holder {
            Holder::Running => outstanding.less(blocks.old),
            Holder::Ended => Estimate::default(),
            // Not more than all.
            Holder::Several => outstanding.less(outstanding.less(blocks.young)),
        })
    }
}
