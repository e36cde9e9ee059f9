//! Bytes of outstanding blocks in address ranges.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::BlockTable;
use crate::bpf::Kernel;
use leak_report::model::Sampling;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeBytes {
    /// Bytes of outstanding blocks that begin in each range.
    pub bytes: Vec<u64>,
    /// True if all blocks were read and none stands for others.
    pub is_complete: bool,
}

/// Outstanding bytes of an instance in each of `ranges` (ascending, disjoint).
pub fn outstanding_in_ranges(kernel: &Kernel<'_>, instance: u32, ranges: &[Range<Avma>]) -> RangeBytes {
    let mut bytes = vec![0_u64; ranges.len()];
    let seen = BlockTable::of(kernel).and_then(|table| {
        table.visit(|block| {
            let after = ranges.partition_point(|range| range.start <= block.address);
            let at = after.checked_sub(1).filter(|&at| block.address < ranges[at].end);
            if let Some(at) = at.filter(|_| block.instance == instance) {
                bytes[at] = bytes[at].saturating_add(block.size);
            }
        })
    });
    RangeBytes {
        bytes,
        is_complete: seen.is_ok() && kernel.recorded.sampling_now() == Sampling::All,
    }
}
