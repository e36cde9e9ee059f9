//! Totals of one stack, read in place; for estimates also the variance.

use super::super::block_facts::LIFE_SPANS;
use super::super::finished::Sums;
use crate::bpf::Recorded;
use crate::bpf::types::weight_shape;
use leak_report::model::{Amount, Estimate, LifeSpans, Sampling, Spread};

/// Allocated and freed amounts of a stack.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) allocated: Estimate,
    pub(super) freed: Estimate,
}

/// Totals of stack record `index`.
pub(super) fn read(recorded: &Recorded, index: u32) -> Option<Totals> {
    Some(decode(recorded, &recorded.sums_of(index)?))
}

/// Decodes sums into amounts.
pub(super) fn decode(recorded: &Recorded, sums: &Sums) -> Totals {
    let [allocated, freed] = sums.halves();
    match recorded.sampling {
        Sampling::All => Totals {
            allocated: exact(allocated.0).into(),
            freed: exact(freed.0).into(),
        },
        Sampling::Calls(_) | Sampling::Bytes(_) | Sampling::Governed(_) | Sampling::Provider(_) => Totals {
            allocated: estimated(allocated),
            freed: estimated(freed),
        },
    }
}

/// Freed blocks by how long they lived.
pub(super) fn life_spans(recorded: &Recorded, spans: [u64; LIFE_SPANS]) -> LifeSpans {
    let [temporary, by_age @ ..] = spans;
    let blocks = |counted: u64| match recorded.sampling {
        Sampling::All => counted,
        Sampling::Calls(_) | Sampling::Bytes(_) | Sampling::Governed(_) | Sampling::Provider(_) => {
            rounded(counted)
        }
    };
    LifeSpans {
        temporary: blocks(temporary),
        by_age: by_age.map(blocks),
    }
}

/// Number of blocks of a stack record that were recorded, regardless of their weight.
pub(super) fn recorded_blocks(sums: &Sums) -> u64 {
    let [([_, blocks, ..], _), _] = sums.halves();
    *blocks
}

/// Decodes `struct sums`.
fn exact(&[bytes, blocks, ..]: &[u64; 4]) -> Amount {
    Amount { bytes, blocks }
}

/// Decodes `struct sums` and `struct variance`.
fn estimated((sums, variance): (&[u64; 4], &[u64; 4])) -> Estimate {
    let &[bytes, recorded, weight, _] = sums;
    let &[bytes_low, bytes_high, blocks_low, blocks_high] = variance;
    let amount = Amount {
        bytes,
        blocks: rounded(weight),
    };
    let spread = Spread {
        recorded,
        bytes: wide(bytes_low, bytes_high),
        blocks: wide(blocks_low, blocks_high),
    };
    Estimate { amount, spread }
}

/// Rounds a fixed-point weight to whole blocks.
fn rounded(weight: u64) -> u64 {
    let shift = weight_shape::WEIGHT_SHIFT.0;
    weight.saturating_add(1 << (shift - 1)) >> shift
}

fn wide(low: u64, high: u64) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}
