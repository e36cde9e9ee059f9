//! Publishing mapping lists: a walk sees the old list or the new one, whole, and never a rule of the one in
//! the other.
//!
//! Each process has two lists and two rule caches. The inactive pair is rewritten, then made active, then a
//! grace period is awaited, after which no walk uses the pair that was active before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use unwind_tables::addr::{Avma, Bias};
use unwind_tables::mapping::{Identity, Mapping, MappingKind};

use super::clock::monotonic_microseconds;
use super::load::Sizes;
use super::memory::SharedWords;
use super::processes::{PROCESS_WORDS, SlotState, nth_record};
use super::skeleton::types;
use super::skeleton::types::{cache_shape, generation as fixed, machine};

/// Words of one mapping in the kernel's list.
const MAPPING_WORDS: usize = size_of::<types::mapping>() / size_of::<u64>();
/// Starts beyond every address, so that a search never takes it.
const UNUSED: Mapping = Mapping {
    start: Avma::new(u64::MAX >> 1),
    end: Avma::new(0),
    bias: Bias::from_raw(0),
    image_at: 0,
    kind: MappingKind::Pending,
    identity: Identity::SETTLED,
};
/// Every address, of which nothing is known yet: the list of processes that have none.
const NOTHING_KNOWN: Mapping = Mapping {
    start: Avma::new(0),
    end: Avma::new(1 << machine::ADDRESS_BITS.0),
    ..UNUSED
};

/// The mapping lists, rule caches and process records in the kernel.
#[derive(Debug)]
pub struct Publisher {
    pub(super) mappings: SharedWords<AtomicU64>,
    pub(super) caches: SharedWords<AtomicU64>,
    pub(super) processes: SharedWords<AtomicU64>,
    pub(super) grace: MapHandle,
    pub(super) sizes: Sizes,
}

/// What is known before mappings are read: then what is read is not published for another instance, nor as if it
/// had later changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    state: SlotState,
    /// How many changes of the mappings the loader had announced. What is read has them all, but for the last if
    /// that is still under way; its end is announced too.
    changes: u64,
}

impl Reading {
    /// The instance whose mappings are read; 0 for none: there is none, or what is mapped is not its own any more.
    pub fn instance(self) -> u32 {
        if self.state.has_mappings() {
            self.state.instance()
        } else {
            0
        }
    }
}

/// What publishing did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Published {
    /// The list is in use.
    Active {
        /// Mappings that did not fit it; code in them is in no mapping as far as walks go.
        left_out: usize,
        /// For how long the list before was out of date: since the loader announced the last change, up to an
        /// hour.
        since_change: Option<Duration>,
    },
    /// The instance whose mappings they were has ended: nothing uses the list.
    Superseded,
}

impl Publisher {
    /// Fills the list of those who have none.
    pub(super) fn reset(&self) {
        self.write_list(0, &[NOTHING_KNOWN]);
    }

    /// To be called before the mappings of the process in `slot` are read.
    pub fn begin_reading(&self, slot: u32) -> Reading {
        match self.process(slot) {
            // In this order: an instance that began in between has another state by then.
            [state, _, _, _, _, announced, ..] => Reading {
                state: SlotState(state.load(Ordering::SeqCst)),
                changes: announced.load(Ordering::SeqCst),
            },
            _ => Reading {
                state: SlotState(0),
                changes: 0,
            },
        }
    }

    /// Makes `mappings`, in ascending order, the list of the instance that `slot` held when reading them began.
    ///
    /// Stacks walked by the list are of `epoch`.
    ///
    /// # Errors
    ///
    /// The grace period could not be awaited; the list is active, but must not be replaced again.
    pub fn publish(
        &self,
        slot: u32,
        reading: Reading,
        mappings: &[Mapping],
        epoch: u32,
    ) -> Result<Published, libbpf_rs::Error> {
        let [state, _, epochs, _, reload_requested, _, published, changed_at] = self.process(slot) else {
            return Err(libbpf_rs::Error::from_raw_os_error(libc::EINVAL));
        };
        let seen = reading.state;
        if !seen.has_mappings() || state.load(Ordering::SeqCst) != seen.0 {
            return Ok(Published::Superseded);
        }
        let generation = next_generation(seen.0);
        let active_list = usize::from(generation & 1 == 1);
        let list = 2 * slot as usize + active_list;
        let is_first = seen == SlotState::begun(seen.instance());
        if is_first {
            // Whoever shared the memory of the instance before may still walk by one of its lists.
            self.await_walks()?;
        }
        // A child can have borrowed from a child in the meantime, hence again.
        let rewritten = |lender, list| lender == u64::from(slot) && list & 1 == generation & 1;
        while self.take_back(rewritten) {
            self.await_walks()?;
        }
        let left_out = self.write_list(list, mappings);
        self.clear_cache(list);
        write_epoch(epochs, active_list, epoch);
        let next = seen.0 >> 32 << 32 | generation;
        let exchanged = state.compare_exchange(seen.0, next, Ordering::SeqCst, Ordering::SeqCst);
        if exchanged.is_err() {
            return Ok(Published::Superseded);
        }
        // After the list: a walk that finds no change pending must find the list that has them all.
        published.store(reading.changes, Ordering::SeqCst);
        let changed_at = u32::try_from(changed_at.load(Ordering::SeqCst)).unwrap_or_default();
        let since = monotonic_microseconds().wrapping_sub(changed_at);
        if !is_first {
            self.await_walks()?;
        }
        reload_requested.store(0, Ordering::SeqCst);
        Ok(Published::Active {
            left_out,
            since_change: (changed_at > 0).then(|| Duration::from_micros(since.into())),
        })
    }

    /// Lets walks ask for a reload again, when the last one found nothing new.
    pub fn accept_requests(&self, slot: u32) {
        if let [_, _, _, _, reload_requested, ..] = self.process(slot) {
            reload_requested.store(0, Ordering::SeqCst);
        }
    }

    /// Says that the active list is what was just read, whether or not it was published for that. Returns whether
    /// it still is: no more changes have been announced.
    pub fn confirm(&self, slot: u32, reading: Reading) -> bool {
        let [state, _, _, _, _, announced, published, _] = self.process(slot) else {
            return true;
        };
        if SlotState(state.load(Ordering::SeqCst)).instance() != reading.instance() {
            return true;
        }
        published.store(reading.changes, Ordering::SeqCst);
        announced.load(Ordering::SeqCst) == reading.changes
    }

    /// Waits until no walk uses a list that is not active: none that was replaced, and none that is borrowed.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub(super) fn await_inactive_lists(&self) -> Result<(), libbpf_rs::Error> {
        // Once at least, and until none was borrowed in the meantime.
        let is_inactive = |lender: u64, list| {
            let slot = u32::try_from(lender).unwrap_or_default();
            let state = self.process(slot).first();
            state.is_none_or(|state| state.load(Ordering::SeqCst) != list)
        };
        loop {
            let any = self.take_back(is_inactive);
            self.await_walks()?;
            if !any {
                return Ok(());
            }
        }
    }

    /// Takes back the lists that are `wanted`, given their lender and the state it had, from those who have borrowed
    /// them. Returns whether any had.
    fn take_back(&self, wanted: impl Fn(u64, u64) -> bool) -> bool {
        let mut any = false;
        for process in self.processes.words().chunks_exact(PROCESS_WORDS) {
            let [_, borrowed, _, lender_and_pid, ..] = process else {
                continue;
            };
            let lender = lender_and_pid.load(Ordering::SeqCst) & 0xffff_ffff;
            let list = borrowed.load(Ordering::SeqCst);
            if list != 0 && wanted(lender, list) {
                borrowed.store(0, Ordering::SeqCst);
                any = true;
            }
        }
        any
    }

    fn process(&self, slot: u32) -> &[AtomicU64] {
        nth_record(&self.processes, PROCESS_WORDS, slot)
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

    /// Waits until every walk that may have begun before has ended.
    ///
    /// An update of a map of maps returns only then (Linux commit 1ae80cf31938, `maybe_wait_bpf_programs`).
    ///
    /// # Errors
    ///
    /// What the kernel says.
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

/// Writes one of two epochs that are in one word.
fn write_epoch(epochs: &AtomicU64, list: usize, epoch: u32) {
    let (kept, shift) = if list == 0 {
        (0xffff_ffff << 32, 0)
    } else {
        (0xffff_ffff, 32)
    };
    let other = epochs.load(Ordering::SeqCst) & kept;
    epochs.store(other | u64::from(epoch) << shift, Ordering::SeqCst);
}

/// The generation after a state's: never one that has another meaning, and always of the other list.
fn next_generation(state: u64) -> u64 {
    let next = (state & 0xffff_ffff) + 1;
    if next == u64::from(fixed::GENERATION_ENDING.0) {
        1
    } else {
        next
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists alternate, and no generation is one of those with another meaning.
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
