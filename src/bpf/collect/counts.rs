//! Counts that are cheap enough to be read several times per second.

use std::sync::atomic::Ordering;

use super::counters::{self, counter};
use super::totals::recorded_blocks;
use crate::bpf::Recorded;
use crate::bpf::types::{limits, stack_record};

/// Words of one stack record, and index of the word whose last byte is the function's number.
const RECORD_WORDS: usize = size_of::<stack_record>() / size_of::<u64>();
const SHAPE_WORD: usize = std::mem::offset_of!(stack_record, frames_at) / size_of::<u64>();

/// Numbers of probe hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hits {
    /// Entries of functions that allocate, nested calls included.
    pub entries: u64,
    /// Probe hits of `ret` instructions.
    pub rets: u64,
}

impl Hits {
    /// Hits since `before`.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            entries: self.entries.saturating_sub(before.entries),
            rets: self.rets.saturating_sub(before.rets),
        }
    }
}

/// Reads the probe hits since tracing began.
pub(crate) fn hits(recorded: &Recorded) -> Result<Hits, libbpf_rs::Error> {
    Ok(Hits {
        entries: counters::read(counter::COUNTER_PROBE_HITS, &recorded.counters)?,
        rets: counters::read(counter::COUNTER_RET_HITS, &recorded.counters)?,
    })
}

/// Blocks recorded since tracing began, each counted as 1, by function number.
pub(crate) fn recorded_by_function(recorded: &Recorded) -> Vec<u64> {
    let functions = limits::MAX_FUNCTIONS.0 as usize;
    let mut blocks = vec![0; functions];
    let used = recorded.usage.words().first();
    let used = used.map_or(0, |word| word.load(Ordering::Acquire));
    let used = used.min(recorded.stack_capacity.into());
    let records = recorded.stacks.words().chunks_exact(RECORD_WORDS);
    for (record, index) in records
        .zip(0_u32..)
        .take(usize::try_from(used).unwrap_or(usize::MAX))
    {
        let function = match index < limits::FIRST_STACK.0 {
            true => index as usize % functions,
            false => usize::from(record[SHAPE_WORD].load(Ordering::Acquire).to_le_bytes()[7]),
        };
        if let (Some(sum), Some(sums)) = (blocks.get_mut(function), recorded.sums_of(index)) {
            *sum += recorded_blocks(&sums);
        }
    }
    let finished = recorded.finished();
    for stack in finished.all(|index| recorded.sums_of(index)) {
        if let Some(sum) = blocks.get_mut(usize::from(stack.stack.function)) {
            *sum += recorded_blocks(&stack.sums);
        }
    }
    blocks
}
