//! Opening, sizing and loading the BPF object. Deals with capacities and knobs, not with processes.

use leak_report::model::{CallTrace, Sampling};
use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{OpenObject, ProgramAttachType};
use nix::errno::Errno;
use thiserror::Error;

use super::exceptions::Exceptions;
use super::refused::{RefusedProgram, errno_of, explained, release};
use super::regions::{CallHooks, choose_region_programs};
use super::skeleton::types::{limits, translator_shape};
use super::skeleton::{MemleakSkel, MemleakSkelBuilder, OpenMemleakSkel, types};
use super::store::{set_array_size, set_store_knobs, store_maps};
use crate::base::{memory_limit, open_files, pages};
use crate::process::translator;

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

/// Optimisations that do not change the result of a walk. All are on except in benchmarks and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastPaths {
    /// Caches rules by address.
    pub cache: bool,
    /// Reads the stack in large pieces.
    pub window: bool,
    /// Reuses a walk that started with the same registers.
    pub memo: bool,
    /// Repeats each walk without the fast paths and counts differences.
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

/// Capacities of the kernel side. Excess is counted as lost.
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
    /// Stand-ins: blocks of deferred walks that can be outstanding at once; at least 1.
    pub stand_ins: u32,
    /// Blocks live at once.
    pub blocks: u32,
}

impl Capacity {
    /// Maximum number of processes traced at once.
    pub const MAX_PROCESSES: u32 = limits::MAX_PROCESSES.0 - 1;
    /// Number of processes up to which each has room for many mappings.
    pub const FEW_PROCESSES: u32 = 63;
    /// Stack records with fixed meanings. A capacity of a power of two minus these wastes no memory.
    pub const FIXED_STACKS: u32 = limits::FIRST_STACK.0;
}

/// Sizes of allocations that are recorded, both bounds included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeFilter {
    pub min: u64,
    pub max: u64,
}

/// Settings for page faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultSettings {
    /// Index of page faults in the caller's function table.
    pub function: u8,
    /// Random number that the choice of pages depends on.
    pub seed: u64,
}

/// Everything that is fixed when the object is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub walk: Walk,
    /// Fast paths that are on.
    pub fast_paths: FastPaths,
    /// Way to attach probes.
    pub attach: AttachPath,
    /// Traces the children of traced processes, too.
    pub follow_fork: bool,
    /// Reports processes that may belong to the selected ones now, or no longer.
    pub follow_members: bool,
    /// Hooks by which mapping calls are traced; `None` if they are not.
    pub regions: Option<CallHooks>,
    /// Hooks by which mapping calls are followed for notes of freed memory; `None` if none are made. Not with
    /// [`Settings::regions`], and only if every block is recorded.
    pub frees: Option<CallHooks>,
    /// Traces page faults; needs [`Settings::regions`].
    pub faults: Option<FaultSettings>,
    /// Sizes that are recorded; `None` for all.
    pub sizes: Option<SizeFilter>,
    /// Sampling among allocations of these sizes.
    pub sampling: Sampling,
    /// Traces what processes announce by USDT probes instead of calls of allocators.
    pub announced: bool,
    /// True if calls can end on another thread than they began on.
    pub calls_move: bool,
    /// Stops a process that executes a program that may translate code; see
    /// [`continue_stopped`](super::continue_stopped).
    pub stops_translated: bool,
    /// True if probes can share events.
    pub shares_events: bool,
    /// Reads the frames of Python, where there are some.
    pub python: bool,
    /// Calls that are reported one by one.
    pub calls: CallTrace,
    /// Process that memleak has started: stopped when it executes another program.
    pub started: Option<u32>,
    /// Stops that process before it ends, too.
    pub holds_end: bool,
    pub capacity: Capacity,
}

#[derive(Debug, Error)]
pub enum LoadError {
    #[error("{name} of {value} is too large; the maximum is {max}")]
    Capacity {
        name: &'static str,
        value: u64,
        max: u64,
    },
    #[error("{0}")]
    Program(RefusedProgram),
    #[error("the kernel (Linux {release}) refused the map {name} ({errno:?}): it lacks a BPF feature that \
             memleak needs (docs/limits.md)",
        release = release())]
    Map { name: String, errno: Errno },
    #[error(
        "the kernel (Linux {release}) refused an array of {bytes} bytes ({errno:?}): before 6.0, arrays have at most 4 MiB \
         (docs/limits.md)",
        release = release()
    )]
    LargeArray { bytes: u32, errno: Errno },
    #[error("too many open files for BPF programs and maps{}", open_files::remedy())]
    OpenFiles,
    #[error(
        "there is not enough memory for BPF programs and maps{}",
        memory_limit::remedy()
    )]
    Memory,
    #[error("the kernel refused the BPF programs")]
    Refused(#[source] libbpf_rs::Error),
}

impl From<libbpf_rs::Error> for LoadError {
    fn from(error: libbpf_rs::Error) -> Self {
        match errno_of(&error) {
            Some(Errno::EMFILE) => Self::OpenFiles,
            Some(Errno::ENOMEM) => Self::Memory,
            Some(_) | None => Self::Refused(error),
        }
    }
}

/// Capacity of the frame store, per stack.
const FRAMES_PER_STACK: u32 = 64;
// The verifier follows offsets of up to 512 MiB into an array; all of these stay below.
/// Maximum number of words of unwind tables: 256 MiB.
const MAX_TABLE_WORDS: u32 = 1 << 26;
/// Maximum number of mappings of one process, and of all lists: 256 MiB.
const MAX_MAPPINGS: u32 = 1 << 14;
const MAX_MAPPING_ENTRIES: u32 = 1 << 22;
/// Maximum number of stack records: 256 MiB.
const MAX_STACKS: u32 = 1 << 22;
/// Maximum number of stored frames: 256 MiB.
const MAX_FRAME_ENTRIES: u32 = 1 << 25;

/// Walk memos, shared by all threads: about 3 MiB.
const MEMOS: u32 = 1 << 11;
/// Maximum and minimum number of places for young blocks, 64 bytes each. With fewer than the minimum, blocks
/// leave their place too soon.
const MAX_YOUNG: u32 = 1 << 15;
const MIN_YOUNG: u32 = 1 << 6;
/// One young place per this many blocks of capacity: enough that hardly any place is empty when the capacity
/// is used up.
const YOUNG_SHARE: u32 = 32;
/// Distinct stacks of the kernel's own walk, in benchmarks.
const KERNEL_STACKS: u32 = 1 << 16;

/// Records of code objects of Python, some 400 bytes each, and frames of all chains, 8 bytes each.
const PYTHON_CODES: u32 = 1 << 14;
const PYTHON_FRAMES: u32 = 1 << 20;
/// Words of all tables of lines: 4 MiB.
const PYTHON_LINES: u32 = 1 << 19;

/// Maximum number of freed blocks that are noted, some 100 bytes each.
const MAX_FREED: u32 = 1 << 22;

/// Size of the queue of mapping calls: about 100,000 of them.
const REGION_QUEUE_BYTES: u32 = 8 << 20;
/// Size of the queue with page faults: about 700,000 of them.
const FAULT_QUEUE_BYTES: u32 = 16 << 20;

/// A loaded object and the sizes of its arrays.
pub(super) struct Loaded<'obj> {
    pub(super) skeleton: MemleakSkel<'obj>,
    pub(super) sizes: Sizes,
}

/// Entries of the arrays; powers of two unless stated otherwise.
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
    /// Stack records whose freed blocks' ages are counted; 1 for none.
    pub(super) spans: u32,
    /// Places for young blocks; 1 if young blocks are not kept apart.
    pub(super) young: u32,
    pub(super) stacks: u32,
    /// Stack records that may be used, the fixed ones included; not a power of two.
    pub(super) stack_capacity: u32,
    /// Stand-ins, whose records follow these.
    pub(super) stand_ins: u32,
    /// Equal to `stacks`, or 1 when every allocation is recorded.
    pub(super) variances: u32,
    pub(super) frames: u32,
    /// Frames that may be used; not a power of two.
    pub(super) frame_capacity: u32,
    pub(super) python: PythonSizes,
}

/// Entries of the arrays for Python; powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PythonSizes {
    pub(super) codes: u32,
    pub(super) chains: u32,
    pub(super) frames: u32,
    pub(super) lines: u32,
}

impl PythonSizes {
    /// Sizes without Python frames.
    const NONE: Self = Self {
        codes: 1,
        chains: 1,
        frames: 1,
        lines: 1,
    };
    const ALL: Self = Self {
        codes: PYTHON_CODES,
        chains: types::python_limits::PYTHON_CHAINS.0,
        frames: PYTHON_FRAMES,
        lines: PYTHON_LINES,
    };
}

impl Sizes {
    pub(super) fn new(capacity: &Capacity, sampling: Sampling) -> Result<Self, LoadError> {
        let stack_capacity = capacity.stacks.saturating_add(limits::FIRST_STACK.0);
        let frame_capacity = capacity
            .stacks
            .saturating_mul(FRAMES_PER_STACK)
            .clamp(1, MAX_FRAME_ENTRIES);
        let slots = capacity.processes.saturating_add(1);
        let lists = 2 * power_of_two("number of processes", slots, limits::MAX_PROCESSES.0)?;
        let mappings = power_of_two("number of mappings", capacity.mappings, MAX_MAPPINGS)?;
        let records = stack_capacity.saturating_add(capacity.stand_ins);
        let stacks = power_of_two("number of stacks", records, MAX_STACKS)?;
        Ok(Self {
            table_words: power_of_two("table memory", capacity.table_words.max(64), MAX_TABLE_WORDS)?,
            mappings: mappings.min(MAX_MAPPING_ENTRIES / lists),
            slots,
            lists,
            memos: MEMOS,
            spans: 1,
            young: 1,
            stacks,
            stack_capacity,
            stand_ins: capacity.stand_ins,
            variances: if sampling == Sampling::All { 1 } else { stacks },
            frames: power_of_two("number of frames", frame_capacity, MAX_FRAME_ENTRIES)?,
            frame_capacity,
            python: PythonSizes::NONE,
        })
    }

    /// Keeps young blocks apart. Their places count towards `blocks`, and are so few that all are in use when
    /// the capacity is used up.
    fn keep_young(&mut self, blocks: u32) {
        let max = (blocks / YOUNG_SHARE).checked_ilog2();
        self.young = max.map_or(1, |bits| (1 << bits).min(MAX_YOUNG));
        if self.young < MIN_YOUNG {
            self.young = 1;
        }
    }

    /// Capacity of the block table, out of `blocks` in total.
    pub(super) fn table_blocks(&self, blocks: u32) -> u32 {
        match self.young {
            1 => blocks.max(1),
            young => blocks - young,
        }
    }

    pub(super) fn cache_slots(&self) -> u32 {
        self.lists << types::cache_shape::CACHE_BITS.0
    }
}

/// Opens the object, applies `settings` and then `exceptions`, and loads it. `storage` holds libbpf's object
/// and outlives it.
///
/// # Errors
///
/// [`LoadError`]; nothing stays loaded.
pub(super) fn load<'obj>(
    storage: &'obj mut MaybeUninit<OpenObject>,
    settings: &Settings,
    exceptions: &Exceptions,
) -> Result<Loaded<'obj>, LoadError> {
    let mut sizes = Sizes::new(&settings.capacity, settings.sampling)?;
    if settings.sampling == Sampling::All && settings.sizes.is_none() {
        sizes.keep_young(settings.capacity.blocks);
    }
    if settings.regions.is_none() {
        sizes.spans = sizes.stacks;
    }
    let reads_python = settings.python && matches!(settings.walk, Walk::Dwarf | Walk::Fp);
    if reads_python {
        sizes.python = PythonSizes::ALL;
    }
    let mut object = MemleakSkelBuilder::default().open(storage)?;
    choose_programs(&mut object, settings);
    choose_region_programs(&mut object, settings)?;
    if settings.frees.is_some() {
        let freed = settings.capacity.blocks.clamp(1, MAX_FREED);
        object.maps.freed_blocks.set_max_entries(freed)?;
    } else {
        object.maps.freed_blocks.set_autocreate(false)?;
        object.maps.taken_ranges.set_autocreate(false)?;
    }
    if settings.faults.is_some() {
        object.maps.region_events.set_max_entries(FAULT_QUEUE_BYTES)?;
    } else if settings.regions.is_some() {
        object.maps.region_events.set_max_entries(REGION_QUEUE_BYTES)?;
    }
    set_knobs(&mut object, settings, &sizes)?;
    store_maps!(object).set(&sizes, &settings.capacity, settings.calls)?;
    set_array_sizes(&mut object, &sizes)?;
    if reads_python {
        let walks = object.maps.scratches.max_entries();
        object.maps.python_walks.set_max_entries(walks)?;
        object
            .maps
            .python_code_numbers
            .set_max_entries(sizes.python.codes)?;
        object
            .maps
            .python_code_contents
            .set_max_entries(sizes.python.codes)?;
        object
            .maps
            .python_chain_numbers
            .set_max_entries(sizes.python.chains)?;
    }
    object.maps.stand_ins.set_max_entries(sizes.stand_ins.max(1))?;
    object.maps.sent_stacks.set_max_entries(sent_stacks()?)?;
    if settings.walk == Walk::Kernel {
        object.maps.kernel_stacks.set_max_entries(KERNEL_STACKS)?;
    } else {
        object.maps.kernel_stacks.set_autocreate(false)?;
    }
    exceptions.apply(object.open_object_mut())?;
    Ok(Loaded {
        skeleton: explained(|| object.load())?,
        sizes,
    })
}

/// Number of copies of stacks that the kernel side keeps to send only changes: one for each CPU, and some for
/// walks that are preempted.
fn sent_stacks() -> Result<u32, LoadError> {
    let cpus = u32::try_from(libbpf_rs::num_possible_cpus()?).unwrap_or(u32::MAX);
    let wanted = cpus.saturating_add(limits::SCRATCH_PER_CPU.0 - 1);
    Ok(wanted.min(types::deferral::SENT_STACKS.0))
}

/// Chooses the programs for blocks. Programs that will not be attached are not loaded, since the verifier
/// takes time for each.
fn choose_programs(object: &mut OpenMemleakSkel<'_>, settings: &Settings) {
    let attach = settings.attach;
    let programs = &mut object.progs;
    let session = attach == AttachPath::Session;
    let is_of_blocks = settings.regions.is_none();
    let announced = is_of_blocks && settings.announced;
    let probed = is_of_blocks && !announced;
    programs.usdt_allocation.set_autoload(announced);
    programs.usdt_free.set_autoload(announced);
    programs.allocation_session.set_autoload(session && probed);
    programs.allocation_return.set_autoload(!session && probed);
    programs.exit_hook.set_autoload(settings.holds_end);
    programs.python_code_end.set_autoload(settings.python);
    programs.cgroup_attach.set_autoload(settings.follow_members);
    programs.allocation_entry.set_autoload(probed);
    programs.free_entry.set_autoload(probed);
    programs.calibration_session.set_autoload(session);
    programs.calibration_return.set_autoload(!session);
    if attach != AttachPath::Perf {
        for program in [
            &mut programs.allocation_entry,
            &mut programs.allocation_return,
            &mut programs.free_entry,
            &mut programs.usdt_allocation,
            &mut programs.usdt_free,
            &mut programs.loader_hook,
            &mut programs.exit_hook,
            &mut programs.python_code_end,
            &mut programs.calibration_entry,
            &mut programs.calibration_return,
        ] {
            program.set_attach_type(ProgramAttachType::TraceUprobeMulti);
        }
    }
}

/// The beginning of a name as a number, as the kernel side reads it, and a mask of its bytes.
fn first_bytes(name: &[u8]) -> (u64, u64) {
    let (mut bytes, mut mask) = ([0; 8], [0; 8]);
    bytes.iter_mut().zip(name).for_each(|(to, byte)| *to = *byte);
    mask.iter_mut().zip(name).for_each(|(to, _)| *to = u8::MAX);
    (u64::from_ne_bytes(bytes), u64::from_ne_bytes(mask))
}

/// Inode of this process's pid namespace; 0 for the initial one, in which the kernel needs no translation.
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
    knobs.follow_members = settings.follow_members;
    knobs.pid_namespace = pid_namespace();
    knobs.started_process = settings.started.unwrap_or(0);
    knobs.notes_frees = settings.frees.is_some();
    knobs.page_shift = pages::bytes().trailing_zeros();
    knobs.calls_move = settings.calls_move;
    knobs.stops_translated = settings.stops_translated;
    let translators: [_; translator_shape::TRANSLATORS.0 as usize] =
        translator::COMMAND_NAMES.map(first_bytes);
    knobs.translator_names = translators.map(|(name, _)| name);
    knobs.translator_masks = translators.map(|(_, mask)| mask);
    knobs.events_are_shared = settings.shares_events;
    knobs.reads_python = sizes.python != PythonSizes::NONE;
    knobs.python_code_mask = sizes.python.codes - 1;
    knobs.python_chain_mask = sizes.python.chains - 1;
    knobs.python_frame_mask = sizes.python.frames - 1;
    knobs.python_frame_capacity = sizes.python.frames;
    knobs.python_line_mask = sizes.python.lines - 1;
    if let Some(faults) = settings.faults {
        knobs.traces_faults = true;
        knobs.fault_function = faults.function.into();
        knobs.page_seed = faults.seed;
    }
    set_store_knobs!(knobs, settings, sizes);
    if settings.announced {
        knobs.sampling = types::sampling::SAMPLE_PROVIDER.0;
    }
    knobs.slot_count = sizes.slots;
    knobs.table_mask = sizes.table_words - 1;
    knobs.mapping_bits = sizes.mappings.trailing_zeros();
    knobs.mapping_mask = sizes.lists * sizes.mappings - 1;
    knobs.cache_mask = sizes.cache_slots() - 1;
    knobs.memo_mask = sizes.memos - 1;
    Ok(())
}

/// Sets the sizes, in bytes, of the arrays that walks index through masks.
fn set_array_sizes(object: &mut OpenMemleakSkel<'_>, sizes: &Sizes) -> Result<(), LoadError> {
    let maps = &mut object.maps;
    maps.life_spans.set_max_entries(sizes.spans)?;
    let arrays = [
        (&mut maps.bss_tables, sizes.table_words, size_of::<u32>()),
        (
            &mut maps.bss_mappings,
            sizes.lists * sizes.mappings,
            size_of::<types::mapping>(),
        ),
        (&mut maps.bss_cache, sizes.cache_slots(), size_of::<u64>()),
        (&mut maps.bss_memos, sizes.memos, size_of::<types::memo>()),
        (
            &mut maps.bss_pycodes,
            sizes.python.codes,
            size_of::<types::python_code>(),
        ),
        (
            &mut maps.bss_pychains,
            sizes.python.chains,
            size_of::<types::python_chain>(),
        ),
        // A table of lines is written in one piece that may start at the last entry, and so is a chain.
        (
            &mut maps.bss_pylines,
            sizes.python.lines + types::python_limits::PYTHON_LINES_BYTES.0 / 8,
            size_of::<u64>(),
        ),
        (
            &mut maps.bss_pyframes,
            sizes.python.frames + types::python_limits::PYTHON_FRAMES.0,
            size_of::<u64>(),
        ),
    ];
    for (map, entries, entry_bytes) in arrays {
        set_array_size(map, entries, entry_bytes)?;
    }
    Ok(())
}

fn power_of_two(name: &'static str, value: u32, max: u32) -> Result<u32, LoadError> {
    value
        .checked_next_power_of_two()
        .filter(|&rounded| rounded <= max)
        .ok_or(LoadError::Capacity {
            name,
            value: value.into(),
            max: max.into(),
        })
}
