//! Reads the places of young blocks, in memory shared with the kernel, while programs change them.
//!
//! A place's state word is different for each block that was ever in it: words that are read between two
//! equal loads of it belong to one block. See `bpf/store/young.h`.

use std::io;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use libbpf_rs::{MapCore, MapHandle};

use super::memory::SharedWords;
use super::skeleton::types::{block, block_key, young_block, young_state};

const WORD: usize = size_of::<u64>();
const WORDS: usize = size_of::<young_block>() / WORD;
const KEY_WORDS: usize = size_of::<block_key>() / WORD;
const VALUE_WORDS: usize = size_of::<block>() / WORD;
const KEY_AT: usize = offset_of!(young_block, key) / WORD;
const VALUE_AT: usize = offset_of!(young_block, block) / WORD;
const STATE: u64 = young_state::YOUNG_STATE.0 as u64;
const FULL: u64 = young_state::YOUNG_FULL.0 as u64;
const MOVING: u64 = young_state::YOUNG_MOVING.0 as u64;
/// Attempts to read a place that changes meanwhile. Beyond them, its block is left out as one being allocated
/// or freed.
const MAX_TRIES: usize = 4;

/// Key and value of a block in the layout of the block table, in words.
pub(crate) type KeyAndValue = ([u64; KEY_WORDS], [u64; VALUE_WORDS]);

/// The array of young blocks.
pub(crate) struct YoungBlocks {
    map: MapHandle,
    words: SharedWords<AtomicU64>,
}

impl YoungBlocks {
    /// Maps `map`, an array of `types::young_block`.
    pub(super) fn new(map: MapHandle) -> io::Result<Self> {
        let words = SharedWords::map(&map, map.value_size() as usize / WORD)?;
        Ok(Self { map, words })
    }

    /// Duplicates the handle, for another thread.
    pub(crate) fn try_clone(&self) -> Result<Self, libbpf_rs::Error> {
        Ok(Self::new(MapHandle::try_from(&self.map)?)?)
    }

    /// Blocks in the array.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = KeyAndValue> {
        self.words.words().chunks_exact(WORDS).filter_map(read)
    }
}

/// Block in a place; `None` if the place is not full, or changes while it is read.
fn read(place: &[AtomicU64]) -> Option<KeyAndValue> {
    let (word, rest) = place.split_first()?;
    for _ in 0..MAX_TRIES {
        let before = word.load(Ordering::Acquire);
        if before & STATE != FULL {
            return None;
        }
        let load = |at: usize| rest.get(at - 1).map_or(0, |word| word.load(Ordering::Relaxed));
        let key = std::array::from_fn(|number| load(KEY_AT + number));
        let value = std::array::from_fn(|number| load(VALUE_AT + number));
        fence(Ordering::Acquire);
        // `YOUNG_MOVING` does not change the block.
        if (before ^ word.load(Ordering::Relaxed)) & !MOVING == 0 {
            return Some((key, value));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(word: u64) -> [AtomicU64; WORDS] {
        let words: [u64; WORDS] = std::array::from_fn(|at| 10 * at as u64);
        let place = words.map(AtomicU64::new);
        place[0].store(word, Ordering::Relaxed);
        place
    }

    /// Only a full place holds a block, moving or not; not one that a free has emptied or that a probe is
    /// writing.
    #[test]
    fn full_places_hold_blocks() {
        let expected = Some(([10, 20], [30, 40, 50]));
        let (empty, busy) = (0, young_state::YOUNG_BUSY.0.into());
        assert_eq!(read(&place(FULL)), expected);
        assert_eq!(read(&place(FULL | MOVING | 1 << 40)), expected);
        for word in [empty, busy, empty | MOVING, busy | MOVING] {
            assert_eq!(read(&place(word)), None, "{word}");
        }
    }
}
