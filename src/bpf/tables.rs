//! The table store: which images are in the kernel. Where each lies, and what makes room for another, is `placement`.

use std::sync::atomic::{AtomicU32, Ordering};

use unwind_tables::image::Image;

use super::memory::SharedWords;
use super::placement::Placement;
use super::publish::Publisher;
use crate::target::ModuleId;

/// The images in the kernel.
#[derive(Debug)]
pub struct TableStore {
    memory: SharedWords<AtomicU32>,
    placement: Placement,
}

/// An image that was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its first word.
    pub at: u32,
    /// The modules whose images made room for it, and which have none any more.
    pub evicted: Vec<ModuleId>,
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
        self.placement.touch(is_used);
    }

    /// Whether an image of so many words finds room, if need be that of images that are not in use.
    pub fn has_room(&self, words: usize, is_used: impl Fn(ModuleId) -> bool) -> bool {
        self.placement.could_place(words, is_used)
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
        let words = image.words();
        let Some(placed) = self.placement.place(module, words.len(), is_used) else {
            return Ok(None);
        };
        if !placed.evicted.is_empty() {
            publisher.await_inactive_lists()?;
        }
        let room = self.memory.words().get(placed.start..).unwrap_or_default();
        for (word, &value) in room.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        Ok(u32::try_from(placed.start).ok().map(|at| Stored {
            at,
            evicted: placed.evicted,
        }))
    }

    /// Bytes in use and bytes there are.
    pub fn usage(&self) -> (usize, usize) {
        let word = size_of::<u32>();
        (self.placement.used() * word, self.memory.words().len() * word)
    }
}
