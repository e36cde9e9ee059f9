//! Totals of one stack, read in place; for estimates also the variance.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::bpf::Recorded;
use crate::bpf::types::{stack_totals, stack_variance, weight_shape};
use leak_report::model::{Amount, Estimate, Sampling, Spread};

const TOTALS_WORDS: usize = size_of::<stack_totals>() / size_of::<u64>();
const VARIANCE_WORDS: usize = size_of::<stack_variance>() / size_of::<u64>();
/// Words of the allocated sums; the freed ones follow.
const HALF: usize = TOTALS_WORDS / 2;

/// Allocated and freed amounts of a stack.
pub(super) struct Totals {
    pub(super) allocated: Estimate,
    pub(super) freed: Estimate,
}

/// Totals of stack record `index`. Reads freed first, so that it is never larger than allocated.
pub(super) fn read(recorded: &Recorded, index: u32) -> Option<Totals> {
    let at = usize::try_from(index).ok()?;
    let (totals, _) = recorded.totals.words().as_chunks::<TOTALS_WORDS>();
    let totals = totals.get(at)?;
    if recorded.sampling == Sampling::All {
        let (freed, allocated) = (exact(&totals[HALF..])?, exact(&totals[..HALF])?);
        return Some(Totals {
            allocated: allocated.into(),
            freed: freed.into(),
        });
    }
    let (variances, _) = recorded.variances.words().as_chunks::<VARIANCE_WORDS>();
    let variance = variances.get(at)?;
    let (freed, allocated) = (
        estimated(&totals[HALF..], &variance[HALF..])?,
        estimated(&totals[..HALF], &variance[..HALF])?,
    );
    Some(Totals { allocated, freed })
}

/// Number of blocks of stack record `index` that were recorded, regardless of their weight.
pub(super) fn recorded_blocks(recorded: &Recorded, index: u32) -> u64 {
    let (totals, _) = recorded.totals.words().as_chunks::<TOTALS_WORDS>();
    let totals = usize::try_from(index).ok().and_then(|at| totals.get(at));
    totals.map_or(0, |[_, blocks, ..]| load(blocks))
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

/// Decodes `struct sums`.
fn exact(sums: &[AtomicU64]) -> Option<Amount> {
    let [bytes, blocks, ..] = sums else {
        return None;
    };
    Some(Amount {
        bytes: load(bytes),
        blocks: load(blocks),
    })
}

/// Decodes `struct sums` and `struct variance`.
fn estimated(sums: &[AtomicU64], variance: &[AtomicU64]) -> Option<Estimate> {
    let [bytes, recorded, weight, _] = sums else {
        return None;
    };
    let [bytes_low, bytes_high, blocks_low, blocks_high] = variance else {
        return None;
    };
    let amount = Amount {
        bytes: load(bytes),
        blocks: rounded(load(weight)),
    };
    let spread = Spread {
        recorded: load(recorded),
        bytes: wide(bytes_low, bytes_high),
        blocks: wide(blocks_low, blocks_high),
    };
    Some(Estimate { amount, spread })
}

/// Rounds a fixed-point weight to whole blocks.
fn rounded(weight: u64) -> u64 {
    let shift = weight_shape::WEIGHT_SHIFT.0;
    weight.saturating_add(1 << (shift - 1)) >> shift
}

fn wide(low: &AtomicU64, high: &AtomicU64) -> u128 {
    u128::from(load(high)) << 64 | u128::from(load(low))
}
