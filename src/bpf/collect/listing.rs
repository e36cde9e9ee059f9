//! Lists single blocks of each stack, within limits, for `-a`. Pure.
//!
//! A process can hold tens of millions of blocks. Those beyond the limits are only counted.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::time::Duration;

use unwind_tables::addr::Avma;

use super::blocks::Block;
use leak_report::model::{BlockList, ListLimits, ListedBlock, Weight};

/// Selects the blocks to list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListRequest {
    /// Maximum number of blocks.
    pub limits: ListLimits,
    /// Instances that have ended: their young blocks are listed too, since none of them will be freed.
    pub ended: HashSet<u32>,
}

/// A listed block. Ordered as in the list: the first is the least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RankedBlock {
    size: Reverse<u64>,
    address: Avma,
    age: Duration,
    weight: Weight,
}

impl RankedBlock {
    fn listed(self) -> ListedBlock {
        ListedBlock {
            address: self.address,
            size: self.size.0,
            age: self.age,
            weight: self.weight,
        }
    }
}

/// Listed blocks of a stack record; the heap's top is the last in the list.
#[derive(Clone, Debug, Default)]
struct RankedBlocks {
    kept: BinaryHeap<RankedBlock>,
    left_out: u64,
}

/// Listed blocks by stack record, while they are read and after.
#[derive(Clone, Debug)]
pub(super) struct Listing {
    request: ListRequest,
    /// By the number of the stack record.
    by_stack: HashMap<u32, RankedBlocks>,
    kept: usize,
}

impl Listing {
    pub(super) fn new(request: ListRequest) -> Self {
        Self {
            request,
            by_stack: HashMap::new(),
            kept: 0,
        }
    }

    /// Adds a block that is `age` old. Skips one younger than `older` unless its instance has ended.
    pub(super) fn add(&mut self, block: &Block, age: Duration, older: Duration) {
        if age < older && !self.request.ended.contains(&block.instance) {
            return;
        }
        let ListLimits { of_a_stack, in_all } = self.request.limits;
        let stack = self.by_stack.entry(block.stack).or_default();
        let kept = RankedBlock {
            size: Reverse(block.size),
            address: block.address,
            age,
            weight: block.weight,
        };
        if stack.kept.len() < of_a_stack && self.kept < in_all {
            stack.kept.push(kept);
            self.kept += 1;
            return;
        }
        stack.left_out += 1;
        if let Some(mut last) = stack.kept.peek_mut()
            && kept < *last
        {
            *last = kept;
        }
    }

    /// List of a stack that consists of several records.
    pub(super) fn of(&self, records: &[u32]) -> BlockList {
        let stacks = || records.iter().filter_map(|record| self.by_stack.get(record));
        let mut kept: Vec<RankedBlock> = stacks().flat_map(|stack| stack.kept.iter().copied()).collect();
        kept.sort_unstable();
        let max = self.request.limits.of_a_stack;
        let beyond = u64::try_from(kept.len().saturating_sub(max)).unwrap_or(u64::MAX);
        kept.truncate(max);
        BlockList {
            listed: kept.into_iter().map(RankedBlock::listed).collect(),
            left_out: stacks().map(|stack| stack.left_out).sum::<u64>() + beyond,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLDER: Duration = Duration::from_secs(1);

    fn block(stack: u32, size: u64, address: u64) -> Block {
        Block {
            instance: 1,
            address: Avma::new(address),
            size,
            allocated_at: 0,
            thread: 0,
            stack,
            weight: Weight::stored(1f32.to_bits()),
        }
    }

    fn listing(of_a_stack: usize, in_all: usize, ended: &[u32]) -> Listing {
        Listing::new(ListRequest {
            limits: ListLimits { of_a_stack, in_all },
            ended: ended.iter().copied().collect(),
        })
    }

    fn sizes(list: &BlockList) -> (Vec<u64>, u64) {
        (
            list.listed.iter().map(|block| block.size).collect(),
            list.left_out,
        )
    }

    /// The largest blocks of each stack are kept, in whatever order they are added; the others are counted.
    #[test]
    fn largest_blocks_are_kept() {
        let mut listing = listing(2, 100, &[]);
        for (address, size) in [5, 1, 9, 7, 7].into_iter().enumerate() {
            listing.add(&block(3, size, address as u64), OLDER, OLDER);
        }
        assert_eq!(sizes(&listing.of(&[3])), (vec![9, 7], 3));
        assert_eq!(
            listing.of(&[3]).listed[1].address,
            Avma::new(3),
            "the lower address"
        );
        assert_eq!(listing.of(&[4]), BlockList::default());
    }

    /// Records of one stack make one list, within the limit of a single stack.
    #[test]
    fn records_of_one_stack_are_one_list() {
        let mut listing = listing(3, 100, &[]);
        for (stack, size) in [(1, 10), (1, 30), (2, 20), (2, 40), (3, 50)] {
            listing.add(&block(stack, size, size), OLDER, OLDER);
        }
        assert_eq!(sizes(&listing.of(&[1, 2])), (vec![40, 30, 20], 1));
        assert_eq!(sizes(&listing.of(&[3])), (vec![50], 0));
    }

    /// The limit of all stacks together holds, and every block beyond it is counted.
    #[test]
    fn total_of_all_stacks_is_bounded() {
        let mut listing = listing(100, 2, &[]);
        for (stack, size) in [(1, 10), (1, 20), (1, 30), (2, 40)] {
            listing.add(&block(stack, size, size), OLDER, OLDER);
        }
        assert_eq!(sizes(&listing.of(&[1])), (vec![30, 20], 1));
        assert_eq!(sizes(&listing.of(&[2])), (vec![], 1));
    }

    /// Young blocks are not listed unless their instance has ended.
    #[test]
    fn young_blocks_are_not_listed() {
        let young = OLDER / 2;
        for (ended, expected) in [(&[][..], (vec![], 0)), (&[1], (vec![8], 0))] {
            let mut listing = listing(10, 10, ended);
            listing.add(&block(1, 8, 0), young, OLDER);
            assert_eq!(sizes(&listing.of(&[1])), expected);
        }
    }
}
