//! Bytes of outstanding blocks in address ranges.

use std::collections::HashMap;
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

/// Outstanding bytes of each instance in each of its ranges (ascending, disjoint).
pub fn outstanding_in_ranges(kernel: &Kernel<'_>, wanted: &[(u32, Vec<Range<Avma>>)]) -> Vec<RangeBytes> {
    let mut sums: HashMap<u32, (&[Range<Avma>], Vec<u64>)> = wanted
        .iter()
        .map(|(instance, ranges)| (*instance, (ranges.as_slice(), vec![0; ranges.len()])))
        .collect();
    let seen = BlockTable::of(kernel).and_then(|table| {
        table.visit(|block| {
            let Some((ranges, bytes)) = sums.get_mut(&block.instance) else {
                return;
            };
            let after = ranges.partition_point(|range| range.start <= block.address);
            let at = after.checked_sub(1).filter(|&at| block.address < ranges[at].end);
            if let Some(at) = at {
                bytes[at] = bytes[at].saturating_add(block.size);
            }
        })
    });
    let is_complete = seen.is_ok() && kernel.recorded.sampling_now() == Sampling::All;
    let bytes = wanted.iter().map(|(instance, _)| sums.remove(instance));
    bytes
        .map(|sums| RangeBytes {
            bytes: sums.map_or_else(Vec::new, |(_, bytes)| bytes),
            is_complete,
        })
        .collect()
}
