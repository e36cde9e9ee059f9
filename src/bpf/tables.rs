//! The table store: which images are in the kernel, and where.
//!
//! Images are only ever added; there is room or there is not, and that is an answer, not an error.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use unwind_tables::image::Image;

use super::memory::SharedWords;
use crate::target::ModuleId;

/// The images in the kernel.
#[derive(Debug)]
pub struct TableStore {
    memory: SharedWords<AtomicU32>,
    /// Words in use.
    used: usize,
    images: HashMap<ModuleId, u32>,
}

impl TableStore {
    /// Images start at a multiple of this many words, a cache line.
    pub const ALIGNMENT: usize = 16;

    pub(super) fn new(memory: SharedWords<AtomicU32>) -> Self {
        Self {
            memory,
            used: 0,
            images: HashMap::new(),
        }
    }

    /// Where the image of `module` starts, if it is stored.
    pub fn image_at(&self, module: ModuleId) -> Option<u32> {
        self.images.get(&module).copied()
    }

    /// Stores the image of `module`, which has none yet. `None` when there is no room for it.
    ///
    /// Nothing refers to it until a mapping list that does is published.
    pub fn store(&mut self, module: ModuleId, image: &Image) -> Option<u32> {
        let start = self.used.next_multiple_of(Self::ALIGNMENT);
        let words = image.words();
        let room = self.memory.words().get(start..)?.get(..words.len())?;
        for (word, &value) in room.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.used = start + words.len();
        let start = u32::try_from(start).ok()?;
        self.images.insert(module, start);
        Some(start)
    }

    /// Bytes in use and bytes there are.
    pub fn usage(&self) -> (usize, usize) {
        let word = size_of::<u32>();
        (self.used * word, self.memory.words().len() * word)
    }
}
