//! Young part of a site's outstanding memory. Pure.
//!
//! Combines two readings that are made one after the other while the process runs: the totals, which give the
//! outstanding amount, and the block table, which gives the ages. Blocks freed between the two are
//! outstanding in the totals and missing from the table.

use super::Site;
use crate::model::Estimate;

/// State of the instances that a site's memory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteProcesses {
    /// A running instance.
    Running,
    /// An ended instance, whose blocks are no longer in the table.
    Ended,
    /// Several instances, some of which may have ended.
    Several,
}

impl<M> Site<M> {
    /// Outstanding memory that is young or not provably old; `None` if ages were not read.
    ///
    /// Only blocks found old in the table of a running instance are old. Blocks freed while the table was
    /// read are not; otherwise short-lived blocks would look like a leak. Blocks of ended instances can never
    /// be freed, hence are old, although they are not in the table.
    pub fn young(&self, processes: SiteProcesses) -> Option<Estimate> {
        let blocks = self.recent.blocks?;
        let outstanding = self.outstanding();
        Some(match processes {
            SiteProcesses::Running => outstanding.less(blocks.old),
            SiteProcesses::Ended => Estimate::default(),
            // The minimum of `outstanding` and `blocks.young`.
            SiteProcesses::Several => outstanding.less(outstanding.less(blocks.young)),
        })
    }
}
