//! Reading the places of young blocks, in the memory that is shared with the kernel, while programs change them.
//!
//! A place's word is different for each block that was ever there: what is read between two looks at the same word is one
//! block's. See `bpf/store/young.h`.

use std::io;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use libbpf_rs::{MapCore, MapHandle};

use super::memory::SharedWords;
use super::types::{block, block_key, young_block, young_state};

const WORD: usize = size_of::<u64>();
const WORDS: usize = size_of::<young_block>() / WORD;
const KEY_WORDS: usize = size_of::<block_key>() / WORD;
const VALUE_WORDS: usize = size_of::<block>() / WORD;
const KEY_AT: usize = offset_of!(young_block, key) / WORD;
const VALUE_AT: usize = offset_of!(young_block, block) / WORD;
const STATE: u64 = young_state::YOUNG_STATE.0 as u64;
const FULL: u64 = young_state::YOUNG_FULL.0 as u64;
const MOVING: u64 = young_state::YOUNG_MOVING.0 as u64;
/// How often a place is read again that changed meanwhile; then its block is one that comes or goes.
const MAX_TRIES: usize = 4;

/// A block's key and value as the block table would have them, in words.
pub(crate) type KeyAndValue = ([u64; KEY_WORDS], [u64; VALUE_WORDS]);

/// The places of young blocks.
pub(crate) struct YoungBlocks {
    map: MapHandle,
    words: SharedWords<AtomicU64>,
}

impl YoungBlocks {
    /// Those in `map`, an array of `types::young_block`.
    ///
    /// # Errors
    ///
    /// It could not be mapped.
    pub(super) fn new(map: MapHandle) -> io::Result<Self> {
        let words = SharedWords::map(&map, map.value_size() as usize / WORD)?;
        Ok(Self { map, words })
    }

    /// The same places, for another thread.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub(crate) fn again(&self) -> Result<Self, libbpf_rs::Error> {
        Ok(Self::new(MapHandle::try_from(&self.map)?)?)
    }

    /// The blocks that are there.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = KeyAndValue> {
        self.words.words().chunks_exact(WORDS).filter_map(read)
    }
}

/// The block in a place, if one is and stays while it is read.
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
        // That a block is moved changes nothing about it.
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

    /// A block is there if its place is full, moved or not; what a free leaves behind, or a probe writes, is none.
    #[test]
    fn what_is_there() {
        let expected = Some(([10, 20], [30, 40, 50]));
        let (empty, busy) = (0, young_state::YOUNG_BUSY.0.into());
        assert_eq!(read(&place(FULL)), expected);
        assert_eq!(read(&place(FULL | MOVING | 1 << 40)), expected);
        for word in [empty, busy, empty | MOVING, busy | MOVING] {
            assert_eq!(read(&place(word)), None, "{word}");
        }
    }
}
