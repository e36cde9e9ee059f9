//! Lists single blocks of each stack, within limits, for `-a`. Pure.
//!
//! A process can hold tens of millions of blocks. Those beyond the limits are only counted.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::time::Duration;

use unwind_tables::addr::Avma;

use super::blocks::Block;
use leak_report::model::{BlockList, ListLimits, ListedBlock, TextId, Weight};

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
    instance: u32,
}

impl RankedBlock {
    fn place(&self) -> BlockPlace {
        (self.instance, self.address)
    }

    fn listed(self, class: Option<TextId>) -> ListedBlock {
        ListedBlock {
            address: self.address,
            size: self.size.0,
            age: self.age,
            weight: self.weight,
            class,
        }
    }
}

/// Place of a block: its instance, and the address of its first byte.
pub type BlockPlace = (u32, Avma);

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
    /// Blocks by the number of the stack record.
    by_stack: HashMap<u32, RankedBlocks>,
    kept: usize,
    /// C++ classes of those blocks that have one.
    classes: HashMap<BlockPlace, String>,
}

impl Listing {
    pub(super) fn new(request: ListRequest) -> Self {
        Self {
            request,
            by_stack: HashMap::new(),
            kept: 0,
            classes: HashMap::new(),
        }
    }

    /// Places of the blocks, each with its age.
    pub(super) fn places(&self) -> impl Iterator<Item = (BlockPlace, Duration)> {
        let kept = self.by_stack.values().flat_map(|stack| &stack.kept);
        kept.map(|block| (block.place(), block.age))
    }

    /// Sets the C++ classes of the blocks.
    pub(super) fn set_classes(&mut self, classes: HashMap<BlockPlace, String>) {
        self.classes = classes;
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
            instance: block.instance,
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

    /// List of a stack that consists of several records. `text_of` enters names of classes.
    pub(super) fn of(&self, records: &[u32], mut text_of: impl FnMut(&str) -> TextId) -> BlockList {
        let stacks = || records.iter().filter_map(|record| self.by_stack.get(record));
        let mut kept: Vec<RankedBlock> = stacks().flat_map(|stack| stack.kept.iter().copied()).collect();
        kept.sort_unstable();
        let max = self.request.limits.of_a_stack;
        let beyond = u64::try_from(kept.len().saturating_sub(max)).unwrap_or(u64::MAX);
        kept.truncate(max);
        let listed = kept.into_iter().map(|block| {
            let class = self.classes.get(&block.place());
            block.listed(class.map(|class| text_of(class)))
        });
        BlockList {
            listed: listed.collect(),
            left_out: stacks().map(|stack| stack.left_out).sum::<u64>() + beyond,
        }
    }
}

#[cfg(test)]
mod tests {
    use leak_report::model::{Dictionary, TextKind};

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

    /// The blocks of these records, which have no classes.
    fn list(listing: &Listing, records: &[u32]) -> BlockList {
        listing.of(records, |class| unreachable!("{class}"))
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
        assert_eq!(sizes(&list(&listing, &[3])), (vec![9, 7], 3));
        assert_eq!(
            list(&listing, &[3]).listed[1].address,
            Avma::new(3),
            "the lower address"
        );
        assert_eq!(list(&listing, &[4]), BlockList::default());
    }

    /// Records of one stack make one list, within the limit of a single stack.
    #[test]
    fn records_of_one_stack_are_one_list() {
        let mut listing = listing(3, 100, &[]);
        for (stack, size) in [(1, 10), (1, 30), (2, 20), (2, 40), (3, 50)] {
            listing.add(&block(stack, size, size), OLDER, OLDER);
        }
        assert_eq!(sizes(&list(&listing, &[1, 2])), (vec![40, 30, 20], 1));
        assert_eq!(sizes(&list(&listing, &[3])), (vec![50], 0));
    }

    /// The limit of all stacks together holds, and every block beyond it is counted.
    #[test]
    fn total_of_all_stacks_is_bounded() {
        let mut listing = listing(100, 2, &[]);
        for (stack, size) in [(1, 10), (1, 20), (1, 30), (2, 40)] {
            listing.add(&block(stack, size, size), OLDER, OLDER);
        }
        assert_eq!(sizes(&list(&listing, &[1])), (vec![30, 20], 1));
        assert_eq!(sizes(&list(&listing, &[2])), (vec![], 1));
    }

    /// Young blocks are not listed unless their instance has ended.
    #[test]
    fn young_blocks_are_not_listed() {
        let young = OLDER / 2;
        for (ended, expected) in [(&[][..], (vec![], 0)), (&[1], (vec![8], 0))] {
            let mut listing = listing(10, 10, ended);
            listing.add(&block(1, 8, 0), young, OLDER);
            assert_eq!(sizes(&list(&listing, &[1])), expected);
        }
    }

    /// A block has the class that was found at its address in its instance.
    #[test]
    fn classes_of_blocks() {
        let mut listing = listing(10, 10, &[]);
        let other = Block {
            instance: 2,
            ..block(1, 8, 0x10)
        };
        for block in [block(1, 9, 0x10), other, block(1, 7, 0x20)] {
            listing.add(&block, OLDER, OLDER);
        }
        let mut places: Vec<_> = listing.places().collect();
        places.sort_unstable();
        let at = |instance, address| ((instance, Avma::new(address)), OLDER);
        assert_eq!(places, [at(1, 0x10), at(1, 0x20), at(2, 0x10)]);
        listing.set_classes(HashMap::from([(at(2, 0x10).0, "Order".to_owned())]));
        let mut dictionary = Dictionary::default();
        let list = listing.of(&[1], |class| dictionary.add_text(TextKind::Class, class));
        let classes = list
            .listed
            .iter()
            .map(|block| Some(dictionary.text(block.class?)));
        assert_eq!(classes.collect::<Vec<_>>(), [None, Some("Order"), None]);
    }
}
