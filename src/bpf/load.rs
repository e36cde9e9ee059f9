//! Opening, sizing and loading the BPF object. Deals with capacities and knobs, not with processes.

use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;

use leak_report::model::Sampling;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{OpenObject, ProgramAttachType};

use super::exceptions::Exceptions;
use super::load_error::LoadError;
use super::refused::explained;
use super::regions::choose_region_programs;
use super::settings::{AttachPath, Settings, Walk};
use super::sizes::{PythonSizes, Sizes};
use super::skeleton::types::{limits, translator_shape};
use super::skeleton::{MemleakSkel, MemleakSkelBuilder, OpenMemleakSkel, types};
use super::store::{set_array_size, set_store_knobs, store_maps};
use crate::base::pages;
use crate::process::translator;

/// Distinct stacks of the kernel's own walk, in benchmarks.
const KERNEL_STACKS: u32 = 1 << 16;

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
    knobs.stand_in_count = sizes.stand_ins;
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
