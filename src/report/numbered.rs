//! Things that are referred to by number.

use std::collections::HashMap;
use std::hash::Hash;

/// Different things, with numbers from 0 on in the order in which they came.
pub(super) struct Numbered<T>(HashMap<T, usize>);

impl<T: Hash + Eq> Numbered<T> {
    pub(super) fn new() -> Self {
        Self(HashMap::new())
    }

    /// The number of `thing`.
    pub(super) fn number(&mut self, thing: T) -> usize {
        let next = self.0.len();
        *self.0.entry(thing).or_insert(next)
    }

    /// All of them, in the order of their numbers.
    pub(super) fn in_order(self) -> Vec<T> {
        let mut things: Vec<_> = self.0.into_iter().collect();
        things.sort_unstable_by_key(|&(_, number)| number);
        things.into_iter().map(|(thing, _)| thing).collect()
    }
}
