//! Blocks that are known otherwise, as from a trace, in the memory of the allocator's own blocks.
//!
//! The address that a program got need not be where its allocator's block begins: memory that was aligned
//! begins in the middle of it, and a program can divide a block among blocks of its own.

use super::pinning::Pinning;

/// Blocks that are gone through one by one before the rest is searched.
const NEAR: usize = 8;

/// Blocks with their addresses, ascending, asked about for memory that mostly ascends.
#[derive(Debug)]
pub struct Within<'a, T> {
    blocks: &'a [(u64, T)],
    at: usize,
}

impl<'a, T> Within<'a, T> {
    /// Takes blocks that ascend by address.
    pub fn new(blocks: &'a [(u64, T)]) -> Self {
        Self { blocks, at: 0 }
    }

    /// Blocks that begin in the memory of a block of the allocator.
    pub fn of(&mut self, block: &Pinning) -> &'a [(u64, T)] {
        self.seek(block.address);
        let rest = self.blocks.get(self.at..).unwrap_or_default();
        let count = rest
            .iter()
            .take_while(|(address, _)| *address < block.end)
            .count();
        rest.get(..count).unwrap_or_default()
    }

    /// Goes to the first block at `address` or behind it.
    fn seek(&mut self, address: u64) {
        let is_before = |(at, _): &(u64, T)| *at < address;
        let last = self.at.checked_sub(1).and_then(|last| self.blocks.get(last));
        if last.is_some_and(|last| !is_before(last)) {
            self.at = 0;
        }
        let rest = self.blocks.get(self.at..).unwrap_or_default();
        let near = rest
            .iter()
            .take(NEAR)
            .take_while(|block| is_before(block))
            .count();
        self.at += match near {
            NEAR => rest.partition_point(is_before),
            near => near,
        };
    }
}

/// Divides bytes evenly: `count` shares that add up to them.
pub fn shares(bytes: u64, count: usize) -> impl Iterator<Item = u64> {
    let count = count as u64;
    let up_to = move |number: u64| {
        let part = u128::from(bytes) * u128::from(number) / u128::from(count.max(1));
        u64::try_from(part).unwrap_or(bytes)
    };
    (0..count).map(move |number| up_to(number + 1) - up_to(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(address: u64, end: u64) -> Pinning {
        Pinning {
            address,
            end,
            bytes: end - address,
            pinned: 0,
        }
    }

    /// A block of the allocator has the blocks that begin in its memory, wherever in it; not one that begins
    /// behind its end. Questions need not ascend.
    #[test]
    fn blocks_within_blocks() {
        let known: Vec<_> = [10, 20, 25, 29, 30, 50].map(|at| (at, at)).into();
        let mut within = Within::new(&known);
        let mut of = |address, end| -> Vec<u64> {
            let found = within.of(&block(address, end));
            found.iter().map(|(_, at)| *at).collect()
        };
        assert_eq!(of(10, 20), [10]);
        assert_eq!(of(20, 30), [20, 25, 29]);
        assert_eq!(of(40, 50), [0; 0]);
        assert_eq!(of(45, 60), [50]);
        assert_eq!(of(5, 11), [10]);
        let many: Vec<_> = (0..1000).map(|at| (16 * at, ())).collect();
        let mut within = Within::new(&many);
        assert_eq!(within.of(&block(8000, 8016)).len(), 1);
        assert_eq!(within.of(&block(160, 176)).len(), 1);
        assert_eq!(within.of(&block(17_000, u64::MAX)).len(), 0);
    }

    /// Shares differ by one byte at most, and add up.
    #[test]
    fn shares_add_up() {
        assert_eq!(shares(10, 3).collect::<Vec<_>>(), [3, 3, 4]);
        assert_eq!(shares(u64::MAX, 7).sum::<u64>(), u64::MAX);
        assert_eq!(shares(5, 0).count(), 0);
    }
}
