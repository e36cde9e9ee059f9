//! Opening, sizing and loading the BPF object. It knows capacities and knobs, nothing about processes.

use leak_report::model::{CallTrace, Sampling};
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use libbpf_rs::libbpf_sys::{BPF_F_MMAPABLE, bpf_map_create_opts};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapHandle, MapType, OpenMapMut, OpenObject, ProgramAttachType};
use thiserror::Error;

use super::call_trace;
use super::skeleton::types::limits;
use super::skeleton::{MemleakSkel, MemleakSkelBuilder, OpenMemleakSkel, types};

/// How stacks are walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Walk {
    /// By DWARF unwind tables; by frame pointer where there are none.
    Dwarf,
    /// By frame pointers only.
    Fp,
    /// Not at all; for benchmarks.
    #[value(hide = true)]
    Off,
    /// As the kernel does; for benchmarks.
    #[value(hide = true)]
    Kernel,
}

/// What only makes walks faster. All of it, but in benchmarks and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastPaths {
    /// Rules are remembered by address.
    pub cache: bool,
    /// The stack is read in large pieces.
    pub window: bool,
    /// Walks are remembered by the registers that they began with.
    pub memo: bool,
    /// Each walk is done again without these, and what differs is counted.
    pub checked: bool,
}

impl Default for FastPaths {
    fn default() -> Self {
        Self {
            cache: true,
            window: true,
            memo: true,
            checked: false,
        }
    }
}

/// How probes are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AttachPath {
    /// Session probes.
    Session,
    /// Multi-probe links.
    Multi,
    /// A perf event per probe.
    Perf,
}

impl AttachPath {
    /// All paths, the cheapest first.
    pub const ALL: [Self; 3] = [Self::Session, Self::Multi, Self::Perf];
}

/// How much the kernel side can hold. Beyond each, loss is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Words of unwind tables; rounded up to a power of two.
    pub table_words: u32,
    /// Executable mappings of one process; rounded up to a power of two.
    pub mappings: u32,
    /// Processes traced at once, at most [`Capacity::MAX_PROCESSES`].
    pub processes: u32,
    /// Distinct stacks.
    pub stacks: u32,
    /// Blocks live at once.
    pub blocks: u32,
}

impl Capacity {
    /// The most processes that can be traced at once.
    pub const MAX_PROCESSES: u32 = limits::MAX_PROCESSES.0 - 1;
    /// Records beside those of stacks that can be stored: room for a power of two less these wastes none.
    pub const FIXED_STACKS: u32 = limits::FIRST_STACK.0;
}

/// Sizes of allocations that are recorded, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeFilter {
    /// The least.
    pub min: u64,
    /// The most.
    pub max: u64,
}

/// Everything that is fixed when the object is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How stacks are walked.
    pub walk: Walk,
    /// What makes walks faster.
    pub fast_paths: FastPaths,
    /// How probes are attached.
    pub attach: AttachPath,
    /// Whether the children of traced processes are traced too.
    pub follow_fork: bool,
    /// Whether mapping calls are followed.
    pub regions: bool,
    /// Sizes that are recorded, if not all are.
    pub sizes: Option<SizeFilter>,
    /// Which allocations of these sizes are recorded.
    pub sampling: Sampling,
    /// Which calls are told one by one.
    pub calls: CallTrace,
    /// How much the kernel side can hold.
    pub capacity: Capacity,
}

/// The object could not be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// A capacity is beyond what the kernel side can address.
    #[error("{what} of {value} is too large; the most is {most}")]
    Capacity {
        /// Which one.
        what: &'static str,
        /// What was asked for.
        value: u64,
        /// What there can be.
        most: u64,
    },
    /// The kernel refused.
    #[error("the kernel refused the BPF programs")]
    Refused(#[from] libbpf_rs::Error),
}

/// Frames that the frame store holds for each stack there is room for.
const FRAMES_PER_STACK: u32 = 64;
// The verifier follows offsets of up to 512 MiB into an array; all of these stay below.
/// The most words of unwind tables: 256 MiB.
const MAX_TABLE_WORDS: u32 = 1 << 26;
/// The most mappings of one process: 128 MiB for all processes.
const MAX_MAPPINGS: u32 = 1 << 14;
/// The most stack records: 256 MiB.
const MAX_STACKS: u32 = 1 << 22;
/// The most stored frames: 256 MiB.
const MAX_FRAME_ENTRIES: u32 = 1 << 25;

/// Walks that are remembered at once, by all threads: some 3 MiB.
const MEMOS: u32 = 1 << 11;
/// The most places for young blocks, 64 bytes each, and the least: fewer hold nothing for long.
const MAX_YOUNG: u32 = 1 << 15;
const MIN_YOUNG: u32 = 1 << 6;
/// Of as many blocks one can be in a place for young ones. Enough that a place is hardly ever empty when all are in use.
const YOUNG_SHARE: u32 = 32;
/// Stacks that the kernel's own walk can tell apart, in benchmarks.
const KERNEL_STACKS: u32 = 1 << 16;

/// The queue of mapping calls: some 100,000 of them.
const REGION_QUEUE_BYTES: u32 = 8 << 20;

/// A loaded object and the sizes that its arrays got.
pub(super) struct Loaded<'obj> {
    pub(super) skeleton: MemleakSkel<'obj>,
    pub(super) sizes: Sizes,
}

/// Entries of the arrays, all powers of two but for those that say otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) table_words: u32,
    /// Mappings per list.
    pub(super) mappings: u32,
    /// Process slots, slot 0 included; not a power of two.
    pub(super) slots: u32,
    /// Mapping lists, two per slot.
    pub(super) lists: u32,
    pub(super) memos: u32,
    /// Places for young blocks; 1 where none are kept apart.
    pub(super) young: u32,
    pub(super) stacks: u32,
    /// Stacks that may be used, the fixed ones included; not a power of two.
    pub(super) stack_capacity: u32,
    /// As `stacks`, or 1 when nothing is estimated.
    pub(super) variances: u32,
    pub(super) frames: u32,
    /// Frames that may be used; not a power of two.
    pub(super) frame_capacity: u32,
}

impl Sizes {
    pub(super) fn new(capacity: &Capacity, sampling: Sampling) -> Result<Self, LoadError> {
        let stack_capacity = capacity.stacks.saturating_add(limits::FIRST_STACK.0);
        let frame_capacity = capacity
            .stacks
            .saturating_mul(FRAMES_PER_STACK)
            .clamp(1, MAX_FRAME_ENTRIES);
        let slots = capacity.processes.saturating_add(1);
        let stacks = power_of_two("number of stacks", stack_capacity, MAX_STACKS)?;
        Ok(Self {
            table_words: power_of_two("table memory", capacity.table_words.max(64), MAX_TABLE_WORDS)?,
            mappings: power_of_two("number of mappings", capacity.mappings, MAX_MAPPINGS)?,
            slots,
            memos: MEMOS,
            young: 1,
            lists: 2 * power_of_two("number of processes", slots, limits::MAX_PROCESSES.0)?,
            stacks,
            stack_capacity,
            variances: if sampling == Sampling::All { 1 } else { stacks },
            frames: power_of_two("number of frames", frame_capacity, MAX_FRAME_ENTRIES)?,
            frame_capacity,
        })
    }

    /// Sizes of the arrays that hold stacks.
    pub(super) fn set_stack_arrays(&self, object: &mut OpenMemleakSkel<'_>) -> Result<(), LoadError> {
        let maps = &mut object.maps;
        let (record, totals) = (size_of::<types::stack_record>(), size_of::<types::stack_totals>());
        set_array_size(&mut maps.bss_stacks, self.stacks, record)?;
        set_array_size(&mut maps.bss_totals, self.stacks, totals)?;
        let variance = size_of::<types::stack_variance>();
        set_array_size(&mut maps.bss_variance, self.variances, variance)?;
        // A stack's frames are copied in one piece that may start at the last entry.
        let frames = self.frames + limits::MAX_FRAMES.0;
        set_array_size(&mut maps.bss_frames, frames, size_of::<u64>())
    }

    /// Keeps young blocks apart where most blocks are recorded. They are a small share of `blocks`: when all are in use, so
    /// are their places.
    fn keep_young(&mut self, blocks: u32) {
        let most = (blocks / YOUNG_SHARE).checked_ilog2();
        self.young = most.map_or(1, |bits| (1 << bits).min(MAX_YOUNG));
        if self.young < MIN_YOUNG {
            self.young = 1;
        }
    }

    /// What the block table holds, of `blocks` in all.
    fn table_blocks(&self, blocks: u32) -> u32 {
        match self.young {
            1 => blocks.max(1),
            young => blocks - young,
        }
    }

    pub(super) fn cache_slots(&self) -> u32 {
        self.lists << types::cache_shape::CACHE_BITS.0
    }
}

/// Opens the object, applies `settings` and loads it. `storage` holds libbpf's object and outlives it.
///
/// # Errors
///
/// [`LoadError`]; nothing stays loaded.
pub(super) fn load<'obj>(
    storage: &'obj mut MaybeUninit<OpenObject>,
    settings: &Settings,
) -> Result<Loaded<'obj>, LoadError> {
    let mut sizes = Sizes::new(&settings.capacity, settings.sampling)?;
    if settings.sampling == Sampling::All && settings.sizes.is_none() {
        sizes.keep_young(settings.capacity.blocks);
    }
    let mut object = MemleakSkelBuilder::default().open(storage)?;
    choose_programs(&mut object, settings.attach);
    if settings.regions {
        object.maps.region_events.set_max_entries(REGION_QUEUE_BYTES)?;
    } else {
        leave_out_region_programs(&mut object);
    }
    set_knobs(&mut object, settings, &sizes)?;
    call_trace::set(settings.calls, &mut object, None)?;
    set_array_sizes(&mut object, &sizes)?;
    set_table_sizes(&mut object, &settings.capacity, &sizes)?;
    if settings.walk == Walk::Kernel {
        object.maps.kernel_stacks.set_max_entries(KERNEL_STACKS)?;
    } else {
        object.maps.kernel_stacks.set_autocreate(false)?;
    }
    Ok(Loaded {
        skeleton: object.load()?,
        sizes,
    })
}

fn choose_programs(object: &mut OpenMemleakSkel<'_>, attach: AttachPath) {
    let programs = &mut object.progs;
    let session = attach == AttachPath::Session;
    programs.allocation_session.set_autoload(session);
    programs.allocation_return.set_autoload(!session);
    programs.calibration_session.set_autoload(session);
    programs.calibration_return.set_autoload(!session);
    if attach != AttachPath::Perf {
        for program in [
            &mut programs.allocation_entry,
            &mut programs.allocation_return,
            &mut programs.allocation_ret,
            &mut programs.free_entry,
            &mut programs.loader_hook,
            &mut programs.calibration_entry,
            &mut programs.calibration_return,
        ] {
            program.set_attach_type(ProgramAttachType::TraceUprobeMulti);
        }
    }
}

/// The kernel need not have the functions that they are for.
fn leave_out_region_programs(object: &mut OpenMemleakSkel<'_>) {
    let programs = &mut object.progs;
    for program in [
        &mut programs.mmap_begins,
        &mut programs.mmap_ends,
        &mut programs.munmap_begins,
        &mut programs.munmap_ends,
        &mut programs.mremap_begins,
        &mut programs.mremap_ends,
        &mut programs.brk_begins,
        &mut programs.brk_ends,
        &mut programs.waiting_regions,
    ] {
        program.set_autoload(false);
    }
}

/// The pid namespace that our process ids are of; 0 for the initial one, in which the kernel counts by itself.
pub(super) fn pid_namespace() -> u32 {
    /// `PROC_PID_INIT_INO` of the kernel's `include/linux/proc_ns.h`.
    const INITIAL: u64 = 0xEFFF_FFFC;
    let inode = std::fs::metadata("/proc/self/ns/pid").map_or(INITIAL, |namespace| namespace.ino());
    let inode = Some(inode).filter(|&inode| inode != INITIAL);
    inode
        .and_then(|inode| u32::try_from(inode).ok())
        .unwrap_or_default()
}

fn set_knobs(object: &mut OpenMemleakSkel<'_>, settings: &Settings, sizes: &Sizes) -> Result<(), LoadError> {
    let missing = || libbpf_rs::Error::from_raw_os_error(libc::ENOENT);
    let knobs = object.maps.rodata_data.as_deref_mut().ok_or_else(missing)?;
    knobs.unwind_by_fp = settings.walk == Walk::Fp;
    knobs.unwind_off = settings.walk == Walk::Off;
    knobs.unwind_by_kernel = settings.walk == Walk::Kernel;
    knobs.walk_cache = settings.fast_paths.cache;
    knobs.walk_window = settings.fast_paths.window;
    knobs.walk_memo = settings.fast_paths.memo;
    knobs.check_walks = settings.fast_paths.checked;
    knobs.follow_fork = settings.follow_fork;
    knobs.pid_namespace = pid_namespace();
    choose_allocations(knobs, settings.sizes, settings.sampling);
    knobs.slot_count = sizes.slots;
    knobs.table_mask = sizes.table_words - 1;
    knobs.mapping_bits = sizes.mappings.trailing_zeros();
    knobs.mapping_mask = sizes.lists * sizes.mappings - 1;
    knobs.cache_mask = sizes.cache_slots() - 1;
    knobs.memo_mask = sizes.memos - 1;
    knobs.young_mask = sizes.young - 1;
    knobs.stack_capacity = sizes.stack_capacity;
    knobs.stack_mask = sizes.stacks - 1;
    knobs.variance_mask = sizes.variances - 1;
    knobs.frame_capacity = sizes.frame_capacity;
    knobs.frame_mask = sizes.frames - 1;
    Ok(())
}

/// Which allocations are recorded.
pub(super) fn choose_allocations(knobs: &mut types::rodata, sizes: Option<SizeFilter>, sampling: Sampling) {
    if let Some(SizeFilter { min, max }) = sizes {
        knobs.filter_sizes = true;
        (knobs.min_size, knobs.max_size) = (min, max);
    }
    (knobs.sampling, knobs.sampling_interval) = match sampling {
        Sampling::All => (types::sampling::SAMPLE_ALL.0, 1),
        Sampling::Calls(calls) => (
            types::sampling::SAMPLE_CALLS.0,
            calls.clamp(1, Sampling::MAX_CALLS),
        ),
        Sampling::Bytes(bytes) => (
            types::sampling::SAMPLE_BYTES.0,
            bytes.clamp(1, Sampling::MAX_BYTES),
        ),
        // The distance itself is set when the map is there.
        Sampling::Governed(_) => (types::sampling::SAMPLE_BYTES.0, 1),
    };
    knobs.governed = matches!(sampling, Sampling::Governed(_));
}

/// Sizes, in bytes, of the arrays that are reached through masks.
fn set_array_sizes(object: &mut OpenMemleakSkel<'_>, sizes: &Sizes) -> Result<(), LoadError> {
    let maps = &mut object.maps;
    let arrays = [
        (&mut maps.bss_tables, sizes.table_words, size_of::<u32>()),
        (
            &mut maps.bss_mappings,
            sizes.lists * sizes.mappings,
            size_of::<types::mapping>(),
        ),
        (&mut maps.bss_cache, sizes.cache_slots(), size_of::<u64>()),
        (&mut maps.bss_memos, sizes.memos, size_of::<types::memo>()),
        (&mut maps.bss_young, sizes.young, size_of::<types::young_block>()),
    ];
    for (map, entries, entry_bytes) in arrays {
        set_array_size(map, entries, entry_bytes)?;
    }
    sizes.set_stack_arrays(object)
}

fn set_array_size(map: &mut OpenMapMut<'_>, entries: u32, entry_bytes: usize) -> Result<(), LoadError> {
    let bytes = entries as usize * entry_bytes;
    let value_bytes = u32::try_from(bytes).map_err(|_| LoadError::Capacity {
        what: "array",
        value: bytes as u64,
        most: u32::MAX.into(),
    })?;
    map.set_value_size(value_bytes)?;
    map.reuse_fd(zeroed_array(map.name(), value_bytes)?.as_fd())?;
    Ok(())
}

/// An array of one value, which can be mapped. libbpf would make the same and then write as many zeros into it as it
/// has: for a hundred megabytes, a quarter of the time that loading takes.
fn zeroed_array(name: &OsStr, value_bytes: u32) -> Result<MapHandle, libbpf_rs::Error> {
    /// `BPF_OBJ_NAME_LEN` of the kernel's `include/uapi/linux/bpf.h`, with the end.
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

/// Numbers of elements of the hash tables and of the scratch array.
fn set_table_sizes(
    object: &mut OpenMemleakSkel<'_>,
    capacity: &Capacity,
    sizes: &Sizes,
) -> Result<(), LoadError> {
    let cpus = u32::try_from(libbpf_rs::num_possible_cpus()?).unwrap_or(u32::MAX);
    let maps = &mut object.maps;
    maps.blocks.set_max_entries(sizes.table_blocks(capacity.blocks))?;
    maps.stack_ids.set_max_entries(capacity.stacks.max(1))?;
    maps.scratches
        .set_max_entries(cpus.saturating_mul(limits::SCRATCH_PER_CPU.0))?;
    Ok(())
}

fn power_of_two(what: &'static str, value: u32, most: u32) -> Result<u32, LoadError> {
    value
        .checked_next_power_of_two()
        .filter(|&rounded| rounded <= most)
        .ok_or(LoadError::Capacity {
            what,
            value: value.into(),
            most: most.into(),
        })
}
