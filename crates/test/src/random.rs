//! Reproducible random numbers (SplitMix64): a failing case fails again.

/// A source of random numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Draws any 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// An index into `length` elements.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).expect("it is below a usize")
    }

    /// Draws any byte.
    pub fn byte(&mut self) -> u8 {
        self.word().to_le_bytes()[0]
    }

    /// A multiple of 8 from `8 * first` to `8 * last`.
    pub fn slots(&mut self, first: i32, last: i32) -> i32 {
        let count = u64::from(last.abs_diff(first)) + 1;
        8 * (first + i32::try_from(self.below(count)).expect("it is below an i32"))
    }
}
