//! Which image lies where in the table store, and which makes room for another. Pure.
//!
//! What a live mapping list refers to stays. Of the rest, what has been out of use for longest goes first, and only
//! if that makes enough room.

use std::collections::BTreeMap;

/// An image in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held<K> {
    key: K,
    words: usize,
    /// When it was last in use, by the count of such moments.
    used: u64,
}

/// The images in a store of so many words, by where they start.
#[derive(Debug)]
pub(super) struct Placement<K> {
    room: usize,
    alignment: usize,
    held: BTreeMap<usize, Held<K>>,
    now: u64,
}

/// Where an image goes, and what goes for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placed<K> {
    pub(super) start: usize,
    pub(super) evicted: Vec<K>,
}

impl<K: Copy + PartialEq> Placement<K> {
    /// An empty store; images start at multiples of `alignment`.
    pub(super) fn new(room: usize, alignment: usize) -> Self {
        Self {
            room,
            alignment,
            held: BTreeMap::new(),
            now: 0,
        }
    }

    /// Words in use.
    pub(super) fn used(&self) -> usize {
        self.held.values().map(|held| held.words).sum()
    }

    /// Where an image starts.
    pub(super) fn start_of(&self, key: K) -> Option<usize> {
        let held = self.held.iter().find(|(_, held)| held.key == key);
        held.map(|(&start, _)| start)
    }

    /// Notes that these are in use now.
    pub(super) fn touch(&mut self, is_used: impl Fn(K) -> bool) {
        self.now += 1;
        for held in self.held.values_mut().filter(|held| is_used(held.key)) {
            held.used = self.now;
        }
    }

    /// Whether an image of so many words finds room if all that is not in use goes.
    pub(super) fn could_place(&self, words: usize, is_used: impl Fn(K) -> bool) -> bool {
        let staying = self.held.iter().filter(|(_, held)| is_used(held.key));
        self.gap(words, staying.map(|(&start, held)| (start, held.words)))
            .is_some()
    }

    /// Finds room for the image of this key, which has none yet; `None`, and nothing is evicted, if there cannot be enough.
    pub(super) fn place(&mut self, key: K, words: usize, is_used: impl Fn(K) -> bool) -> Option<Placed<K>> {
        let mut evicted = Vec::new();
        if !self.could_place(words, &is_used) {
            return None;
        }
        loop {
            let all = self.held.iter().map(|(&start, held)| (start, held.words));
            if let Some(start) = self.gap(words, all) {
                self.now += 1;
                let used = self.now;
                self.held.insert(start, Held { key, words, used });
                return Some(Placed { start, evicted });
            }
            evicted.push(self.evict_one(&is_used)?);
        }
    }

    /// Takes out what has been out of use for longest.
    fn evict_one(&mut self, is_used: impl Fn(K) -> bool) -> Option<K> {
        let unused = self.held.iter().filter(|(_, held)| !is_used(held.key));
        let (&start, _) = unused.min_by_key(|(_, held)| held.used)?;
        self.held.remove(&start).map(|held| held.key)
    }

    /// The first gap of so many words between images that are given in ascending order.
    fn gap(&self, words: usize, images: impl Iterator<Item = (usize, usize)>) -> Option<usize> {
        let mut free = 0_usize;
        for (start, length) in images {
            if start.saturating_sub(free) >= words {
                return Some(free);
            }
            free = (start + length).next_multiple_of(self.alignment);
        }
        (self.room.saturating_sub(free) >= words).then_some(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ModuleId;

    const A: ModuleId = ModuleId::new(0);
    const B: ModuleId = ModuleId::new(1);
    const C: ModuleId = ModuleId::new(2);
    const D: ModuleId = ModuleId::new(3);

    fn unused(_: ModuleId) -> bool {
        false
    }

    fn placed(start: usize, evicted: &[ModuleId]) -> Option<Placed<ModuleId>> {
        let evicted = evicted.to_vec();
        Some(Placed { start, evicted })
    }

    /// Images follow one another at the alignment until the store is full.
    #[test]
    fn images_fill_the_store() {
        let mut store = Placement::new(64, 16);
        assert_eq!(store.place(A, 17, |_| true), placed(0, &[]));
        assert_eq!(store.place(B, 16, |_| true), placed(32, &[]));
        assert_eq!(store.place(C, 17, |_| true), None);
        assert_eq!(store.place(C, 16, |_| true), placed(48, &[]));
        assert_eq!(store.used(), 49);
    }

    /// What was out of use for longest goes first, and what is in use never, however long ago it came.
    #[test]
    fn the_longest_unused_goes_first() {
        let mut store = Placement::new(48, 16);
        for module in [A, B, C] {
            store.place(module, 16, unused).expect("there is room");
        }
        store.touch(|module| module == A);
        store.touch(|module| module == B);
        assert_eq!(store.place(D, 16, |module| module == C), placed(0, &[A]));
        assert_eq!(store.place(A, 16, |module| module == C), placed(16, &[B]));
        assert_eq!(store.place(B, 16, unused), placed(32, &[C]));
    }

    /// Nothing is evicted in vain: not for an image that would not fit all the same.
    #[test]
    fn nothing_goes_in_vain() {
        let mut store = Placement::new(48, 16);
        for module in [A, B, C] {
            store.place(module, 16, unused).expect("there is room");
        }
        let middle = |module| module == B;
        assert!(!store.could_place(32, middle));
        assert_eq!(store.place(D, 32, middle), None);
        assert_eq!(store.used(), 48);
        assert_eq!(store.place(D, 49, unused), None);
        assert_eq!(store.place(D, 48, unused), placed(0, &[A, B, C]));
    }

    /// A gap that an image left is used again.
    #[test]
    fn gaps_are_used_again() {
        let mut store = Placement::new(64, 16);
        for module in [A, B, C] {
            store.place(module, 16, unused).expect("there is room");
        }
        store.touch(|module| module != B);
        assert_eq!(store.place(D, 32, |module| module != B), None);
        assert_eq!(store.place(D, 17, |module| module == A), placed(16, &[B, C]));
    }
}
