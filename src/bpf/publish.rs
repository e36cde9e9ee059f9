//! Publishing mapping lists: a walk uses the old list or the new one, entirely, and never a cached rule of
//! one with the other.
//!
//! Each process has two lists and two rule caches. The inactive pair is rewritten and made active; after a
//! grace period, no walk uses the pair that was active before.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use unwind_tables::addr::{Avma, Bias};
use unwind_tables::mapping::{Identity, Mapping, MappingKind};

use super::clock::monotonic_microseconds;
use super::memory::SharedWords;
use super::processes::{ProcessRecord, SlotState};
use super::sizes::Sizes;
use super::skeleton::types;
use super::skeleton::types::{cache_shape, generation as fixed, machine};

/// Bit of `reload_requested` that user space sets and resets independently of its answers to requests.
const JVM_BEGINS: u64 = types::reload_request::RELOAD_JVM_BEGINS.0 as u64;
/// Words of one mapping in the kernel's list.
const MAPPING_WORDS: usize = size_of::<types::mapping>() / size_of::<u64>();
/// Filler entry: starts beyond every address, so that a search never finds it.
const UNUSED: Mapping = Mapping {
    start: Avma::new(u64::MAX >> 1),
    end: Avma::new(0),
    bias: Bias::from_raw(0),
    image_at: 0,
    kind: MappingKind::Pending,
    identity: Identity::SETTLED,
};
/// Pending mapping of every address: the list of processes that have none of their own.
const NOTHING_KNOWN: Mapping = Mapping {
    start: Avma::new(0),
    end: Avma::new(1 << machine::ADDRESS_BITS.0),
    ..UNUSED
};

/// Mapping lists, rule caches and process records in the kernel.
#[derive(Debug)]
pub struct Publisher {
    pub(super) mappings: SharedWords<AtomicU64>,
    pub(super) caches: SharedWords<AtomicU64>,
    pub(super) processes: SharedWords<ProcessRecord>,
    pub(super) grace: MapHandle,
    pub(super) sizes: Sizes,
}

/// State before mappings are read. It keeps the result from being published for another instance, or as if it
/// contained later changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    state: SlotState,
    /// Number of changes that the loader had announced. The mappings that are read contain all of them,
    /// except the last if it is still in progress; its end is announced, too.
    changes: u64,
}

impl Reading {
    /// Instance whose mappings are read; 0 if there is none, or if its mappings are no longer its own.
    pub fn instance(self) -> u32 {
        if self.state.has_mappings() {
            self.state.instance()
        } else {
            0
        }
    }
}

/// Result of publishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// The list is active.
    Active {
        /// Mappings beyond the capacity of a list; walks find no mapping for code in them.
        left_out: usize,
        /// Time that the previous list was out of date: since the loader announced the last change. Wraps
        /// after about 71 minutes.
        since_change: Option<Duration>,
    },
    /// The instance whose mappings were read has ended, or has been published since: the list is not used.
    Superseded,
}

impl Publisher {
    /// Writes the list of processes that have none of their own, list 0.
    pub(super) fn reset(&self) {
        self.write_list(0, &[NOTHING_KNOWN]);
    }

    /// State of `slot`, to be taken before the mappings of its process are read.
    pub fn begin_reading(&self, slot: u32) -> Reading {
        let process = self.process(slot);
        // In this order: an instance that begins between the two loads has another state by the time of
        // `publish`.
        let state = process.map_or(SlotState(0), ProcessRecord::state);
        let changes = process.map_or(0, |process| process.changes_announced.load(Ordering::SeqCst));
        Reading { state, changes }
    }

    /// Makes `mappings`, in ascending order, the list of the instance that was in `slot` at `reading`.
    ///
    /// Stacks walked with the list get `epoch`.
    ///
    /// # Errors
    ///
    /// If the grace period could not be awaited; the list may be active, and must not be replaced again.
    pub fn publish(
        &self,
        slot: u32,
        reading: Reading,
        mappings: &[Mapping],
        epoch: u32,
    ) -> Result<Published, libbpf_rs::Error> {
        let Some(process) = self.process(slot) else {
            return Err(libbpf_rs::Error::from_raw_os_error(libc::EINVAL));
        };
        let seen = reading.state;
        if !seen.has_mappings() || process.state() != seen {
            return Ok(Published::Superseded);
        }
        let generation = next_generation(seen.0);
        let active_list = usize::from(generation & 1 == 1);
        let list = 2 * slot as usize + active_list;
        let is_first = seen == SlotState::begun(seen.instance());
        let has_epoch = |epoch: &AtomicU32| epoch.load(Ordering::SeqCst) != 0;
        if is_first && process.epochs.iter().any(has_epoch) {
            // A process that shared the memory of the instance that was replaced may still walk with one of
            // its lists.
            self.await_walks()?;
        }
        // Repeats since a child can meanwhile have borrowed from another child.
        let rewritten = |lender, list| lender == slot && list & 1 == generation & 1;
        while self.take_back(rewritten) {
            self.await_walks()?;
        }
        let left_out = self.write_list(list, mappings);
        self.clear_cache(list);
        process.epochs[active_list].store(epoch, Ordering::SeqCst);
        if !process.exchange(seen, SlotState(seen.0 >> 32 << 32 | generation)) {
            return Ok(Published::Superseded);
        }
        // After the list is active: a walk that finds no change pending must find a list with all changes.
        process.changes_published.store(reading.changes, Ordering::SeqCst);
        let changed_at = u32::try_from(process.changed_at.load(Ordering::SeqCst)).unwrap_or_default();
        let since = monotonic_microseconds().wrapping_sub(changed_at);
        if !is_first {
            self.await_walks()?;
        }
        process.reload_requested.fetch_and(JVM_BEGINS, Ordering::SeqCst);
        Ok(Published::Active {
            left_out,
            since_change: (changed_at > 0).then(|| Duration::from_micros(since.into())),
        })
    }

    /// Lets walks request a reload again, after one that found nothing new. Until something changes, walks
    /// that lack a table or mapping are not deferred, unless they end where code is mapped by now.
    pub fn answer_reload_in_vain(&self, slot: u32) {
        let in_vain = u64::from(types::reload_request::RELOAD_IN_VAIN.0);
        self.answer(slot, |state| state | in_vain);
    }

    /// Lets walks request saves again, after the ones requested were provided or are found to be unavailable.
    /// In the latter case, walks that lack saves are not deferred until something changes. The answer to
    /// reloads stays.
    pub fn answer_saves(&self, slot: u32, provided: bool) {
        let in_vain = u64::from(types::reload_request::RELOAD_SAVES_IN_VAIN.0);
        self.answer(slot, |state| match provided {
            true => state & !in_vain,
            false => state | in_vain,
        });
    }

    fn answer(&self, slot: u32, answered: impl Fn(u64) -> u64) {
        let requested = u64::from(types::reload_request::RELOAD_REQUESTED.0);
        if let Some(process) = self.process(slot) {
            let answered = |state| Some(answered(state & !requested));
            _ = process
                .reload_requested
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, answered);
        }
    }

    /// Enables or disables deferral of walks that end in generated code: enabled while a JVM starts up, whose
    /// code will be known soon.
    pub fn expect_jvm(&self, slot: u32, begins: bool) {
        if let Some(process) = self.process(slot) {
            match begins {
                true => process.reload_requested.fetch_or(JVM_BEGINS, Ordering::SeqCst),
                false => process.reload_requested.fetch_and(!JVM_BEGINS, Ordering::SeqCst),
            };
        }
    }

    /// Records that the active list equals `reading`, whether or not it was published for it. Returns whether
    /// it is still current: no change has been announced since.
    pub fn confirm(&self, slot: u32, reading: Reading) -> bool {
        let Some(process) = self.process(slot) else {
            return true;
        };
        if process.state().instance() != reading.instance() {
            return true;
        }
        process.changes_published.store(reading.changes, Ordering::SeqCst);
        process.changes_announced.load(Ordering::SeqCst) == reading.changes
    }

    /// Waits until no walk uses an inactive list, neither a replaced nor a borrowed one.
    pub(super) fn await_inactive_lists(&self) -> Result<(), libbpf_rs::Error> {
        // At least once, and until no list was borrowed in the meantime.
        let is_inactive = |lender, list| {
            let lender = self.process(lender);
            lender.is_none_or(|lender| lender.state() != SlotState(list))
        };
        loop {
            let any = self.take_back(is_inactive);
            self.await_walks()?;
            if !any {
                return Ok(());
            }
        }
    }

    /// Revokes borrowed lists for which `wanted` returns true, given the lender's slot and its state at the
    /// time. Returns whether there were any.
    fn take_back(&self, wanted: impl Fn(u32, u64) -> bool) -> bool {
        let mut any = false;
        for process in self.processes.words() {
            let lender = process.lender.load(Ordering::SeqCst);
            let list = process.borrowed.load(Ordering::SeqCst);
            if list != 0 && wanted(lender, list) {
                process.borrowed.store(0, Ordering::SeqCst);
                any = true;
            }
        }
        any
    }

    fn process(&self, slot: u32) -> Option<&ProcessRecord> {
        self.processes.words().get(slot as usize)
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
        let slots = 1 << cache_shape::CACHE_BITS.0;
        for slot in self.caches.words().iter().skip(list * slots).take(slots) {
            slot.store(0, Ordering::Relaxed);
        }
    }

    /// Waits until every walk that may have begun before the call has ended.
    ///
    /// An update of a map of maps returns only then (Linux commit 1ae80cf31938, `maybe_wait_bpf_programs`).
    pub fn await_walks(&self) -> Result<(), libbpf_rs::Error> {
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

/// Generation after that of `state`. Skips those with a fixed meaning, and always switches to the other list.
fn next_generation(state: u64) -> u64 {
    let next = (state & 0xffff_ffff) + 1;
    if next == u64::from(fixed::GENERATION_ENDING.0) {
        1
    } else {
        next
    }
}

/// Words of `struct mapping` of `bpf/shared.h`.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists alternate, and no generation has a fixed meaning.
    #[test]
    fn generations_alternate() {
        for (generation, next) in [
            (0, 1),
            (1, 2),
            (2, 3),
            (0xffff_fffd, 0xffff_fffe),
            (0xffff_fffe, 1),
        ] {
            assert_eq!(next_generation(7 << 32 | generation), next);
            assert_ne!(next & 1, generation & 1);
        }
    }
}
