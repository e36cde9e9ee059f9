//! What ranks first. Pure.

use super::Change;
use crate::collect::Amount;

/// What stacks are ranked by, the largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Bytes.
    #[default]
    Size,
    /// Blocks.
    Count,
    /// Bytes that came less bytes that went.
    Growth,
}

impl Order {
    /// What to compare of a stack, given what it holds and what changed.
    pub fn key(self, held: Amount, change: &Change) -> [i128; 2] {
        let (bytes, blocks) = (i128::from(held.bytes), i128::from(held.blocks));
        match self {
            Self::Size => [bytes, blocks],
            Self::Count => [blocks, bytes],
            Self::Growth => [change.net_bytes().into(), change.net_blocks().into()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each order has its own first: most bytes, most blocks, most bytes more than before, a stack that shrinks
    /// being the last.
    #[test]
    fn each_order_has_its_own_first() {
        let amount = |bytes, blocks| Amount { bytes, blocks };
        let change = |allocated, freed| Change {
            allocated: amount(allocated, 1).into(),
            freed: amount(freed, 1).into(),
        };
        let stacks = [
            (amount(900, 1), change(10, 900)),
            (amount(10, 90), change(50, 50)),
            (amount(20, 2), change(20, 10)),
        ];
        let first = |order: Order| (0..3).max_by_key(|&at| order.key(stacks[at].0, &stacks[at].1));
        let last = |order: Order| (0..3).min_by_key(|&at| order.key(stacks[at].0, &stacks[at].1));
        assert_eq!(
            [Order::Size, Order::Count, Order::Growth].map(first),
            [Some(0), Some(1), Some(2)]
        );
        assert_eq!(
            [Order::Size, Order::Count, Order::Growth].map(last),
            [Some(1), Some(0), Some(0)]
        );
    }
}
