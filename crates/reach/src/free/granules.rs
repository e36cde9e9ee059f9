//! Sets of addresses that are multiples of 16, the alignment of allocators' blocks: one bit for each.

use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes for which one bit stands.
pub(super) const GRANULE: u64 = 16;
/// Words of a part, which stands for 1 MiB.
const WORDS: usize = 1024;
const PART: u64 = GRANULE * 64 * WORDS as u64;
/// Maximum number of parts of one set, of 8 KiB each: 128 MiB for 16 GiB. Granules in further parts are not
/// inserted.
const MAX_PARTS: usize = 1 << 14;

/// A set of granules, sparse by parts.
#[derive(Debug, Default)]
pub(super) struct Granules {
    parts: BTreeMap<u64, Box<[u64; WORDS]>>,
}

impl Granules {
    /// Inserts the granule at `address`. Returns false if there is no room.
    pub(super) fn insert(&mut self, address: u64) -> bool {
        let (part, word, bit) = place(address);
        if self.parts.len() == MAX_PARTS && !self.parts.contains_key(&part) {
            return false;
        }
        let words = self.parts.entry(part).or_insert_with(|| Box::new([0; WORDS]));
        words[word] |= bit;
        true
    }

    /// Inserts all granules of `size` bytes from `address` on. Returns false if there is not room for all.
    pub(super) fn insert_all(&mut self, address: u64, size: u64) -> bool {
        let mut granules = (0..size / GRANULE).map(|index| address.wrapping_add(index * GRANULE));
        granules.all(|granule| self.insert(granule))
    }

    /// Removes the granule at `address`. Returns true if it was in the set.
    pub(super) fn take(&mut self, address: u64) -> bool {
        let (part, word, bit) = place(address);
        let Some(words) = self.parts.get_mut(&part) else {
            return false;
        };
        let was_in = words[word] & bit != 0;
        words[word] &= !bit;
        was_in
    }

    /// Removes all granules that begin in `range`.
    pub(super) fn take_all(&mut self, range: Range<u64>) {
        for (&part, words) in self.parts.range_mut(range.start / PART..=range.end / PART) {
            let granules = (part * PART..).step_by(16).take(WORDS * 64);
            for granule in granules.filter(|granule| range.contains(granule)) {
                let (_, word, bit) = place(granule);
                words[word] &= !bit;
            }
        }
    }

    pub(super) fn has(&self, address: u64) -> bool {
        let (part, word, bit) = place(address);
        self.parts.get(&part).is_some_and(|words| words[word] & bit != 0)
    }

    /// Calls `see` with each maximal run of granules in the set, ascending.
    pub(super) fn runs(&self, see: &mut dyn FnMut(Range<u64>)) {
        let mut last: Option<Range<u64>> = None;
        let mut add = |run: Range<u64>| match &mut last {
            Some(last) if last.end == run.start => last.end = run.end,
            _ => {
                if let Some(done) = last.replace(run) {
                    see(done);
                }
            }
        };
        for (&part, words) in &self.parts {
            for (&word, first) in words.iter().zip((part * PART..).step_by(64 * 16)) {
                runs_of_word(word, |run| {
                    add(first + run.start * GRANULE..first + run.end * GRANULE)
                });
            }
        }
        if let Some(done) = last {
            see(done);
        }
    }
}

/// Calls `see` with the first bit and the end of each run of ones.
fn runs_of_word(word: u64, mut see: impl FnMut(Range<u64>)) {
    let mut begun = 0;
    while begun < 64 && word >> begun != 0 {
        let first = begun + (word >> begun).trailing_zeros();
        let end = first + (word >> first).trailing_ones();
        see(first.into()..end.into());
        begun = end;
    }
}

/// Number of the part, index of the word in it, and the bit.
fn place(address: u64) -> (u64, usize, u64) {
    let granule = address % PART / GRANULE;
    // Below WORDS.
    let word = usize::try_from(granule / 64).unwrap_or_default();
    (address / PART, word, 1 << (granule % 64))
}
