//! Snapshots: all stacks that allocated, with their totals, at one moment.
//!
//! Read in place from the kernel's arrays: no table is walked, so the time is bounded by the number of
//! stacks, and no block is counted twice, however busy the target is. Of each stack, freed is read before
//! allocated, so it is never the larger; the totals of different stacks are some microseconds apart.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use unwind_tables::addr::Avma;
use unwind_tables::walk::{End, FoundBy, Frame, in_order};

use super::counters::{self, Counters, counter};
use super::totals::{self, Totals, life_spans};
use crate::bpf::types::{frame_layout, limits, stack_record};
use crate::bpf::{FinishedStack, Kernel, KernelTrace, Recorded};
use leak_report::model::leak::PythonChain;
use leak_report::model::leak::PythonStacks;
use leak_report::model::{Amount, CheckedWalks, Estimate, Events, LifeSpans, Losses, Snapshot, StackTotals};

/// Words of one stack record.
const RECORD_WORDS: usize = size_of::<stack_record>() / size_of::<u64>();

/// Reads everything recorded so far.
pub fn take(kernel: &Kernel<'_>, elapsed: Duration) -> Result<Snapshot, libbpf_rs::Error> {
    take_recorded(&kernel.recorded, elapsed)
}

pub(super) fn take_recorded(recorded: &Recorded, elapsed: Duration) -> Result<Snapshot, libbpf_rs::Error> {
    let counters = Counters::read(&recorded.counters)?;
    let stacks = read_stacks(recorded);
    // After the stacks: a walk is counted before its block is.
    let unfinished = recorded.finished().unfinished();
    let lost = counters::read(counter::COUNTER_LOST_DEFERRAL, &recorded.counters)?;
    let unfinished_walks = lost.saturating_add(unfinished);
    let losses = losses(&counters);
    let sum = |amount: fn(&StackTotals) -> u64| stacks.iter().map(amount).fold(0, u64::saturating_add);
    let events = Events {
        allocations: sum(|stack| stack.allocated.amount.blocks).saturating_add(losses.blocks),
        frees: sum(|stack| stack.freed.amount.blocks),
        unknown_frees: counters.get(counter::COUNTER_UNKNOWN_FREE),
        own_unknown_frees: counters.get(counter::COUNTER_OWN_UNKNOWN_FREE),
        failed: counters.get(counter::COUNTER_FAILED),
        missed_frees: counters.get(counter::COUNTER_MISSED_FREE),
        abandoned_calls: counters.get(counter::COUNTER_ABANDONED_CALL),
        probe_hits: counters.get(counter::COUNTER_PROBE_HITS),
        filtered: Amount {
            bytes: counters.get(counter::COUNTER_FILTERED_BYTES),
            blocks: counters.get(counter::COUNTER_FILTERED),
        },
    };
    Ok(Snapshot {
        elapsed,
        source: recorded.source,
        sampling: recorded.sampling_now(),
        stacks,
        peak: None,
        events,
        losses,
        walks: CheckedWalks {
            checked: counters.get(counter::COUNTER_CHECKED_WALK),
            recalled: counters.get(counter::COUNTER_RECALLED_WALK),
            different: counters.get(counter::COUNTER_DIFFERENT_WALK),
        },
        unfinished_walks,
        python: PythonStacks::default(),
    })
}

/// Causes of losses: name, counter of blocks, counter of bytes.
const LOSS_CAUSES: [(&str, counter, counter); 5] = [
    (
        "thread_state",
        counter::COUNTER_LOST_THREAD_STATE,
        counter::COUNTER_LOST_THREAD_STATE_BYTES,
    ),
    (
        "block_table_full",
        counter::COUNTER_LOST_BLOCK_TABLE,
        counter::COUNTER_LOST_BLOCK_TABLE_BYTES,
    ),
    (
        "return_probe_limit",
        counter::COUNTER_LOST_RETURN_PROBE,
        counter::COUNTER_LOST_RETURN_PROBE_BYTES,
    ),
    (
        "result_fault",
        counter::COUNTER_LOST_RESULT_FAULT,
        counter::COUNTER_LOST_RESULT_FAULT_BYTES,
    ),
    (
        "region_queue_full",
        counter::COUNTER_LOST_REGION,
        counter::COUNTER_LOST_REGION_BYTES,
    ),
];

pub(super) fn losses(counters: &Counters) -> Losses {
    let mut losses = Losses {
        processes: counters.get(counter::COUNTER_LOST_PROCESS),
        events: counters.get(counter::COUNTER_LOST_EVENT),
        calls: counters.get(counter::COUNTER_LOST_CALL_EVENT),
        ..Losses::default()
    };
    for (name, blocks, bytes) in LOSS_CAUSES {
        let blocks = counters.get(blocks);
        losses.blocks += blocks;
        losses.bytes += counters.get(bytes);
        if blocks > 0 {
            losses.causes.insert(name.into(), blocks);
        }
    }
    losses
}

fn read_stacks(recorded: &Recorded) -> Vec<StackTotals> {
    let reserved = recorded
        .usage
        .words()
        .first()
        .map_or(0, |word| word.load(Ordering::Acquire));
    let count = reserved.min(recorded.stack_capacity.into());
    let records = recorded.stacks.words().chunks_exact(RECORD_WORDS);
    // It fits: the array has at least as many records.
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let stored = records
        .take(count)
        .zip(0..)
        .filter_map(|(record, index)| read_stack(recorded, index, record));
    stored.chain(read_finished(recorded)).collect()
}

/// Reads the stacks that user space has found.
fn read_finished(recorded: &Recorded) -> Vec<StackTotals> {
    let finished = recorded.finished();
    let all = finished.all(|stand_in| recorded.all_sums_of(stand_in));
    let with_totals = all.into_iter().map(|finished| {
        let Totals { allocated, freed } = totals::decode(recorded, &finished.sums);
        StackTotals {
            allocated,
            freed,
            lost: Amount {
                bytes: finished.sums.lost_bytes,
                blocks: finished.sums.lost_blocks,
            },
            finished_walks: finished.walks,
            life_spans: life_spans(recorded, finished.sums.spans),
            ..finished_shape(recorded, finished.record, finished.stack)
        }
    });
    with_totals
        .filter(|stack| stack.allocated.amount.blocks > 0 || stack.lost.blocks > 0)
        .collect()
}

/// A stack that user space has found, without its totals.
fn finished_shape(recorded: &Recorded, record: u32, stack: &FinishedStack) -> StackTotals {
    StackTotals {
        record,
        instance: stack.instance,
        epoch: stack.epoch,
        function: stack.function,
        frames: stack.frames.clone(),
        left_out: stack.left_out,
        end: stack.end,
        end_pc: stack.end_pc,
        allocated: Estimate::default(),
        freed: Estimate::default(),
        peak: Amount::default(),
        kind: None,
        lost: Amount::default(),
        finished_walks: 0,
        life_spans: LifeSpans::default(),
        python: python_chain(recorded, stack.python),
    }
}

/// Reads one stack; `None` if it has no totals (yet), since its other fields may not have been written.
fn read_stack(recorded: &Recorded, index: u32, record: &[AtomicU64]) -> Option<StackTotals> {
    let sums = recorded.sums_of(index)?;
    let Totals { allocated, freed } = totals::decode(recorded, &sums);
    let lost = Amount {
        bytes: sums.lost_bytes,
        blocks: sums.lost_blocks,
    };
    if allocated.amount.blocks == 0 && lost.blocks == 0 {
        return None;
    }
    Some(StackTotals {
        allocated,
        freed,
        lost,
        life_spans: match freed.amount.blocks {
            0 => LifeSpans::default(),
            _ => life_spans(recorded, recorded.spans_of(index)),
        },
        ..read_shape(recorded, index, record)?
    })
}

/// A stack without its totals, for amounts that are counted elsewhere.
///
/// `index` must come from the kernel side: else the record may not have been written.
pub fn stack_of(kernel: &Kernel<'_>, index: u32) -> Option<StackTotals> {
    stack_of_recorded(&kernel.recorded, index)
}

/// Record of the stack that a stand-in stands for; other indexes stay the same.
pub fn record_of(kernel: &Kernel<'_>, index: u32) -> u32 {
    let found = kernel.recorded.finished();
    let record = found.stack_of(index);
    record.map_or(index, |(record, _)| record)
}

/// A stack of kernel mode without its totals; `index` must come from the kernel side.
pub fn stack_of_kernel_mode(trace: &KernelTrace<'_>, index: u32) -> Option<StackTotals> {
    stack_of_recorded(&trace.recorded, index)
}

fn stack_of_recorded(recorded: &Recorded, index: u32) -> Option<StackTotals> {
    if index >= recorded.stack_capacity {
        let finished = recorded.finished();
        let (record, stack) = finished.stack_of(index)?;
        return Some(finished_shape(recorded, record, stack));
    }
    let first = usize::try_from(index).ok()?.checked_mul(RECORD_WORDS)?;
    let record = recorded.stacks.words().get(first..)?.get(..RECORD_WORDS)?;
    read_shape(recorded, index, record)
}

/// Fields of a record that are written once.
fn read_shape(recorded: &Recorded, index: u32, record: &[AtomicU64]) -> Option<StackTotals> {
    let [_, end_pc, shape, owner, _, _, python, _] = record else {
        return None;
    };
    let read = |word: &AtomicU64| word.load(Ordering::Acquire);
    let totals = fixed_stack(index)?;
    if index < limits::FIRST_STACK.0 {
        return Some(totals);
    }
    let [a, b, c, d, count_low, count_high, end, function] = read(shape).to_le_bytes();
    let [e, f, g, h, i, j, k, l] = read(owner).to_le_bytes();
    let first = u32::from_le_bytes([a, b, c, d]) as usize;
    let count = usize::from(u16::from_le_bytes([count_low, count_high]));
    let kept = count.min(limits::MAX_FRAMES.0 as usize);
    let by_place = recorded.frames.words().get(first..)?.get(..kept)?;
    let by_place: Vec<_> = by_place.iter().map(|frame| decode_frame(read(frame))).collect();
    let (frames, left_out) = in_order(&by_place, count)?;
    Some(StackTotals {
        instance: u32::from_le_bytes([i, j, k, l]),
        epoch: u32::from_le_bytes([e, f, g, h]),
        function,
        frames,
        left_out,
        end: End::from_number(end.into())?,
        end_pc: Avma::new(read(end_pc)),
        python: python_chain(
            recorded,
            u32::try_from(read(python) & u64::from(u32::MAX)).unwrap_or_default(),
        ),
        ..totals
    })
}

/// Python frames of a record.
fn python_chain(recorded: &Recorded, number: u32) -> Option<Arc<PythonChain>> {
    recorded.pythons.as_ref()?.chain(number)
}

/// Record of the allocations by `function` whose stacks were not walked.
pub fn not_walked(function: u8) -> u32 {
    limits::MAX_FUNCTIONS.0 + u32::from(function)
}

/// Stack of a record with a fixed meaning: its index gives the function, and it has no frames.
fn fixed_stack(index: u32) -> Option<StackTotals> {
    let functions = limits::MAX_FUNCTIONS.0;
    let end = if index < functions {
        End::StackTableFull
    } else {
        End::ScratchBusy
    };
    Some(StackTotals {
        record: index,
        instance: 0,
        epoch: 0,
        function: u8::try_from(index % functions).ok()?,
        frames: Vec::new(),
        left_out: None,
        end,
        end_pc: Avma::new(0),
        allocated: Estimate::default(),
        freed: Estimate::default(),
        peak: Amount::default(),
        kind: None,
        lost: Amount::default(),
        finished_walks: 0,
        life_spans: LifeSpans::default(),
        python: None,
    })
}

pub(super) fn decode_frame(word: u64) -> Frame {
    let shift = frame_layout::FRAME_FOUND_BY_SHIFT.0;
    let exact_bit = 1 << frame_layout::FRAME_EXACT_SHIFT.0;
    let found_by = u32::try_from((word & !exact_bit) >> shift)
        .ok()
        .and_then(FoundBy::from_number);
    Frame {
        pc: Avma::new(word & ((1 << shift) - 1)),
        found_by: found_by.unwrap_or(FoundBy::Probe),
        exact: word & exact_bit != 0,
    }
}
