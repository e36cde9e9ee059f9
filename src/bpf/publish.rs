//! Publishing mapping lists: a walk sees the old list or the new one, whole, and never a rule of the one in
//! the other.
//!
//! Each process has two lists and two rule caches. The inactive pair is rewritten, then made active, then a
//! grace period is awaited, after which no walk uses the pair that was active before.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use unwind_tables::addr::{Avma, Bias};
use unwind_tables::mapping::{Identity, Mapping, MappingKind};

use super::clock::monotonic_microseconds;
use super::load::Sizes;
use super::memory::SharedWords;
use super::skeleton::types;
use super::skeleton::types::limits;

/// Words of one mapping in the kernel's list.
const MAPPING_WORDS: usize = size_of::<types::mapping>() / size_of::<u64>();
/// Words of one process record.
const PROCESS_WORDS: usize = size_of::<types::process>() / size_of::<u32>();
/// Starts beyond every address, so that a search never takes it.
const UNUSED: Mapping = Mapping {
    start: Avma::new(u64::MAX >> 1),
    end: Avma::new(0),
    bias: Bias::from_raw(0),
    image_at: 0,
    kind: MappingKind::Pending,
    identity: Identity::SETTLED,
};

/// The mapping lists, rule caches and process records in the kernel.
#[derive(Debug)]
pub struct Publisher {
    pub(super) mappings: SharedWords<AtomicU64>,
    pub(super) caches: SharedWords<AtomicU64>,
    pub(super) processes: SharedWords<AtomicU32>,
    pub(super) grace: MapHandle,
    pub(super) sizes: Sizes,
}

/// How a new mapping list relates to the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Every address that meant some code still means it.
    Kept,
    /// Some address now means other code: stacks walked from here on are of a new epoch.
    Changed,
}

/// Changes of a process's mappings, as its loader announced them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changes(u32);

/// What publishing did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// The epoch of stacks walked from here on.
    pub epoch: u32,
    /// Mappings that did not fit the list; code in them is in no mapping as far as walks go.
    pub left_out: usize,
    /// For how long the list before was out of date: since the loader announced the last change, up to an hour.
    pub since_change: Option<Duration>,
}

impl Publisher {
    /// Makes `mappings`, in ascending order, the list of process `slot`. They have all of `changes`.
    ///
    /// # Errors
    ///
    /// The grace period could not be awaited; the list is active, but must not be replaced again.
    pub fn publish(
        &self,
        slot: u32,
        mappings: &[Mapping],
        meaning: Meaning,
        changes: Changes,
    ) -> Result<Published, libbpf_rs::Error> {
        let [generation, reload_requested, _, changes_published, changed_at] = self.process(slot) else {
            return Err(libbpf_rs::Error::from_raw_os_error(libc::EINVAL));
        };
        let old = generation.load(Ordering::Relaxed);
        let active_list = (old & 1) ^ 1;
        let epoch = (old >> 1) + u32::from(meaning == Meaning::Changed);
        let list = (2 * slot + active_list) as usize;
        let left_out = self.write_list(list, mappings);
        self.clear_cache(list);
        generation.store(epoch << 1 | active_list, Ordering::SeqCst);
        // After the list: a walk that finds no change pending must find the list that has them all.
        changes_published.store(changes.0, Ordering::SeqCst);
        let since = monotonic_microseconds().wrapping_sub(changed_at.load(Ordering::SeqCst));
        self.await_walks()?;
        reload_requested.store(0, Ordering::SeqCst);
        Ok(Published {
            epoch,
            left_out,
            since_change: (changes.0 > 0).then(|| Duration::from_micros(since.into())),
        })
    }

    /// Lets walks ask for a reload again, when the last one found nothing new.
    pub fn accept_requests(&self, slot: u32) {
        if let [_, reload_requested, ..] = self.process(slot) {
            reload_requested.store(0, Ordering::SeqCst);
        }
    }

    /// The changes of the mappings that the loader of process `slot` has announced. What is read after this has
    /// them all, but for the last if that is still under way; its end is announced too.
    pub fn changes(&self, slot: u32) -> Changes {
        match self.process(slot) {
            [_, _, announced, ..] => Changes(announced.load(Ordering::SeqCst)),
            _ => Changes(0),
        }
    }

    /// Says that the active list has these changes: the mappings were read again and are the same.
    pub fn confirm(&self, slot: u32, changes: Changes) {
        if let [_, _, _, changes_published, _] = self.process(slot) {
            changes_published.store(changes.0, Ordering::SeqCst);
        }
    }

    fn process(&self, slot: u32) -> &[AtomicU32] {
        self.processes
            .words()
            .chunks(PROCESS_WORDS)
            .nth(slot as usize)
            .unwrap_or_default()
    }

    fn write_list(&self, list: usize, mappings: &[Mapping]) -> usize {
        let capacity = self.sizes.mappings as usize;
        let entries = self
            .mappings
            .words()
            .chunks(MAPPING_WORDS)
            .skip(list * capacity)
            .take(capacity);
        let filled = mappings.iter().chain(std::iter::repeat(&UNUSED));
        for (entry, mapping) in entries.zip(filled) {
            for (word, value) in entry.iter().zip(mapping_words(mapping)) {
                word.store(value, Ordering::Relaxed);
            }
        }
        mappings.len().saturating_sub(capacity)
    }

    fn clear_cache(&self, list: usize) {
        let slots = 1 << limits::CACHE_BITS.0;
        for slot in self.caches.words().iter().skip(list * slots).take(slots) {
            slot.store(0, Ordering::Relaxed);
        }
    }

    /// Waits until every walk that may have begun before has ended.
    ///
    /// An update of a map of maps returns only then (Linux commit 1ae80cf31938, `maybe_wait_bpf_programs`).
    fn await_walks(&self) -> Result<(), libbpf_rs::Error> {
        let inner = MapHandle::create(
            MapType::Array,
            None::<&str>,
            4,
            4,
            1,
            &libbpf_rs::libbpf_sys::bpf_map_create_opts {
                sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as u64,
                ..Default::default()
            },
        )?;
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(&inner));
        self.grace
            .update(&0_u32.to_ne_bytes(), &descriptor.to_ne_bytes(), MapFlags::ANY)
    }
}

/// As `struct mapping` of `bpf/shared.h`.
fn mapping_words(mapping: &Mapping) -> [u64; MAPPING_WORDS] {
    let Identity {
        trust,
        checks: [first, second],
    } = mapping.identity;
    let kind = mapping.kind as u64;
    [
        mapping.start.get(),
        mapping.end.get(),
        mapping.bias.get(),
        u64::from(mapping.image_at) | kind << 32 | (trust as u64) << 40,
        first.at.get(),
        first.word,
        second.at.get(),
        second.word,
    ]
}
