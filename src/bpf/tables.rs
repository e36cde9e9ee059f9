//! The table store: which images are in the kernel. Where each lies, and what makes room for another, is `placement`.

use std::sync::atomic::{AtomicU32, Ordering};

use unwind_tables::image::{Image, header};

use super::memory::SharedWords;
use super::placement::Placement;
use super::publish::Publisher;
use crate::process::ModuleId;

/// The images in the kernel.
#[derive(Debug)]
pub struct TableStore {
    memory: SharedWords<AtomicU32>,
    placement: Placement<Key>,
}

/// A module, and what an image says of it.
type Key = (ModuleId, Part);

/// What an image says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Rules,
    /// Where registers are saved; the image of the rules refers to it.
    Saves,
}

/// An image that was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its first word.
    pub at: u32,
    /// The modules whose images made room for it, and which have none any more.
    pub evicted: Vec<ModuleId>,
    /// The same of images that say where registers are saved.
    pub evicted_saves: Vec<ModuleId>,
}

impl TableStore {
    /// Images start at a multiple of this many words, a cache line.
    pub const ALIGNMENT: usize = 16;

    pub(super) fn new(memory: SharedWords<AtomicU32>) -> Self {
        let placement = Placement::new(memory.words().len(), Self::ALIGNMENT);
        Self { memory, placement }
    }

    /// Notes which images are in use now: the others go first when there is no room.
    pub fn touch(&mut self, is_used: impl Fn(ModuleId) -> bool) {
        self.placement.touch(|(module, _)| is_used(module));
    }

    /// Whether an image of so many words finds room, if need be that of images that are not in use.
    pub fn has_room(&self, words: usize, is_used: impl Fn(ModuleId) -> bool) -> bool {
        self.placement.could_place(words, |(module, _)| is_used(module))
    }

    /// Stores the image of `module`, which has none yet. `None` when there is no room for it.
    ///
    /// Images that are not in use make room: those that no mapping list refers to that is active. Before such room
    /// is written to, walks by other lists are awaited with `publisher`.
    ///
    /// Nothing refers to the image until a mapping list that does is published.
    ///
    /// # Errors
    ///
    /// Walks could not be awaited; nothing was written.
    pub fn store(
        &mut self,
        module: ModuleId,
        image: &Image,
        is_used: impl Fn(ModuleId) -> bool,
        publisher: &Publisher,
    ) -> Result<Option<Stored>, libbpf_rs::Error> {
        self.place((module, Part::Rules), image, is_used, publisher)
    }

    /// Stores where the functions of `module` save registers, for walks to find from the image of its rules, which is
    /// stored. As [`Self::store`] otherwise.
    ///
    /// # Errors
    ///
    /// As [`Self::store`].
    pub fn store_saves(
        &mut self,
        module: ModuleId,
        image: &Image,
        is_used: impl Fn(ModuleId) -> bool,
        publisher: &Publisher,
    ) -> Result<Option<Stored>, libbpf_rs::Error> {
        self.place((module, Part::Saves), image, is_used, publisher)
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
            // No walk looks: the module is not in use.
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

    /// Makes the image of a module's rules refer to the one of its saves, if both are there, wherever they are.
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

    /// Bytes in use and bytes there are.
    pub fn usage(&self) -> (usize, usize) {
        let word = size_of::<u32>();
        (self.placement.used() * word, self.memory.words().len() * word)
    }
}
