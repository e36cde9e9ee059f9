//! Positions of images in the table store, and eviction. Pure.
//!
//! An image that an active mapping list refers to stays. Of the others, the one unused for longest is evicted
//! first, and only if eviction makes enough room.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StoredImage<K> {
    key: K,
    words: usize,
    /// Value of `now` when it was last in use.
    used: u64,
}

/// Images in a store of `room` words, by start.
#[derive(Debug)]
pub(super) struct Placement<K> {
    room: usize,
    alignment: usize,
    images: BTreeMap<usize, StoredImage<K>>,
    now: u64,
}

/// Start of an image and the images evicted for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placed<K> {
    pub(super) start: usize,
    pub(super) evicted: Vec<K>,
}

impl<K: Copy + PartialEq> Placement<K> {
    /// Creates an empty store; images start at multiples of `alignment`.
    pub(super) fn new(room: usize, alignment: usize) -> Self {
        Self {
            room,
            alignment,
            images: BTreeMap::new(),
            now: 0,
        }
    }

    /// Words in use, without the gaps of alignment.
    pub(super) fn used(&self) -> usize {
        self.images.values().map(|image| image.words).sum()
    }

    /// Start of an image.
    pub(super) fn start_of(&self, key: K) -> Option<usize> {
        let image = self.images.iter().find(|(_, image)| image.key == key);
        image.map(|(&start, _)| start)
    }

    /// Marks the images that are in use now.
    pub(super) fn touch(&mut self, is_used: impl Fn(K) -> bool) {
        self.now += 1;
        for image in self.images.values_mut().filter(|image| is_used(image.key)) {
            image.used = self.now;
        }
    }

    /// Returns whether `words` words fit if all images not in use are evicted.
    pub(super) fn could_place(&self, words: usize, is_used: impl Fn(K) -> bool) -> bool {
        let staying = self.images.iter().filter(|(_, image)| is_used(image.key));
        self.gap(words, staying.map(|(&start, image)| (start, image.words)))
            .is_some()
    }

    /// Places an image that is not in the store. If it cannot fit, returns `None` and evicts nothing.
    pub(super) fn place(&mut self, key: K, words: usize, is_used: impl Fn(K) -> bool) -> Option<Placed<K>> {
        let mut evicted = Vec::new();
        if !self.could_place(words, &is_used) {
            return None;
        }
        loop {
            let all = self.images.iter().map(|(&start, image)| (start, image.words));
            if let Some(start) = self.gap(words, all) {
                self.now += 1;
                let used = self.now;
                self.images.insert(start, StoredImage { key, words, used });
                return Some(Placed { start, evicted });
            }
            evicted.push(self.evict_one(&is_used)?);
        }
    }

    /// Evicts the image that has been unused for longest.
    fn evict_one(&mut self, is_used: impl Fn(K) -> bool) -> Option<K> {
        let unused = self.images.iter().filter(|(_, image)| !is_used(image.key));
        let (&start, _) = unused.min_by_key(|(_, image)| image.used)?;
        self.images.remove(&start).map(|image| image.key)
    }

    /// Start of the first gap of `words` words between images, given in ascending order.
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

    /// The image unused for longest is evicted first; one in use never is, however old.
    #[test]
    fn longest_unused_image_is_evicted_first() {
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

    /// Nothing is evicted for an image that would not fit anyway.
    #[test]
    fn images_too_large_evict_nothing() {
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

    /// A gap that an evicted image left is reused.
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
