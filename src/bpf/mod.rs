//! The kernel side, as user space sees it: load, publish tables and mappings, attach, read.
//!
//! Skeleton types are named only here and in `collect`. Nothing here knows what a leak is.

mod attach;
#[cfg(test)]
mod budget;
mod clock;
mod layout;
mod load;
mod memory;
mod publish;
mod tables;

#[allow(
    missing_docs,
    unreachable_pub,
    unsafe_code,
    unused_imports,
    clippy::all,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used
)]
mod skeleton {
    include!(concat!(env!("OUT_DIR"), "/memleak.skel.rs"));
}

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU64;

use libbpf_rs::{MapCore, MapFlags, MapHandle, OpenObject};

pub use attach::{AttachError, Attached, AttachedHook, Cookie, Hook, Probe, ProbeRole};
pub use load::{AttachPath, Capacity, LoadError, Settings, Walk};
pub use memory::SharedWords;
pub use publish::{Changes, Meaning, Published, Publisher};
pub(crate) use skeleton::types;
pub use tables::TableStore;

/// Where libbpf keeps its object: made by the caller, outlives the [`Kernel`].
pub type Storage = MaybeUninit<OpenObject>;

/// The loaded kernel side.
pub struct Kernel<'obj> {
    skeleton: skeleton::MemleakSkel<'obj>,
    attach: AttachPath,
    /// Unwind tables.
    pub tables: TableStore,
    /// Mapping lists.
    pub publisher: Publisher,
    /// What probes recorded, in place.
    pub(crate) recorded: Recorded,
}

/// Arrays that probes write and `collect` reads.
pub(crate) struct Recorded {
    /// Of `types::stack_record`.
    pub(crate) stacks: SharedWords<AtomicU64>,
    pub(crate) frames: SharedWords<AtomicU64>,
    /// Of `types::usage`.
    pub(crate) usage: SharedWords<AtomicU64>,
    pub(crate) stack_capacity: u32,
    pub(crate) counters: MapHandle,
    pub(crate) events: MapHandle,
}

impl<'obj> Kernel<'obj> {
    /// Loads the kernel side. Nothing is attached yet.
    ///
    /// # Errors
    ///
    /// [`LoadError`]; nothing stays loaded.
    pub fn load(storage: &'obj mut Storage, settings: &Settings) -> Result<Self, LoadError> {
        let load::Loaded { skeleton, sizes } = load::load(storage, settings)?;
        let maps = &skeleton.maps;
        let publisher = Publisher {
            mappings: map_words(&maps.bss_mappings)?,
            caches: map_words(&maps.bss_cache)?,
            processes: map_words(&maps.bss_processes)?,
            grace: MapHandle::try_from(&maps.grace)?,
            sizes,
        };
        let recorded = Recorded {
            stacks: map_words(&maps.bss_stacks)?,
            frames: map_words(&maps.bss_frames)?,
            usage: map_words(&maps.bss_usage)?,
            stack_capacity: sizes.stack_capacity,
            counters: MapHandle::try_from(&maps.counters)?,
            events: MapHandle::try_from(&maps.events)?,
        };
        let tables = TableStore::new(map_words(&maps.bss_tables)?);
        let kernel = Self {
            skeleton,
            attach: settings.attach,
            tables,
            publisher,
            recorded,
        };
        kernel.reserve_fixed_stacks();
        Ok(kernel)
    }

    /// The stack records with fixed meanings are in use from the start.
    fn reserve_fixed_stacks(&self) {
        if let Some(usage) = self.recorded.usage.words().first() {
            usage.store(
                types::limits::FIRST_STACK.0.into(),
                std::sync::atomic::Ordering::SeqCst,
            );
        }
    }

    /// Marks all room for walks as taken, or as free.
    #[cfg(test)]
    pub(crate) fn mark_scratches(&self, taken: bool) {
        let scratches = &self.skeleton.maps.scratches;
        let mut value = vec![0; scratches.value_size() as usize];
        value[..8].copy_from_slice(&u64::from(taken).to_ne_bytes());
        for number in 0..scratches.max_entries() {
            scratches
                .update(&number.to_ne_bytes(), &value, MapFlags::ANY)
                .expect("a scratch can be written");
        }
    }

    /// Makes process `pid` (its id in the initial pid namespace) process `slot`.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn add_process(&self, pid: u32, slot: u32) -> Result<(), libbpf_rs::Error> {
        let slots = &self.skeleton.maps.process_slots;
        slots.update(&pid.to_ne_bytes(), &slot.to_ne_bytes(), MapFlags::ANY)
    }

    /// Attaches all `probes` to process `pid`: all or none.
    ///
    /// # Errors
    ///
    /// The first probe that could not be attached.
    pub fn attach(&self, pid: i32, probes: &[Probe]) -> Result<Attached, AttachError> {
        attach::attach(&self.skeleton.progs, self.attach, pid, probes)
    }

    /// Attaches to the hook that process `pid`'s loader calls when mappings change.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn attach_hook(&self, pid: i32, hook: &Hook) -> Result<AttachedHook, AttachError> {
        attach::attach_hook(&self.skeleton.progs, self.attach, pid, hook)
    }
}

fn map_words<W: memory::Word>(map: &libbpf_rs::MapMut<'_>) -> Result<SharedWords<W>, LoadError> {
    let words = map.value_size() as usize / size_of::<W>();
    SharedWords::map(map, words).map_err(|error| {
        LoadError::Refused(libbpf_rs::Error::from_raw_os_error(
            error.raw_os_error().unwrap_or(libc::EIO),
        ))
    })
}
