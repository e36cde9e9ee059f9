//! Ranking of stacks. Pure.

use super::{Change, Suspicion};
use crate::model::Amount;
use serde::{Deserialize, Serialize};

/// Rank of stacks, the largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Bytes.
    #[default]
    Size,
    /// Blocks.
    Count,
    /// Net growth in bytes since the mark (SIGUSR1), or else since the last report.
    Growth,
    /// Bytes outstanding at the peak since the attach; see docs/peak.md.
    Peak,
    /// Similarity to a leak: certain and steady growth over all reports, and blocks of all ages that stay.
    Suspicion,
    /// Bytes of free memory that blocks pin; a trace then has --pinned.
    Pinned,
}

impl Order {
    /// Every order.
    pub const ALL: [Self; 6] = [
        Self::Size,
        Self::Count,
        Self::Growth,
        Self::Peak,
        Self::Suspicion,
        Self::Pinned,
    ];

    /// Value of `--sort`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Count => "count",
            Self::Growth => "growth",
            Self::Peak => "peak",
            Self::Suspicion => "suspicion",
            Self::Pinned => "pinned",
        }
    }

    /// Sort key of a stack, from its outstanding amount, that at the peak and what it pins, its change and
    /// its suspicion; larger keys come first.
    pub fn key(
        self,
        [outstanding, peak, pinned]: [Amount; 3],
        change: &Change,
        suspicion: Option<Suspicion>,
    ) -> [i128; 4] {
        let (bytes, blocks) = (i128::from(outstanding.bytes), i128::from(outstanding.blocks));
        match self {
            Self::Size => [bytes, blocks, 0, 0],
            Self::Count => [blocks, bytes, 0, 0],
            Self::Growth => [change.net_bytes().into(), change.net_blocks().into(), 0, 0],
            Self::Peak => [peak.bytes.into(), peak.blocks.into(), bytes, blocks],
            Self::Pinned => [pinned.bytes.into(), pinned.blocks.into(), bytes, blocks],
            Self::Suspicion => {
                let [score, growth] = suspicion.unwrap_or_default().rank();
                [score, growth, bytes, blocks]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each order ranks another stack first: most bytes, most blocks, most net growth (a shrinking stack is
    /// last), highest suspicion however small the amount, most bytes at the peak though nothing is left, most
    /// pinned bytes.
    #[test]
    fn orders_rank_different_stacks_first() {
        let amount = |bytes, blocks| Amount { bytes, blocks };
        let change = |allocated, freed| Change {
            allocated: amount(allocated, 1).into(),
            freed: amount(freed, 1).into(),
        };
        let suspicion = |certainty| Suspicion {
            certainty,
            steadiness: 1.0,
            ..Suspicion::default()
        };
        let stacks = [
            (amount(900, 1), amount(900, 1), change(10, 900), None),
            (
                amount(10, 90),
                amount(10, 90),
                change(50, 50),
                Some(suspicion(0.0)),
            ),
            (amount(20, 2), amount(20, 2), change(20, 10), Some(suspicion(0.5))),
            (amount(5, 2), amount(5, 2), change(5, 0), Some(suspicion(1.0))),
            (amount(0, 0), amount(901, 1), change(5, 5), None),
            (amount(1, 1), amount(1, 1), change(6, 5), None),
        ];
        let orders = [
            Order::Size,
            Order::Count,
            Order::Growth,
            Order::Suspicion,
            Order::Peak,
            Order::Pinned,
        ];
        let key = |order: Order, at: usize| {
            let (outstanding, peak, change, suspicion) = &stacks[at];
            let pinned = amount(if at == 5 { 4096 } else { 0 }, 1);
            order.key([*outstanding, *peak, pinned], change, *suspicion)
        };
        let first = orders.map(|order| (0..6).max_by_key(|&at| key(order, at)));
        let last = orders.map(|order| (0..6).min_by_key(|&at| key(order, at)));
        assert_eq!(first, [Some(0), Some(1), Some(2), Some(3), Some(4), Some(5)]);
        // Without suspicion, the larger outstanding amount ranks first.
        assert_eq!(last, [Some(4), Some(4), Some(0), Some(4), Some(5), Some(4)]);
    }
}
