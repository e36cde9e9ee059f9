//! Sums of a stack's outstanding blocks by size and by thread. Pure.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::blocks::Block;
use leak_report::model::{Amount, SizeClass, WeightedSum};

/// Blocks whose sizes have the same number of binary digits.
#[derive(Clone, Copy, Debug)]
struct SizeSum {
    digits: u8,
    smallest: u64,
    largest: u64,
    amount: WeightedSum,
}

/// Blocks of a stack record by size and by thread. Both lists are short and ascending.
#[derive(Clone, Debug, Default)]
pub(super) struct MakeupSums {
    sizes: Vec<SizeSum>,
    threads: Vec<(u16, WeightedSum)>,
}

impl MakeupSums {
    pub(super) fn add(&mut self, block: &Block) {
        let amount = block.amount().sum();
        self.add_sizes(SizeSum {
            // At most 64.
            digits: u8::try_from(u64::BITS - block.size.leading_zeros()).unwrap_or(u8::MAX),
            smallest: block.size,
            largest: block.size,
            amount,
        });
        self.add_thread(block.thread, amount);
    }

    fn add_sizes(&mut self, more: SizeSum) {
        match self
            .sizes
            .binary_search_by_key(&more.digits, |known| known.digits)
        {
            Ok(at) => {
                let known = &mut self.sizes[at];
                known.smallest = known.smallest.min(more.smallest);
                known.largest = known.largest.max(more.largest);
                known.amount = known.amount + more.amount;
            }
            Err(at) => {
                // Most stacks have one class: a list that grows by itself would have room for four.
                self.sizes.reserve_exact(1);
                self.sizes.insert(at, more);
            }
        }
    }

    fn add_thread(&mut self, thread: u16, amount: WeightedSum) {
        match self.threads.binary_search_by_key(&thread, |known| known.0) {
            Ok(at) => self.threads[at].1 = self.threads[at].1 + amount,
            Err(at) => {
                self.threads.reserve_exact(1);
                self.threads.insert(at, (thread, amount));
            }
        }
    }

    /// Adds the sums of another record of the same stack.
    pub(super) fn add_all(&mut self, other: &Self) {
        other.sizes.iter().for_each(|&more| self.add_sizes(more));
        let threads = other.threads.iter();
        threads.for_each(|&(thread, amount)| self.add_thread(thread, amount));
    }

    pub(super) fn size_classes(&self) -> Vec<SizeClass> {
        let classes = self.sizes.iter().map(|sum| SizeClass {
            smallest: sum.smallest,
            largest: sum.largest,
            amount: sum.amount.rounded(),
        });
        classes.collect()
    }

    /// Blocks by the name of the thread, most bytes first; without a name for numbers that `names` lacks.
    pub(super) fn by_thread<'a>(&self, names: &'a HashMap<u16, Arc<str>>) -> Vec<(Option<&'a str>, Amount)> {
        let mut by_name: BTreeMap<Option<&str>, WeightedSum> = BTreeMap::new();
        for (number, amount) in &self.threads {
            let sum = by_name.entry(names.get(number).map(|name| &**name)).or_default();
            *sum = *sum + *amount;
        }
        let blocks = by_name.into_iter();
        let mut blocks: Vec<_> = blocks.map(|(name, amount)| (name, amount.rounded())).collect();
        blocks.sort_by_key(|(_, amount)| std::cmp::Reverse(amount.bytes));
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leak_report::model::Weight;
    use unwind_tables::addr::Avma;

    fn sums(blocks: &[(u64, u16)]) -> MakeupSums {
        let mut sums = MakeupSums::default();
        for &(size, thread) in blocks {
            sums.add(&Block {
                instance: 1,
                address: Avma::new(0x1000),
                size,
                allocated_at: 1,
                thread,
                stack: 7,
                weight: Weight::ONE,
            });
        }
        sums
    }

    /// Blocks of sizes between two powers of two are one class, which has the sizes that occurred, also if
    /// they come from several records; a size of 0 is a class of its own.
    #[test]
    fn sizes_are_classed() {
        let mut all = sums(&[(24, 1), (16, 1), (0, 1)]);
        all.add_all(&sums(&[(31, 1), (32, 1), (u64::MAX, 1)]));
        let classes: Vec<_> = all
            .size_classes()
            .iter()
            .map(|class| (class.smallest, class.largest, class.amount.blocks))
            .collect();
        assert_eq!(
            classes,
            [(0, 0, 1), (16, 31, 3), (32, 32, 1), (u64::MAX, u64::MAX, 1)]
        );
    }

    /// Threads of the same name are summed up; the one with most bytes is first.
    #[test]
    fn threads_are_summed_by_name() {
        let names = HashMap::from([(1, "main".into()), (2, "worker".into()), (3, "worker".into())]);
        let mut all = sums(&[(100, 1), (60, 2)]);
        all.add_all(&sums(&[(50, 3), (1, 9)]));
        let of = |bytes, blocks| Amount { bytes, blocks };
        let expected = [
            (Some("worker"), of(110, 2)),
            (Some("main"), of(100, 1)),
            (None, of(1, 1)),
        ];
        assert_eq!(all.by_thread(&names), expected);
    }
}
