//! Process slots and instances in the kernel side's arrays (`struct process`, `struct instance`).
//!
//! An instance is what runs in a process between two execs; its number is never reused. The kernel side
//! begins and ends instances of traced processes at fork, exec and exit. This module begins the first ones,
//! reads ended ones, and frees their slots. `publish` publishes the mappings of an instance.

use leak_report::model::InstanceEnd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::memory::{SharedWords, shared_record};
use super::skeleton::types::{
    generation, instance, instance_end, instance_origin, limits, numbers, process, slot_state,
};

shared_record! {
    /// Slot of a process.
    ProcessRecord = process {
        state: AtomicU64,
        borrowed: AtomicU64,
        epochs: [AtomicU32; 2],
        lender: AtomicU32,
        tgid: AtomicU32,
        reload_requested: AtomicU64,
        changes_announced: AtomicU64,
        changes_published: AtomicU64,
        changed_at: AtomicU64,
    }
}

shared_record! {
    InstanceRecord = instance {
        tgid: AtomicU32,
        slot: AtomicU32,
        parent: AtomicU32,
        parent_epoch: AtomicU32,
        origin: AtomicU8,
        end: AtomicU8,
        by_other_thread: AtomicU8,
        without_loader: AtomicU8,
        unused: AtomicU32,
        comm: [AtomicU8; 16],
    }
}

shared_record! {
    Numbers = numbers {
        next_instance: AtomicU64,
        members_changed: AtomicU64,
    }
}

/// State word of a slot: instance in the upper half, generation or a `slot_state` in the lower.
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

    /// State of a slot whose instance has just begun, with nothing published.
    pub(super) fn begun(instance: u32) -> Self {
        Self(u64::from(instance) << 32)
    }

    /// Returns whether the slot has an instance whose mappings are its own: it has not begun to end.
    pub(super) fn has_mappings(self) -> bool {
        self.instance() != 0 && self.0 & 0xffff_ffff != u64::from(generation::GENERATION_ENDING.0)
    }

    /// Instance in the slot; 0 for none.
    pub fn instance(self) -> u32 {
        u32::try_from(self.0 >> 32).unwrap_or_default()
    }
}

/// Origin of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Running when tracing began.
    Attached,
    /// Forked by a traced process.
    Forked,
    /// Started by `exec` in a traced process.
    Execed,
}

/// An instance, with the facts of its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Number, from 1.
    pub number: u32,
    /// Process id in the initial pid namespace.
    pub pid: u32,
    /// Slot, while it runs.
    pub slot: u32,
    /// Instance that it was forked from, or that it replaced by `exec`.
    pub parent: Option<u32>,
    /// Epoch of the parent at a fork.
    pub parent_epoch: u32,
    pub origin: Origin,
    /// True if a thread other than the first called `exec`: probes attached to this process did not follow
    /// it.
    pub by_other_thread: bool,
    /// True if it began by `exec` of a program without a loader, which has its allocator in its own file.
    pub without_loader: bool,
    /// Name of its first thread when it began.
    pub comm: String,
}

/// Ends of instances, readable on any thread.
#[derive(Clone, Debug)]
pub(crate) struct Endings(Arc<SharedWords<InstanceRecord>>);

impl Endings {
    /// Returns whether instance `number` has ended.
    pub(crate) fn has_ended(&self, number: u32) -> bool {
        let record = self.0.words().get(number as usize);
        record.is_some_and(|record| record.end.load(Ordering::SeqCst) != 0)
    }
}

/// All slots and instances, in memory shared with the kernel side.
#[derive(Debug)]
pub struct Processes {
    pub(super) processes: SharedWords<ProcessRecord>,
    pub(super) instances: Arc<SharedWords<InstanceRecord>>,
    pub(super) numbers: SharedWords<Numbers>,
    pub(super) owners: MapHandle,
    /// Number of slots, slot 0 included.
    pub(super) slot_count: u32,
}

impl Processes {
    /// Sets the first instance's number to 1.
    pub(super) fn reset(&self) {
        if let Some(numbers) = self.numbers.words().first() {
            numbers.next_instance.store(1, Ordering::SeqCst);
        }
    }

    /// Begins the instance that runs in process `pid` now. `None` if all slots or instance numbers are taken.
    ///
    /// # Errors
    ///
    /// If the process cannot be entered into `owners`; the instance must not be used then.
    pub fn begin(&self, pid: u32) -> Result<Option<Instance>, libbpf_rs::Error> {
        let taken = SlotState::without_instance(slot_state::SLOT_TAKEN);
        let free = (1..self.slot_count).find(|&slot| self.exchange(slot, SlotState::FREE, taken));
        let (Some(slot), Some(number)) = (free, self.next_number()) else {
            return Ok(None);
        };
        let (Some(process), Some(record)) = (self.process(slot), self.record(number)) else {
            return Ok(None);
        };
        for word in [
            &process.borrowed,
            &process.reload_requested,
            &process.changes_announced,
            &process.changes_published,
            &process.changed_at,
        ] {
            word.store(0, Ordering::SeqCst);
        }
        process.lender.store(0, Ordering::SeqCst);
        process.tgid.store(pid, Ordering::SeqCst);
        record.slot.store(slot, Ordering::SeqCst);
        record.tgid.store(pid, Ordering::SeqCst);
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
            without_loader: false,
            comm: String::new(),
        }))
    }

    /// Counts calls of process `pid` as those of an instance, whose memory it shares.
    ///
    /// # Errors
    ///
    /// If it cannot be entered into `owners`.
    pub fn lend(&self, pid: u32, instance: &Instance) -> Result<(), libbpf_rs::Error> {
        let owner = u64::from(instance.number) << 32 | u64::from(instance.slot);
        self.owners
            .update(&pid.to_ne_bytes(), &owner.to_ne_bytes(), MapFlags::ANY)
    }

    /// Returns whether a slot and an instance number are left.
    pub fn has_room(&self) -> bool {
        let is_free = |slot| self.state(slot) == SlotState::FREE;
        self.next() < limits::MAX_INSTANCES.0 && (1..self.slot_count).any(is_free)
    }

    /// Ends an instance that is no longer traced; does nothing if the kernel side has ended it.
    pub fn leave(&self, instance: &Instance) {
        self.end_as(instance, instance_end::INSTANCE_LEFT);
    }

    /// Ends an instance whose process has exited before the kernel side knew of it; does nothing if the
    /// kernel side has ended it.
    pub fn end(&self, instance: &Instance) {
        self.end_as(instance, instance_end::INSTANCE_EXITED);
    }

    fn end_as(&self, instance: &Instance, end: instance_end) {
        let state = self.state(instance.slot);
        if state.instance() != instance.number || !self.exchange(instance.slot, state, SlotState::CLOSED) {
            return;
        }
        if let Some(record) = self.record(instance.number) {
            let end = u8::try_from(end.0).unwrap_or_default();
            record.end.store(end, Ordering::SeqCst);
        }
        // The kernel side may have deleted it in the meantime.
        _ = self.owners.delete(&instance.pid.to_ne_bytes());
    }

    /// Ends of instances, to share with a thread.
    pub(crate) fn endings(&self) -> Endings {
        Endings(Arc::clone(&self.instances))
    }

    /// Requests an event for the next change among the selected processes.
    pub fn await_members(&self) {
        if let Some(numbers) = self.numbers.words().first() {
            numbers.members_changed.store(0, Ordering::SeqCst);
        }
    }

    /// Slots whose instance has ended, which can be freed once no walk uses them.
    pub fn closed(&self) -> Vec<u32> {
        let slots = 1..self.slot_count;
        slots
            .filter(|&slot| self.state(slot) == SlotState::CLOSED)
            .collect()
    }

    /// Frees closed slots whose lists no walk uses.
    pub fn free(&self, slots: &[u32]) {
        for &slot in slots {
            let process = self.process(slot).into_iter();
            for epoch in process.flat_map(|process| &process.epochs) {
                epoch.store(0, Ordering::SeqCst);
            }
            self.exchange(slot, SlotState::CLOSED, SlotState::FREE);
        }
    }

    pub fn state(&self, slot: u32) -> SlotState {
        self.process(slot).map_or(SlotState::FREE, ProcessRecord::state)
    }

    /// Number of the next instance.
    pub fn next(&self) -> u32 {
        let numbers = self.numbers.words().first();
        let next = numbers.map_or(0, |numbers| numbers.next_instance.load(Ordering::SeqCst));
        u32::try_from(next)
            .unwrap_or(u32::MAX)
            .min(limits::MAX_INSTANCES.0)
    }

    /// Instance `number`; `None` before it has begun.
    pub fn instance(&self, number: u32) -> Option<Instance> {
        let record = self.record(number)?;
        // First, since it is written last: if it is set, so are the other fields.
        let pid = record.tgid.load(Ordering::SeqCst);
        if pid == 0 {
            return None;
        }
        let parent = record.parent.load(Ordering::SeqCst);
        let comm = record.comm.each_ref().map(|byte| byte.load(Ordering::SeqCst));
        Some(Instance {
            number,
            pid,
            slot: record.slot.load(Ordering::SeqCst),
            parent: (parent != 0).then_some(parent),
            parent_epoch: record.parent_epoch.load(Ordering::SeqCst),
            origin: origin_of(record.origin.load(Ordering::SeqCst).into()),
            by_other_thread: record.by_other_thread.load(Ordering::SeqCst) != 0,
            without_loader: record.without_loader.load(Ordering::SeqCst) != 0,
            comm: text(&comm),
        })
    }

    /// End of instance `number`; `None` while it runs.
    pub fn ended(&self, number: u32) -> Option<InstanceEnd> {
        let end = self.record(number)?.end.load(Ordering::SeqCst);
        [
            (instance_end::INSTANCE_EXITED, InstanceEnd::Exited),
            (instance_end::INSTANCE_EXECED, InstanceEnd::Execed),
            (instance_end::INSTANCE_LEFT, InstanceEnd::Left),
            (instance_end::INSTANCE_OUT_OF_MEMORY, InstanceEnd::OutOfMemory),
        ]
        .into_iter()
        .find_map(|(known, meaning)| (known.0 == u32::from(end)).then_some(meaning))
    }

    fn next_number(&self) -> Option<u32> {
        let numbers = self.numbers.words().first()?;
        let number = numbers.next_instance.fetch_add(1, Ordering::SeqCst);
        u32::try_from(number)
            .ok()
            .filter(|&number| number < limits::MAX_INSTANCES.0)
    }

    fn exchange(&self, slot: u32, from: SlotState, to: SlotState) -> bool {
        let process = self.process(slot);
        process.is_some_and(|process| process.exchange(from, to))
    }

    fn process(&self, slot: u32) -> Option<&ProcessRecord> {
        self.processes.words().get(slot as usize)
    }

    fn record(&self, number: u32) -> Option<&InstanceRecord> {
        self.instances.words().get(number as usize)
    }
}

impl ProcessRecord {
    pub(super) fn state(&self) -> SlotState {
        SlotState(self.state.load(Ordering::SeqCst))
    }

    /// Changes the state if it is `from`; returns whether it was.
    pub(super) fn exchange(&self, from: SlotState, to: SlotState) -> bool {
        let exchanged = self
            .state
            .compare_exchange(from.0, to.0, Ordering::SeqCst, Ordering::SeqCst);
        exchanged.is_ok()
    }
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

/// Text before the first null byte.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
