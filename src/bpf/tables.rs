//! The table store: images of unwind tables in the kernel. `placement` decides positions and eviction.

use std::sync::atomic::{AtomicU32, Ordering};

use unwind_tables::image::{Image, header};

use super::memory::SharedWords;
use super::placement::Placement;
use super::publish::Publisher;
use crate::process::ModuleId;

/// Images of unwind tables in the kernel.
#[derive(Debug)]
pub struct TableStore {
    memory: SharedWords<AtomicU32>,
    placement: Placement<Key>,
    /// Number of images that were ever stored.
    stored: u64,
}

/// A module and the part of its table that an image holds.
type Key = (ModuleId, Part);

/// Content of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Rules,
    /// Saves: where functions save registers. The image of the rules refers to it.
    Saves,
}

/// A stored image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Index of its first word.
    pub at: u32,
    /// Modules whose images were evicted for it.
    pub evicted: Vec<ModuleId>,
    /// Modules whose images of saves were evicted for it.
    pub evicted_saves: Vec<ModuleId>,
}

impl TableStore {
    /// Alignment of images in words: a cache line.
    pub const ALIGNMENT: usize = 16;

    pub(super) fn new(memory: SharedWords<AtomicU32>) -> Self {
        let placement = Placement::new(memory.words().len(), Self::ALIGNMENT);
        Self {
            memory,
            placement,
            stored: 0,
        }
    }

    /// Number of images that were ever stored: while it is the same, every image is where it was.
    pub fn stored(&self) -> u64 {
        self.stored
    }

    /// All words, which only this process writes.
    pub fn words(&self) -> &[u32] {
        self.memory.plain()
    }

    /// Marks the images that are in use now: others are evicted first.
    pub fn touch(&mut self, is_used: impl Fn(ModuleId) -> bool) {
        self.placement.touch(|(module, _)| is_used(module));
    }

    /// Returns whether an image of `words` words fits, evicting images that are not in use if need be.
    pub fn has_room(&self, words: usize, is_used: impl Fn(ModuleId) -> bool) -> bool {
        self.placement.could_place(words, |(module, _)| is_used(module))
    }

    /// Stores the image of `module`, which has none yet. `None` if it does not fit.
    ///
    /// May evict images that no active mapping list refers to. Before their memory is overwritten, waits with
    /// `publisher` for walks that use inactive lists.
    ///
    /// The image is unused until a mapping list that refers to it is published.
    ///
    /// # Errors
    ///
    /// If walks could not be awaited; nothing was written.
    pub fn store(
        &mut self,
        module: ModuleId,
        image: &Image,
        is_used: impl Fn(ModuleId) -> bool,
        publisher: &Publisher,
    ) -> Result<Option<Stored>, libbpf_rs::Error> {
        self.place((module, Part::Rules), image, is_used, publisher)
    }

    /// Stores the saves of `module` (where its functions save registers), and refers the image of its rules,
    /// which is stored, to them. Eviction as for [`Self::store`].
    pub fn store_saves(
        &mut self,
        module: ModuleId,
        image: &Image,
        is_used: impl Fn(ModuleId) -> bool,
        publisher: &Publisher,
    ) -> Result<Option<Stored>, libbpf_rs::Error> {
        self.place((module, Part::Saves), image, is_used, publisher)
    }

    /// Returns whether the saves of `module` are stored.
    pub fn has_saves(&self, module: ModuleId) -> bool {
        self.placement.start_of((module, Part::Saves)).is_some()
    }

    fn place(
        &mut self,
        key: Key,
        image: &Image,
        is_used: impl Fn(ModuleId) -> bool,
        publisher: &Publisher,
    ) -> Result<Option<Stored>, libbpf_rs::Error> {
        let words = image.words();
        let Some(placed) = self
            .placement
            .place(key, words.len(), |(module, _)| is_used(module))
        else {
            return Ok(None);
        };
        self.stored += 1;
        if !placed.evicted.is_empty() {
            publisher.await_inactive_lists()?;
        }
        let (mut evicted, mut evicted_saves) = (Vec::new(), Vec::new());
        for (module, part) in placed.evicted {
            match part {
                Part::Rules => evicted.push(module),
                Part::Saves => evicted_saves.push(module),
            }
        }
        for &module in &evicted_saves {
            // No walk reads this word: the module is not in use.
            if let Some(rules) = self.placement.start_of((module, Part::Rules)) {
                self.write(rules + header::SAVES_AT, 0);
            }
        }
        for (at, &word) in (placed.start..).zip(words) {
            self.write(at, word);
        }
        self.refer_to_saves(key.0);
        let at = u32::try_from(placed.start).ok();
        Ok(at.map(|at| Stored {
            at,
            evicted,
            evicted_saves,
        }))
    }

    /// Makes the image of a module's rules refer to its saves, if both are stored, at any distance.
    fn refer_to_saves(&self, module: ModuleId) {
        let start = |part| self.placement.start_of((module, part));
        if let (Some(rules), Some(saves)) = (start(Part::Rules), start(Part::Saves)) {
            #[allow(
                clippy::cast_possible_truncation,
                reason = "walks add it to where the image starts, modulo 2^32; the store is smaller"
            )]
            let distance = saves.wrapping_sub(rules) as u32;
            self.write(rules + header::SAVES_AT, distance);
        }
    }

    fn write(&self, at: usize, word: u32) {
        if let Some(place) = self.memory.words().get(at) {
            place.store(word, Ordering::Release);
        }
    }

    /// Bytes in use and capacity in bytes.
    pub fn usage(&self) -> (usize, usize) {
        let word = size_of::<u32>();
        (self.placement.used() * word, self.memory.words().len() * word)
    }
}
