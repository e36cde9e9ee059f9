//! Settings and maps that every object has (`bpf/store/`): what is recorded, and which calls are reported.
//!
//! Each object has its own types for them; the macros here work with those of any object.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leak_report::model::{CallTrace, Sampling, Source};
use libbpf_rs::libbpf_sys::{BPF_F_MMAPABLE, bpf_map_create_opts};
use libbpf_rs::{MapCore, MapHandle, MapMut, MapType, OpenMapMut};
use nix::errno::Errno;

use super::batch::HashTable;
use super::block_facts::BlockFacts;
use super::distance::Distance;
use super::finished::FinishedStacks;
use super::load_error::LoadError;
use super::memory::{SharedWords, Word};
use super::python::Pythons;
use super::refused::errno_of;
use super::settings::Capacity;
use super::sizes::Sizes;
use super::skeleton::types;
use super::young::YoungBlocks;

/// Sets the settings of `bpf/store/store_config.h` in `$knobs`, an object's read-only data.
macro_rules! set_store_knobs {
    ($knobs:ident, $settings:expr, $sizes:expr) => {
        if let Some(only) = $settings.sizes {
            $knobs.filter_sizes = true;
            ($knobs.min_size, $knobs.max_size) = (only.min, only.max);
        }
        ($knobs.sampling, $knobs.sampling_interval) = $crate::bpf::store::sampling_knobs($settings.sampling);
        $knobs.governed = matches!($settings.sampling, leak_report::model::Sampling::Governed(_));
        $knobs.call_trace = $crate::bpf::store::call_trace_knob($settings.calls);
        $knobs.young_mask = $sizes.young - 1;
        $knobs.stack_capacity = $sizes.stack_capacity;
        $knobs.stack_mask = $sizes.stacks - 1;
        $knobs.variance_mask = $sizes.variances - 1;
        $knobs.frame_capacity = $sizes.frame_capacity;
        $knobs.frame_mask = $sizes.frames - 1;
    };
}
pub(super) use set_store_knobs;

/// Maps of `bpf/store/store_maps.h` of `$object`, which is not loaded yet.
macro_rules! store_maps {
    ($object:expr) => {
        $crate::bpf::store::StoreMaps {
            stacks: &mut $object.maps.bss_stacks,
            totals: &mut $object.maps.bss_totals,
            variances: &mut $object.maps.bss_variance,
            frames: &mut $object.maps.bss_frames,
            young: &mut $object.maps.bss_young,
            stack_ids: &mut $object.maps.stack_ids,
            blocks: &mut $object.maps.blocks,
            scratches: &mut $object.maps.scratches,
            call_events: &mut $object.maps.call_events,
        }
    };
}
pub(super) use store_maps;

/// Maps the arrays of a loaded object, as [`Recorded`].
macro_rules! recorded {
    ($maps:expr, $sizes:expr, $settings:expr) => {
        $crate::bpf::store::Recorded::of(
            $crate::bpf::store::LoadedMaps {
                stacks: &$maps.bss_stacks,
                totals: &$maps.bss_totals,
                variances: &$maps.bss_variance,
                distance: &$maps.bss_distance,
                frames: &$maps.bss_frames,
                usage: &$maps.bss_usage,
                young: &$maps.bss_young,
                blocks: &$maps.blocks,
                counters: &$maps.counters,
                call_events: &$maps.call_events,
            },
            $sizes,
            $settings.sampling,
            $settings.calls,
        )
    };
}
pub(super) use recorded;

/// Method and interval of sampling.
pub(super) fn sampling_knobs(sampling: Sampling) -> (u32, u64) {
    match sampling {
        Sampling::All => (types::sampling::SAMPLE_ALL.0, 1),
        Sampling::Calls(calls) => (
            types::sampling::SAMPLE_CALLS.0,
            calls.clamp(1, Sampling::MAX_CALLS),
        ),
        Sampling::Bytes(bytes) => (
            types::sampling::SAMPLE_BYTES.0,
            bytes.clamp(1, Sampling::MAX_BYTES),
        ),
        Sampling::Provider(_) => (types::sampling::SAMPLE_PROVIDER.0, 1),
        // The interval itself is set once the map exists.
        Sampling::Governed(_) => (types::sampling::SAMPLE_BYTES.0, 1),
    }
}

pub(super) fn call_trace_knob(calls: CallTrace) -> u32 {
    match calls {
        CallTrace::Off => types::call_trace::CALL_TRACE_OFF.0,
        CallTrace::Ends => types::call_trace::CALL_TRACE_ENDS.0,
        CallTrace::All => types::call_trace::CALL_TRACE_ALL.0,
    }
}

/// Maps that get their sizes before the object is loaded; see [`store_maps`].
pub(super) struct StoreMaps<'a, 'obj> {
    pub(super) stacks: &'a mut OpenMapMut<'obj>,
    pub(super) totals: &'a mut OpenMapMut<'obj>,
    pub(super) variances: &'a mut OpenMapMut<'obj>,
    pub(super) frames: &'a mut OpenMapMut<'obj>,
    pub(super) young: &'a mut OpenMapMut<'obj>,
    pub(super) stack_ids: &'a mut OpenMapMut<'obj>,
    pub(super) blocks: &'a mut OpenMapMut<'obj>,
    pub(super) scratches: &'a mut OpenMapMut<'obj>,
    pub(super) call_events: &'a mut OpenMapMut<'obj>,
}

impl StoreMaps<'_, '_> {
    /// Sets the maps' sizes; without `calls`, their queue is not created.
    pub(super) fn set(self, sizes: &Sizes, capacity: &Capacity, calls: CallTrace) -> Result<(), LoadError> {
        // A stack's frames are copied in one piece that may start at the last entry.
        let frames = sizes.frames + types::limits::MAX_FRAMES.0;
        for (map, entries, entry_bytes) in [
            (self.stacks, sizes.stacks, size_of::<types::stack_record>()),
            (self.totals, sizes.stacks, size_of::<types::stack_totals>()),
            (
                self.variances,
                sizes.variances,
                size_of::<types::stack_variance>(),
            ),
            (self.frames, frames, size_of::<u64>()),
            (self.young, sizes.young, size_of::<types::young_block>()),
        ] {
            set_array_size(map, entries, entry_bytes)?;
        }
        let cpus = u32::try_from(libbpf_rs::num_possible_cpus()?).unwrap_or(u32::MAX);
        self.scratches
            .set_max_entries(cpus.saturating_mul(types::limits::SCRATCH_PER_CPU.0))?;
        self.stack_ids.set_max_entries(capacity.stacks.max(1))?;
        self.blocks.set_max_entries(sizes.table_blocks(capacity.blocks))?;
        if calls == CallTrace::Off {
            self.call_events.set_autocreate(false)?;
        }
        Ok(())
    }
}

pub(super) fn set_array_size(
    map: &mut OpenMapMut<'_>,
    entries: u32,
    entry_bytes: usize,
) -> Result<(), LoadError> {
    let bytes = entries as usize * entry_bytes;
    let value_bytes = u32::try_from(bytes).map_err(|_| LoadError::Capacity {
        name: "array",
        value: bytes as u64,
        max: u32::MAX.into(),
    })?;
    map.set_value_size(value_bytes)?;
    map.reuse_fd(large_array(map.name(), value_bytes)?.as_fd())?;
    Ok(())
}

/// Checks that the kernel has arrays as large as those of traces.
///
/// # Errors
///
/// [`LoadError::LargeArray`], or another error where arrays are refused whatever their size.
pub fn check_large_arrays() -> Result<(), LoadError> {
    const BYTES: u32 = 8 << 20;
    large_array(OsStr::new("large"), BYTES).map(drop)
}

fn large_array(name: &OsStr, bytes: u32) -> Result<MapHandle, LoadError> {
    zeroed_array(name, bytes).map_err(|error| match errno_of(&error) {
        Some(errno @ Errno::E2BIG) => LoadError::LargeArray { bytes, errno },
        _ => error.into(),
    })
}

/// Creates a mappable array of one value. libbpf would create the same array and then fill it with zeros: for
/// 100 MB, a quarter of the loading time.
fn zeroed_array(name: &OsStr, value_bytes: u32) -> Result<MapHandle, libbpf_rs::Error> {
    /// `BPF_OBJ_NAME_LEN` of the kernel's `include/uapi/linux/bpf.h`, with the terminating null byte.
    const NAME_BYTES: usize = 16;
    let name = name.to_str().unwrap_or_default();
    let name = name.get(..NAME_BYTES - 1).unwrap_or(name);
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as u64,
        map_flags: BPF_F_MMAPABLE,
        ..Default::default()
    };
    MapHandle::create(MapType::Array, Some(name), 4, value_bytes, 1, &options)
}

/// Maps of a loaded object; see [`recorded`].
pub(super) struct LoadedMaps<'a, 'obj> {
    pub(super) stacks: &'a MapMut<'obj>,
    pub(super) totals: &'a MapMut<'obj>,
    pub(super) variances: &'a MapMut<'obj>,
    pub(super) distance: &'a MapMut<'obj>,
    pub(super) frames: &'a MapMut<'obj>,
    pub(super) usage: &'a MapMut<'obj>,
    pub(super) young: &'a MapMut<'obj>,
    pub(super) blocks: &'a MapMut<'obj>,
    pub(super) counters: &'a MapMut<'obj>,
    pub(super) call_events: &'a MapMut<'obj>,
}

/// Arrays and tables that probes write and `collect` reads.
pub(crate) struct Recorded {
    /// Array of `types::stack_record`.
    pub(crate) stacks: SharedWords<AtomicU64>,
    /// Array of `types::stack_totals`, with the indices of `stacks`.
    pub(crate) totals: SharedWords<AtomicU64>,
    /// Array of `types::stack_variance`, with the indices of `stacks`; meaningless when every allocation is
    /// recorded.
    pub(crate) variances: SharedWords<AtomicU64>,
    /// Sampling at load time; [`Recorded::sampling_now`] follows the governor.
    pub(crate) sampling: Sampling,
    pub(crate) source: Source,
    pub(crate) distance: Distance,
    pub(crate) frames: SharedWords<AtomicU64>,
    /// Array of `types::usage`.
    pub(crate) usage: SharedWords<AtomicU64>,
    pub(crate) stack_capacity: u32,
    pub(crate) counters: MapHandle,
    /// Queue of `types::call_event`; `None` where calls are not traced.
    pub(crate) call_events: Option<MapHandle>,
    /// Table from `types::block_key` to `types::block`.
    pub(crate) blocks: HashTable,
    /// Blocks that are not yet in `blocks`.
    pub(crate) young: YoungBlocks,
    /// Stacks that user space has found.
    finished: Mutex<FinishedStacks>,
    /// Facts about blocks beyond their amounts; `None` in kernel mode.
    pub(super) facts: Option<BlockFacts>,
    /// Python frames; `None` in kernel mode.
    pub(crate) pythons: Option<Pythons>,
}

impl Recorded {
    /// Maps the arrays of a loaded object.
    pub(super) fn of(
        maps: LoadedMaps<'_, '_>,
        sizes: &Sizes,
        sampling: Sampling,
        calls: CallTrace,
    ) -> Result<Self, LoadError> {
        let call_events = (calls != CallTrace::Off).then(|| MapHandle::try_from(maps.call_events));
        let recorded = Self {
            stacks: map_words(maps.stacks)?,
            totals: map_words(maps.totals)?,
            variances: map_words(maps.variances)?,
            sampling,
            source: Source::Uprobe,
            distance: Distance::new(map_words(maps.distance)?),
            frames: map_words(maps.frames)?,
            usage: map_words(maps.usage)?,
            stack_capacity: sizes.stack_capacity,
            counters: MapHandle::try_from(maps.counters)?,
            call_events: call_events.transpose()?,
            blocks: HashTable::new(MapHandle::try_from(maps.blocks)?),
            young: YoungBlocks::new(MapHandle::try_from(maps.young)?).map_err(libbpf_rs::Error::from)?,
            finished: Mutex::new(FinishedStacks::from(sizes.stacks)),
            facts: None,
            pythons: None,
        };
        recorded.reserve_fixed_stacks();
        if let Sampling::Governed(first) = sampling {
            recorded.distance.set(first);
        }
        Ok(recorded)
    }

    /// Sampling that applies to the amounts recorded so far.
    pub(crate) fn sampling_now(&self) -> Sampling {
        match self.sampling {
            Sampling::Governed(_) => self.distance.sampling(),
            fixed @ (Sampling::All | Sampling::Calls(_) | Sampling::Bytes(_) | Sampling::Provider(_)) => {
                fixed
            }
        }
    }

    /// Names of the threads that allocated, by their numbers.
    pub(crate) fn thread_names(&self) -> HashMap<u16, Arc<str>> {
        let facts = self.facts.as_ref();
        facts.map(BlockFacts::thread_names).unwrap_or_default()
    }

    pub(super) fn finished(&self) -> MutexGuard<'_, FinishedStacks> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the stack records with fixed meanings as used.
    fn reserve_fixed_stacks(&self) {
        if let Some(usage) = self.usage.words().first() {
            usage.store(types::limits::FIRST_STACK.0.into(), Ordering::SeqCst);
        }
    }
}

/// Maps an array into this process's memory.
pub(super) fn map_words<W: Word>(map: &MapMut<'_>) -> Result<SharedWords<W>, LoadError> {
    let words = map.value_size() as usize / size_of::<W>();
    SharedWords::map(map, words).map_err(|error| {
        LoadError::Refused(libbpf_rs::Error::from_raw_os_error(
            error.raw_os_error().unwrap_or(libc::EIO),
        ))
    })
}
