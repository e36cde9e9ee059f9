//! One bit for each block.

/// A set of blocks, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits(Vec<u64>);

impl Bits {
    /// An empty set of numbers below `count`.
    pub fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    /// All numbers below `count`.
    pub fn all(count: usize) -> Self {
        let mut words = vec![u64::MAX; count.div_ceil(64)];
        if let Some(last) = words.last_mut().filter(|_| !count.is_multiple_of(64)) {
            *last = (1 << (count % 64)) - 1;
        }
        Self(words)
    }

    pub fn has(&self, number: u32) -> bool {
        let (word, bit) = place(number);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Inserts `number`, if it is in range. Returns true if it is new.
    pub fn insert(&mut self, number: u32) -> bool {
        let (word, bit) = place(number);
        let Some(word) = self.0.get_mut(word) else {
            return false;
        };
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    /// Removes all numbers of `other`, which has the same range.
    pub fn remove(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word &= !other;
        }
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// All elements, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).step_by(64).zip(&self.0).flat_map(|(first, &word)| {
            let numbers = first..first + 64_u32;
            numbers.filter(move |number| word & place(*number).1 != 0)
        })
    }
}

fn place(number: u32) -> (usize, u64) {
    (number as usize / 64, 1 << (number % 64))
}
