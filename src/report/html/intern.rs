//! Things that are many times the same, as numbers.

use std::collections::HashMap;
use std::hash::Hash;

/// Numbers from 0, in the order in which keys came.
#[derive(Debug)]
pub(super) struct Interned<K> {
    numbers: HashMap<K, u32>,
    keys: Vec<K>,
}

impl<K> Default for Interned<K> {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            keys: Vec::new(),
        }
    }
}

impl<K: Copy + Eq + Hash> Interned<K> {
    /// The key's number; its own from now on, if it is new.
    pub(super) fn number(&mut self, key: K) -> u32 {
        let next = u32::try_from(self.keys.len()).unwrap_or(u32::MAX);
        *self.numbers.entry(key).or_insert_with(|| {
            self.keys.push(key);
            next
        })
    }

    /// The key of this number.
    pub(super) fn key(&self, number: u32) -> Option<&K> {
        self.keys.get(number as usize)
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }
}
