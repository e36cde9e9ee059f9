//! Reads the kernel side's notes of freed memory (`bpf/process/freed.h`). [`crate::reach::free::seen`]
//! interprets them.

use std::collections::HashMap;
use std::mem::offset_of;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::MapHandle;
use unwind_tables::addr::Avma;

use super::batch::{Batch, HashTable};
use super::clock::monotonic_nanoseconds;
use super::collect::{Counters, counter};
use super::fdinfo::recursion_misses;
use super::load_error::LoadError;
use super::memory::SharedWords;
use super::skeleton::MemleakMaps;
use super::skeleton::types::{block_key, freed_block, freed_memory, taken_range, trust};
use super::store::map_words;
use crate::reach::free::seen::{Dated, Notes};

const WORD: usize = size_of::<u64>();
const KEY_WORDS: usize = size_of::<block_key>() / WORD;
const FREED_WORDS: usize = size_of::<freed_block>() / WORD;
const TAKEN_WORDS: usize = size_of::<taken_range>() / WORD;
const TRUST_WORDS: usize = size_of::<trust>() / WORD;

const BY_ALLOCATOR: u64 = freed_memory::TAKEN_BY_ALLOCATOR.0 as u64;

/// Notes of freed memory. Any thread can read them.
pub struct FreeNotes {
    freed: HashTable,
    taken: HashTable,
    /// Array of `types::trust`.
    trust: SharedWords<AtomicU64>,
    /// First programs of the pairs that see mapping calls.
    programs: Vec<OwnedFd>,
    counters: MapHandle,
    /// Mapping calls that were not seen, as of the last reading.
    missed: AtomicU64,
    /// Time before which frees in all instances are void: until then, not all allocations or mappings were
    /// seen.
    void_before: AtomicU64,
}

impl FreeNotes {
    /// Notes in `maps`, of a kernel side whose mapping calls are seen by `programs`.
    pub(super) fn new<'a>(
        maps: &MemleakMaps<'_>,
        programs: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> Result<Self, LoadError> {
        let programs = programs.into_iter();
        let programs = programs.map(|program| program.try_clone_to_owned());
        Ok(Self {
            freed: HashTable::new(MapHandle::try_from(&maps.freed_blocks)?),
            taken: HashTable::new(MapHandle::try_from(&maps.taken_ranges)?),
            trust: map_words(&maps.bss_trust)?,
            programs: programs
                .collect::<Result<_, _>>()
                .map_err(libbpf_rs::Error::from)?,
            counters: MapHandle::try_from(&maps.counters)?,
            missed: AtomicU64::new(0),
            void_before: AtomicU64::new(0),
        })
    }

    /// Voids all frees noted until now: allocations before may not have been seen, since probes were added,
    /// or mapping calls were missed.
    pub(super) fn begin_again(&self) {
        self.void_before
            .fetch_max(monotonic_nanoseconds(), Ordering::SeqCst);
    }

    /// Reads the notes on `instances`. Blocks must be listed afterwards.
    ///
    /// # Errors
    ///
    /// A table cannot be read.
    pub fn read(
        &self,
        instances: impl IntoIterator<Item = u32>,
    ) -> Result<HashMap<u32, Notes>, libbpf_rs::Error> {
        let instances = instances.into_iter();
        let mut notes: HashMap<u32, Notes> = instances.map(|number| (number, Notes::default())).collect();
        // In this order: whatever voids a free that was read is then seen.
        each(&self.freed, |instance, start, value: [u64; FREED_WORDS]| {
            if let Some(notes) = notes.get_mut(&instance) {
                let size = word(&value, offset_of!(freed_block, size));
                notes.freed.push(Dated {
                    range: Avma::new(start)..Avma::new(start.saturating_add(size)),
                    at: word(&value, offset_of!(freed_block, freed_at)),
                    by_allocator: false,
                });
            }
        })?;
        each(&self.taken, |instance, start, value: [u64; TAKEN_WORDS]| {
            if let Some(notes) = notes.get_mut(&instance) {
                let end = word(&value, offset_of!(taken_range, end));
                notes.taken.push(Dated {
                    range: Avma::new(start)..Avma::new(end & !BY_ALLOCATOR),
                    at: word(&value, offset_of!(taken_range, taken_at)),
                    by_allocator: end & BY_ALLOCATOR != 0,
                });
            }
        })?;
        self.note_misses()?;
        let void_before = self.void_before.load(Ordering::SeqCst);
        for (instance, notes) in &mut notes {
            let trust = self.trust_in(*instance);
            let is_lost = word(&trust, offset_of!(trust, is_lost)) != 0;
            let own = word(&trust, offset_of!(trust, void_before));
            notes.void_before = (!is_lost).then_some(own.max(void_before));
            notes.doubt = doubt(word(&trust, offset_of!(trust, cause)));
            notes.not_noted = word(&trust, offset_of!(trust, not_noted));
        }
        Ok(notes)
    }

    /// Voids all frees noted until now, if mapping calls were missed since the last reading.
    fn note_misses(&self) -> Result<(), libbpf_rs::Error> {
        let missed: u64 = self.programs.iter().map(recursion_misses).sum();
        let counters = Counters::read(&self.counters)?;
        let missed = missed.saturating_sub(counters.get(counter::COUNTER_NESTED_REGION_CALL));
        if self.missed.swap(missed, Ordering::SeqCst) != missed {
            self.begin_again();
        }
        Ok(())
    }

    fn trust_in(&self, instance: u32) -> [u64; TRUST_WORDS] {
        let mask = freed_memory::TRUSTS.0 - 1;
        let first = (instance & mask) as usize * TRUST_WORDS;
        let load = |at: usize| self.trust.words().get(at).map(|word| word.load(Ordering::SeqCst));
        // A missing record is read as all ones: nothing is to be relied upon.
        std::array::from_fn(|at| load(first + at).unwrap_or(u64::MAX))
    }
}

/// Meaning of a number of `enum doubt`.
fn doubt(number: u64) -> Option<&'static str> {
    use super::skeleton::types::doubt as c;
    let doubts = [
        (c::DOUBT_LOST_BLOCK, "a block was not recorded"),
        (c::DOUBT_UNSEEN_END, "the end of a call was not seen"),
        (
            c::DOUBT_FREED_AGAIN,
            "a block was freed twice, or an allocation was not seen",
        ),
        (
            c::DOUBT_NESTED_CALL,
            "a nested allocator call was for another block",
        ),
        (c::DOUBT_LOST_MAPPING, "a mapping call could not be noted"),
        (
            c::DOUBT_GROWING_MAPPING,
            "a mapping can grow without a call (MAP_GROWSDOWN)",
        ),
    ];
    const _: () = assert!(c::DOUBTS.0 == 7, "a doubt is missing");
    let found = doubts.into_iter().find(|(known, _)| u64::from(known.0) == number);
    found.map(|(_, meaning)| meaning)
}

/// The `u64` at byte `at`.
fn word(words: &[u64], at: usize) -> u64 {
    words.get(at / WORD).copied().unwrap_or_default()
}

/// Calls `see` with the instance, the address and the value of each element of `table`.
fn each<const N: usize>(
    table: &HashTable,
    mut see: impl FnMut(u32, u64, [u64; N]),
) -> Result<(), libbpf_rs::Error> {
    table.walk(|Batch { keys, values }| {
        let keys = elements::<KEY_WORDS>(keys);
        for (key, value) in keys.zip(elements::<N>(values)) {
            let instance = word(&key, offset_of!(block_key, instance)).to_ne_bytes();
            let [a, b, c, d, ..] = instance;
            see(
                u32::from_ne_bytes([a, b, c, d]),
                word(&key, offset_of!(block_key, address)),
                value,
            );
        }
    })
}

/// Elements of `N` words each.
fn elements<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u64; N]> {
    let (words, _) = bytes.as_chunks();
    let (elements, _) = words.as_chunks();
    elements
        .iter()
        .map(|element: &[_; N]| element.map(u64::from_ne_bytes))
}
