//! Process slots and instances, as the kernel side keeps them (`struct process`, `struct instance`).
//!
//! An instance is what runs in a process between two execs; its number is never used again. Instances of traced
//! processes begin and end in the kernel, at fork, exec and exit; here the first ones begin, ended ones are read,
//! and slots are freed for others. What an instance's mappings are is published by `publish`.

use leak_report::model::InstanceEnd;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::memory::SharedWords;
use super::skeleton::types::{
    generation, instance, instance_end, instance_origin, limits, process, slot_state,
};

/// Words of one process record.
pub(super) const PROCESS_WORDS: usize = size_of::<process>() / size_of::<u64>();
/// Words of one instance record.
const INSTANCE_WORDS: usize = size_of::<instance>() / size_of::<u64>();

/// What a slot holds at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotState(pub(super) u64);

impl SlotState {
    /// A slot without an instance.
    #[allow(clippy::cast_lossless, reason = "in a constant")]
    const fn without_instance(state: slot_state) -> Self {
        Self(state.0 as u64)
    }

    const FREE: Self = Self::without_instance(slot_state::SLOT_FREE);
    const CLOSED: Self = Self::without_instance(slot_state::SLOT_CLOSED);

    /// A slot whose instance has just begun: nothing of it is published.
    pub(super) fn begun(instance: u32) -> Self {
        Self(u64::from(instance) << 32)
    }

    /// Whether there is an instance whose process has mapped what is its own.
    pub(super) fn has_mappings(self) -> bool {
        self.instance() != 0 && self.0 & 0xffff_ffff != u64::from(generation::GENERATION_ENDING.0)
    }

    /// The instance in it; 0 for none.
    pub fn instance(self) -> u32 {
        u32::try_from(self.0 >> 32).unwrap_or_default()
    }
}

/// How an instance began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It ran when tracing began.
    Attached,
    /// A traced process made it by fork.
    Forked,
    /// A traced process executed another program.
    Execed,
}

/// An instance, as it began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its number, from 1.
    pub number: u32,
    /// Its process id, in the initial pid namespace.
    pub pid: u32,
    /// Its slot, while it runs.
    pub slot: u32,
    /// The instance that it was forked from, or that it replaced in its process.
    pub parent: Option<u32>,
    /// For a forked one: its parent's epoch at that time.
    pub parent_epoch: u32,
    /// How it began.
    pub origin: Origin,
    /// Another thread than the first called `exec`; probes of the one process did not follow it.
    pub by_other_thread: bool,
    /// The name that its first thread had then.
    pub comm: String,
}

/// All slots and instances.
#[derive(Debug)]
pub struct Processes {
    pub(super) processes: SharedWords<AtomicU64>,
    pub(super) instances: SharedWords<AtomicU64>,
    pub(super) numbers: SharedWords<AtomicU64>,
    pub(super) owners: MapHandle,
    /// Slots in use, slot 0 included.
    pub(super) slot_count: u32,
}

impl Processes {
    /// Makes 1 the first instance's number.
    pub(super) fn reset(&self) {
        if let Some(next) = self.numbers.words().first() {
            next.store(1, Ordering::SeqCst);
        }
    }

    /// Begins the instance that runs in process `pid` now. `None` when all slots are taken.
    ///
    /// # Errors
    ///
    /// What the kernel says to its name; nothing has begun then.
    pub fn begin(&self, pid: u32) -> Result<Option<Instance>, libbpf_rs::Error> {
        let taken = SlotState::without_instance(slot_state::SLOT_TAKEN);
        let free = (1..self.slot_count).find(|&slot| self.exchange(slot, SlotState::FREE, taken));
        let (Some(slot), Some(number)) = (free, self.next_number()) else {
            return Ok(None);
        };
        let [
            _,
            borrowed,
            _,
            lender_and_pid,
            reload_requested,
            announced,
            published,
            changed_at,
        ] = self.process(slot)
        else {
            return Ok(None);
        };
        for word in [borrowed, reload_requested, announced, published, changed_at] {
            word.store(0, Ordering::SeqCst);
        }
        lender_and_pid.store(u64::from(pid) << 32, Ordering::SeqCst);
        if let [pid_and_slot, ..] = self.record(number) {
            pid_and_slot.store(u64::from(slot) << 32 | u64::from(pid), Ordering::SeqCst);
        }
        self.exchange(slot, taken, SlotState::begun(number));
        let owner = u64::from(number) << 32 | u64::from(slot);
        self.owners
            .update(&pid.to_ne_bytes(), &owner.to_ne_bytes(), MapFlags::ANY)?;
        Ok(Some(Instance {
            number,
            pid,
            slot,
            parent: None,
            parent_epoch: 0,
            origin: Origin::Attached,
            by_other_thread: false,
            comm: String::new(),
        }))
    }

    /// Ends an instance whose process has exited, if the kernel side has not: it exited before it was known there.
    pub fn end(&self, instance: &Instance) {
        let state = self.state(instance.slot);
        if state.instance() != instance.number || !self.exchange(instance.slot, state, SlotState::CLOSED) {
            return;
        }
        if let [_, _, origin_and_end, ..] = self.record(instance.number) {
            origin_and_end.fetch_or(u64::from(instance_end::INSTANCE_EXITED.0) << 8, Ordering::SeqCst);
        }
        // Gone already if the kernel side was faster after all.
        _ = self.owners.delete(&instance.pid.to_ne_bytes());
    }

    /// Slots whose instance has ended, which can be freed once no walk is in them.
    pub fn closed(&self) -> Vec<u32> {
        let slots = 1..self.slot_count;
        slots
            .filter(|&slot| self.state(slot) == SlotState::CLOSED)
            .collect()
    }

    /// Frees closed slots.
    pub fn free(&self, slots: &[u32]) {
        for &slot in slots {
            self.exchange(slot, SlotState::CLOSED, SlotState::FREE);
        }
    }

    /// What `slot` holds now.
    pub fn state(&self, slot: u32) -> SlotState {
        let word = self.process(slot).first();
        word.map_or(SlotState::FREE, |word| SlotState(word.load(Ordering::SeqCst)))
    }

    /// The number that the next instance will get.
    pub fn next(&self) -> u32 {
        let next = self
            .numbers
            .words()
            .first()
            .map_or(0, |next| next.load(Ordering::SeqCst));
        u32::try_from(next)
            .unwrap_or(u32::MAX)
            .min(limits::MAX_INSTANCES.0)
    }

    /// Instance `number`, once it has begun.
    pub fn instance(&self, number: u32) -> Option<Instance> {
        let words: [u64; INSTANCE_WORDS] = self.load(number)?;
        let halves =
            |word: u64| [word & 0xffff_ffff, word >> 32].map(|half| u32::try_from(half).unwrap_or_default());
        let ([pid, slot], [parent, parent_epoch]) = (halves(words[0]), halves(words[1]));
        let [origin, _, by_other_thread, ..] = words[2].to_le_bytes();
        let [a, b] = [words[3], words[4]].map(u64::to_le_bytes);
        (pid != 0).then(|| Instance {
            number,
            pid,
            slot,
            parent: (parent != 0).then_some(parent),
            parent_epoch,
            origin: origin_of(origin.into()),
            by_other_thread: by_other_thread != 0,
            comm: text(&[a, b].concat()),
        })
    }

    /// How instance `number` ended, if it has.
    pub fn ended(&self, number: u32) -> Option<InstanceEnd> {
        let words: [u64; INSTANCE_WORDS] = self.load(number)?;
        let end = u32::from(words[2].to_le_bytes()[1]);
        [
            (instance_end::INSTANCE_EXITED, InstanceEnd::Exited),
            (instance_end::INSTANCE_EXECED, InstanceEnd::Execed),
        ]
        .into_iter()
        .find_map(|(known, meaning)| (known.0 == end).then_some(meaning))
    }

    fn load(&self, number: u32) -> Option<[u64; INSTANCE_WORDS]> {
        let record: &[AtomicU64; INSTANCE_WORDS] = self.record(number).try_into().ok()?;
        // The process id first: whoever sees it sees the rest.
        Some(record.each_ref().map(|word| word.load(Ordering::SeqCst)))
    }

    fn next_number(&self) -> Option<u32> {
        let number = self.numbers.words().first()?.fetch_add(1, Ordering::SeqCst);
        u32::try_from(number)
            .ok()
            .filter(|&number| number < limits::MAX_INSTANCES.0)
    }

    fn exchange(&self, slot: u32, from: SlotState, to: SlotState) -> bool {
        let state = self.process(slot).first();
        state.is_some_and(|state| {
            state
                .compare_exchange(from.0, to.0, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        })
    }

    fn process(&self, slot: u32) -> &[AtomicU64] {
        nth_record(&self.processes, PROCESS_WORDS, slot)
    }

    fn record(&self, number: u32) -> &[AtomicU64] {
        nth_record(&self.instances, INSTANCE_WORDS, number)
    }
}

/// Record `number` of an array of records of so many words; nothing when there is none.
pub(super) fn nth_record(array: &SharedWords<AtomicU64>, words: usize, number: u32) -> &[AtomicU64] {
    array
        .words()
        .chunks_exact(words)
        .nth(number as usize)
        .unwrap_or_default()
}

fn origin_of(number: u32) -> Origin {
    if number == instance_origin::ORIGIN_FORKED.0 {
        Origin::Forked
    } else if number == instance_origin::ORIGIN_EXECED.0 {
        Origin::Execed
    } else {
        Origin::Attached
    }
}

/// The text before the first null byte.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
