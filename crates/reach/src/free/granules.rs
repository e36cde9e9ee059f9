//! Sets of addresses that are multiples of 16, the alignment of allocators' blocks: one bit for each.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Bytes for which one bit stands.
pub(super) const GRANULE: u64 = 16;
/// Words of a part, which stands for 1 MiB.
const WORDS: usize = 1024;
const PART: u64 = GRANULE * 64 * WORDS as u64;
/// Maximum number of parts of one set, of 8 KiB each: 512 MiB for 64 GiB. Granules in further parts are not
/// inserted.
const MAX_PARTS: usize = 1 << 16;

/// A set of granules, sparse by parts.
#[derive(Debug, Default)]
pub(super) struct Granules {
    /// Index in `parts` of each part that there is.
    places: BTreeMap<u64, usize>,
    parts: Vec<Box<Part>>,
    /// The part that was inserted into last, and its index: the next granule is mostly near.
    last: Option<(u64, usize)>,
}

type Part = [u64; WORDS];

impl Granules {
    fn part(&self, part: u64) -> Option<&Part> {
        let place = match self.last {
            Some((last, place)) if last == part => place,
            Some(_) | None => *self.places.get(&part)?,
        };
        self.parts.get(place).map(|part| &**part)
    }

    /// Returns a part, which is made if it is not there; `None` if there is no room.
    fn make_part(&mut self, part: u64) -> Option<&mut Part> {
        let place = match self.last {
            Some((last, place)) if last == part => place,
            Some(_) | None => match self.places.get(&part) {
                Some(place) => *place,
                None if self.parts.len() == MAX_PARTS => return None,
                None => {
                    self.parts.push(Box::new([0; WORDS]));
                    self.places.insert(part, self.parts.len() - 1);
                    self.parts.len() - 1
                }
            },
        };
        self.last = Some((part, place));
        self.parts.get_mut(place).map(|part| &mut **part)
    }

    /// Inserts the granule at `address`. Returns false if there is no room.
    pub(super) fn insert(&mut self, address: u64) -> bool {
        let (part, word, bit) = place(address);
        let words = self.make_part(part);
        words.map(|words| words[word] |= bit).is_some()
    }

    /// Inserts all granules of `size` bytes from `address` on. Returns false if there is not room for all.
    pub(super) fn insert_all(&mut self, address: u64, size: u64) -> bool {
        let mut granules = (0..size / GRANULE).map(|index| address.wrapping_add(index * GRANULE));
        granules.all(|granule| self.insert(granule))
    }

    /// Removes the granule at `address`. Returns true if it was in the set.
    pub(super) fn take(&mut self, address: u64) -> bool {
        let (part, word, bit) = place(address);
        let place = self.places.get(&part);
        let Some(words) = place.and_then(|place| self.parts.get_mut(*place)) else {
            return false;
        };
        let was_in = words[word] & bit != 0;
        words[word] &= !bit;
        was_in
    }

    /// Removes all granules that begin in `range`.
    pub(super) fn take_all(&mut self, range: Range<u64>) {
        for (&part, &place_of_part) in self.places.range(range.start / PART..=range.end / PART) {
            let Some(words) = self.parts.get_mut(place_of_part) else {
                continue;
            };
            let granules = (part * PART..).step_by(16).take(WORDS * 64);
            for granule in granules.filter(|granule| range.contains(granule)) {
                let (_, word, bit) = place(granule);
                words[word] &= !bit;
            }
        }
    }

    pub(super) fn has(&self, address: u64) -> bool {
        let (part, word, bit) = place(address);
        self.part(part).is_some_and(|words| words[word] & bit != 0)
    }

    /// Calls `see` with each granule of `range` that is in one of `sets`, ascending, and with the index of
    /// the first set that has it.
    pub(super) fn visit_all(sets: &[&Self], range: Range<u64>, see: &mut dyn FnMut(u64, usize)) {
        let Some(last) = range.end.checked_sub(1).filter(|last| *last >= range.start) else {
            return;
        };
        let parts = sets
            .iter()
            .flat_map(|set| set.places.range(range.start / PART..=last / PART));
        let parts: BTreeSet<u64> = parts.map(|(part, _)| *part).collect();
        for part in parts {
            let found: Vec<_> = sets.iter().map(|set| set.part(part)).collect();
            for (word, first) in (0..WORDS).zip((part * PART..).step_by(64 * 16)) {
                if first > last || first + 64 * GRANULE <= range.start {
                    continue;
                }
                let of = |words: &Option<&Part>| words.map_or(0, |words| words[word]);
                let mut left = found.iter().map(of).fold(0, |all, words| all | words);
                while left != 0 {
                    let bit = left.trailing_zeros();
                    left &= left - 1;
                    let granule = first + u64::from(bit) * GRANULE;
                    let set = found.iter().position(|words| of(words) >> bit & 1 != 0);
                    if range.contains(&granule) {
                        see(granule, set.unwrap_or_default());
                    }
                }
            }
        }
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
        let words = |place: &usize| self.parts.get(*place);
        let parts = self
            .places
            .iter()
            .filter_map(|(part, place)| Some((*part, words(place)?)));
        for (part, words) in parts {
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
