//! The kernel side, as user space sees it: load, publish tables and mappings, attach, read.
//!
//! Skeleton types are named only here and in `collect`. Nothing here knows what a leak is.

mod apart;
mod attach;
mod batch;
#[cfg(test)]
mod budget;
mod calibration;
mod clock;
mod detach;
mod distance;
mod fdinfo;
mod kernel_trace;
mod layout;
mod load;
mod memory;
mod placement;
mod processes;
mod publish;
mod regions;
mod source;
#[cfg(test)]
mod stack_depth;
mod statistics;
mod tables;
mod telling;
mod tracepoints;
mod young;

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

use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_rs::{Link, MapCore, MapHandle, OpenObject, ProgramInput};

pub use apart::Refusal;
pub use attach::{AttachError, Attached, AttachedHook, CallEnd, Cookie, Hook, Probe, ProbeRole};
pub(crate) use batch::{Batch, HashTable};
pub use calibration::{Calibration, Traps};
pub(crate) use clock::monotonic_nanoseconds;
pub use detach::detach_at_once;
pub use distance::Distance;
pub(crate) use fdinfo::number;
pub use kernel_trace::{KernelAllocator, KernelMisses, KernelSettings, KernelTrace, Tracing};
pub use load::{AttachPath, Capacity, LoadError, Sampling, Settings, ShortWays, SizeFilter, Walk};
pub use memory::SharedWords;
pub use processes::{Instance, InstanceEnd, Origin, Processes, SlotState};
pub use publish::{Published, Publisher, Reading};
pub use regions::RegionWatch;
pub(crate) use skeleton::types;
pub use source::write_source;
pub use statistics::{AllRuns, ProbeProgram, ProbePrograms, Runs, Statistics};
pub use tables::{Stored, TableStore};
pub use telling::Telling;
pub use tracepoints::{KernelEvents, TracepointError};
pub(crate) use young::YoungBlocks;

/// Where libbpf keeps its object: made by the caller, outlives the [`Kernel`].
pub type Storage = MaybeUninit<OpenObject>;

/// The loaded kernel side.
pub struct Kernel<'obj> {
    skeleton: skeleton::MemleakSkel<'obj>,
    attach: AttachPath,
    /// Of `types::probed`.
    probed: SharedWords<AtomicU64>,
    /// Unwind tables.
    pub tables: TableStore,
    /// Mapping lists.
    pub publisher: Publisher,
    /// Process slots and instances.
    pub processes: Processes,
    /// What probes recorded, in place.
    pub(crate) recorded: Arc<Recorded>,
}

/// Arrays that probes write and `collect` reads.
pub(crate) struct Recorded {
    /// Of `types::stack_record`.
    pub(crate) stacks: SharedWords<AtomicU64>,
    /// Of `types::stack_totals`, by the same index.
    pub(crate) totals: SharedWords<AtomicU64>,
    /// Of `types::stack_variance`, by the same index; one of no meaning when nothing is estimated.
    pub(crate) variances: SharedWords<AtomicU64>,
    /// As the object was loaded; what amounts are by now is [`Recorded::sampling_now`].
    pub(crate) sampling: Sampling,
    pub(crate) distance: Distance,
    pub(crate) frames: SharedWords<AtomicU64>,
    /// Of `types::usage`.
    pub(crate) usage: SharedWords<AtomicU64>,
    pub(crate) stack_capacity: u32,
    pub(crate) counters: MapHandle,
    pub(crate) events: MapHandle,
    /// Of `types::region_event`; `None` where mapping calls are not followed.
    pub(crate) region_events: Option<MapHandle>,
    /// Of `types::call_event`; `None` where calls are not told.
    pub(crate) call_events: Option<MapHandle>,
    /// From `types::block_key` to `types::block`.
    pub(crate) blocks: HashTable,
    /// Blocks that are not in it.
    pub(crate) young: YoungBlocks,
}

impl Recorded {
    /// That of a loaded object. `regions`: whether it follows mapping calls; `calls`: what it tells of calls.
    fn of(
        maps: &skeleton::MemleakMaps<'_>,
        sizes: &load::Sizes,
        sampling: Sampling,
        regions: bool,
        calls: Telling,
    ) -> Result<Self, LoadError> {
        let region_events = regions.then(|| MapHandle::try_from(&maps.region_events));
        let call_events = (calls != Telling::Nothing).then(|| MapHandle::try_from(&maps.call_events));
        let recorded = Self {
            stacks: map_words(&maps.bss_stacks)?,
            totals: map_words(&maps.bss_totals)?,
            variances: map_words(&maps.bss_variance)?,
            sampling,
            distance: Distance::new(map_words(&maps.bss_distance)?),
            frames: map_words(&maps.bss_frames)?,
            usage: map_words(&maps.bss_usage)?,
            stack_capacity: sizes.stack_capacity,
            counters: MapHandle::try_from(&maps.counters)?,
            events: MapHandle::try_from(&maps.events)?,
            region_events: region_events.transpose()?,
            call_events: call_events.transpose()?,
            blocks: HashTable::new(MapHandle::try_from(&maps.blocks)?),
            young: YoungBlocks::new(MapHandle::try_from(&maps.bss_young)?).map_err(libbpf_rs::Error::from)?,
        };
        recorded.reserve_fixed_stacks();
        if let Sampling::Governed(first) = sampling {
            recorded.distance.set(first);
        }
        Ok(recorded)
    }

    /// Which allocations were recorded by now.
    pub(crate) fn sampling_now(&self) -> Sampling {
        match self.sampling {
            Sampling::Governed(_) => self.distance.sampling(),
            fixed @ (Sampling::All | Sampling::Calls(_) | Sampling::Bytes(_)) => fixed,
        }
    }

    /// The stack records with fixed meanings are in use from the start.
    fn reserve_fixed_stacks(&self) {
        if let Some(usage) = self.usage.words().first() {
            usage.store(types::limits::FIRST_STACK.0.into(), Ordering::SeqCst);
        }
    }
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
        publisher.reset();
        let processes = Processes {
            processes: map_words(&maps.bss_processes)?,
            instances: map_words(&maps.bss_instances)?,
            numbers: map_words(&maps.bss_numbers)?,
            owners: MapHandle::try_from(&maps.owners)?,
            slot_count: sizes.slots,
        };
        processes.reset();
        let Settings {
            sampling,
            regions,
            calls,
            ..
        } = *settings;
        let recorded = Arc::new(Recorded::of(maps, &sizes, sampling, regions, calls)?);
        let probed = map_words(&maps.bss_probed)?;
        let tables = TableStore::new(map_words(&maps.bss_tables)?);
        Ok(Self {
            skeleton,
            attach: settings.attach,
            probed,
            tables,
            publisher,
            processes,
            recorded,
        })
    }

    /// Marks all room for walks as taken, or as free.
    #[cfg(test)]
    pub(crate) fn mark_scratches(&self, taken: bool) {
        use libbpf_rs::MapFlags;
        let scratches = &self.skeleton.maps.scratches;
        let mut value = vec![0; scratches.value_size() as usize];
        value[..8].copy_from_slice(&u64::from(taken).to_ne_bytes());
        for number in 0..scratches.max_entries() {
            scratches
                .update(&number.to_ne_bytes(), &value, MapFlags::ANY)
                .expect("a scratch can be written");
        }
    }

    /// Begins to follow what fork, exec and exit do to the processes that are traced.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn watch(&self) -> Result<Watch, libbpf_rs::Error> {
        let programs = &self.skeleton.progs;
        let links = [
            programs.process_exit.attach()?,
            programs.process_exec.attach()?,
            programs.process_rename.attach()?,
            programs.process_fork.attach()?,
        ];
        Ok(Watch(links))
    }

    /// Takes out the blocks of ended instances. The totals of their stacks keep them.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn forget_ended(&self) -> Result<(), libbpf_rs::Error> {
        let program = &self.skeleton.progs.forget_blocks;
        program.test_run(ProgramInput::default()).map(drop)
    }

    /// Attaches all `probes` to process `pid`, or to all processes: all probes or none.
    ///
    /// # Errors
    ///
    /// The first probe that could not be attached.
    pub fn attach(&self, pid: Option<u32>, probes: &[Probe]) -> Result<Attached, AttachError> {
        self.note_modules(probes);
        attach::attach(&self.skeleton.progs, self.attach, pid, probes)
    }

    /// Says whether the functions that are probed are all of one module, before any of `probes` is hit.
    fn note_modules(&self, probes: &[Probe]) {
        const SEVERAL: u64 = u64::MAX;
        let Some(word) = self.probed.words().first() else {
            return;
        };
        for probe in probes {
            let module = u64::from(probe.cookie.module) + 1;
            let only = word.compare_exchange(0, module, Ordering::SeqCst, Ordering::SeqCst);
            if only.is_err_and(|known| known != module) {
                word.store(SEVERAL, Ordering::SeqCst);
            }
        }
    }

    /// The programs of probes, to ask what they take.
    ///
    /// # Errors
    ///
    /// No file descriptor is left.
    pub fn probe_programs(&self) -> io::Result<ProbePrograms> {
        ProbePrograms::of(&self.skeleton.progs)
    }

    /// Probes functions of this process as the target's are, to learn what traps take.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn calibration(&self) -> anyhow::Result<Calibration> {
        Calibration::attach(&self.skeleton.progs, self.attach)
    }

    /// Attaches to the hook that the loader of process `pid`, or of all processes, calls when mappings change.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn attach_hook(&self, pid: Option<u32>, hook: &Hook) -> Result<AttachedHook, AttachError> {
        attach::attach_hook(&self.skeleton.progs, self.attach, pid, hook)
    }
}

/// The programs that follow processes; dropping it ends that.
pub struct Watch(#[allow(dead_code, reason = "held for its drop")] [Link; 4]);

fn map_words<W: memory::Word>(map: &libbpf_rs::MapMut<'_>) -> Result<SharedWords<W>, LoadError> {
    let words = map.value_size() as usize / size_of::<W>();
    SharedWords::map(map, words).map_err(|error| {
        LoadError::Refused(libbpf_rs::Error::from_raw_os_error(
            error.raw_os_error().unwrap_or(libc::EIO),
        ))
    })
}
