//! Programs of kernel mode, a separate object: loading, attaching, and counting missed events. Knows nothing
//! about processes.

#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::slice;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{Link, Object, ProgramMut};

use super::exceptions::Exceptions;
use super::fdinfo::recursion_misses;
use super::kernel::{Storage, next_of};
use super::kernel_skeleton::{KernelMemorySkel, KernelMemorySkelBuilder, OpenKernelMemorySkel};
use super::load::pid_namespace;
use super::load_error::LoadError;
use super::parts::Tolerance;
use super::refused::explained;
use super::settings::Capacity;
use super::settings::SizeFilter;
use super::sizes::Sizes;
use super::skeleton::types::limits;
use super::store::Recorded;
use super::store::{recorded, set_store_knobs, store_maps};
use super::tracepoints::{KernelEvents, SizeAt};
use leak_report::model::{CallTrace, Sampling};

/// Everything that is fixed when kernel mode is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSettings {
    /// Layouts of the kernel's allocation events.
    pub events: KernelEvents,
    /// Traces the per-CPU allocator, too.
    pub percpu: bool,
    /// Maximum number of distinct stacks.
    pub stacks: u32,
    /// Maximum number of outstanding blocks; their memory is allocated at load time.
    pub blocks: u32,
    /// Maximum number of frames per stack, as the kernel walks it.
    pub stack_limit: u32,
    /// Sizes that are recorded; `None` for all.
    pub sizes: Option<SizeFilter>,
    /// Sampling among allocations of these sizes.
    pub sampling: Sampling,
    /// Allocations and frees that are reported one by one, except those of this process.
    pub calls: CallTrace,
    /// Start and end of the code that interrupts enter; both 0 if unknown.
    pub interrupt_entries: (u64, u64),
}

/// The loaded programs of kernel mode.
pub struct KernelTrace<'obj> {
    skeleton: KernelMemorySkel<'obj>,
    /// Arrays and tables that the programs write.
    pub(crate) recorded: Recorded,
}

/// Links of the attached programs; dropping it detaches them.
pub struct Tracing {
    /// Links in the order in which they are detached.
    links: Vec<Link>,
}

impl Tracing {
    pub fn program_count(&self) -> usize {
        self.links.len()
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        // Allocations first: frees are then still seen while the rest is detached.
        self.links.drain(..).for_each(drop);
    }
}

/// Events that occurred while the same program was running on the same CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelMisses {
    pub allocations: u64,
    pub frees: u64,
}

/// Kind of events of a program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    Allocations,
    Frees,
}

/// A loaded program.
struct Row<'a, 'obj> {
    program: &'a ProgramMut<'obj>,
    about: About,
    /// True if it handles the events that the first program for the same event misses.
    second: bool,
}

impl<'obj> KernelTrace<'obj> {
    /// Loads kernel mode, leaving out optional programs that the kernel refuses; `tolerance` records which.
    /// Attaches nothing. Each attempt takes one of `storages`.
    ///
    /// # Errors
    ///
    /// [`LoadError`]; nothing stays loaded.
    pub fn load_tolerantly(
        storages: &mut slice::IterMut<'obj, Storage>,
        settings: &KernelSettings,
        tolerance: &mut Tolerance,
    ) -> Result<Self, LoadError> {
        tolerance.load(|tolerance| {
            let storage = next_of(storages)?;
            Self::load_but(storage, settings, &tolerance.exceptions())
        })
    }

    pub(super) fn load_but(
        storage: &'obj mut Storage,
        settings: &KernelSettings,
        exceptions: &Exceptions,
    ) -> Result<Self, LoadError> {
        let capacity = Capacity {
            table_words: 1,
            mappings: 1,
            processes: 0,
            stacks: settings.stacks,
            stand_ins: 0,
            blocks: settings.blocks,
        };
        let sizes = Sizes::new(&capacity, settings.sampling)?;
        let mut object = KernelMemorySkelBuilder::default().open(storage)?;
        choose_programs(&mut object, settings, exceptions)?;
        set_knobs(&mut object, settings, &sizes)?;
        store_maps!(object).set(&sizes, &capacity, settings.calls)?;
        // Preallocated: allocating memory for an element would itself be an allocation to record.
        object.maps.blocks.set_map_flags(0)?;
        exceptions.apply(object.open_object_mut())?;
        let skeleton = explained(|| object.load())?;
        let recorded = recorded!(skeleton.maps, &sizes, settings)?;
        Ok(Self { skeleton, recorded })
    }

    /// The loaded object.
    pub(super) fn object(&self) -> &Object {
        self.skeleton.object()
    }

    /// Attaches all programs, those for frees first.
    ///
    /// # Errors
    ///
    /// If a program cannot be attached; none stays attached.
    pub fn attach(&self) -> Result<Tracing, libbpf_rs::Error> {
        let mut rows = self.rows();
        // Frees first; of two programs for one event, first the one that covers for the other.
        rows.sort_by_key(|row| (row.about == About::Allocations, !row.second));
        let mut tracing = Tracing { links: Vec::new() };
        for row in rows {
            tracing.links.insert(0, row.program.attach()?);
        }
        Ok(tracing)
    }

    /// Events that the kernel skipped a program for, by its own count. For an event with two programs, only
    /// those that the first one missed.
    pub fn left_out(&self) -> KernelMisses {
        let of = |about| {
            let rows = self.rows().into_iter();
            let counted = rows.filter(|row| row.about == about && !row.second);
            counted
                .map(|row| recursion_misses(row.program.as_fd()))
                .fold(0, u64::saturating_add)
        };
        KernelMisses {
            allocations: of(About::Allocations),
            frees: of(About::Frees),
        }
    }

    /// Programs that are loaded.
    fn rows(&self) -> Vec<Row<'_, 'obj>> {
        let programs = &self.skeleton.progs;
        let allocations = [
            (&programs.kernel_kmalloc, false),
            (&programs.kernel_kmalloc_nested, true),
            (&programs.kernel_kmalloc_node, false),
            (&programs.kernel_kmalloc_node_nested, true),
            (&programs.kernel_cache_alloc, false),
            (&programs.kernel_cache_alloc_nested, true),
            (&programs.kernel_cache_alloc_node, false),
            (&programs.kernel_cache_alloc_node_nested, true),
            (&programs.kernel_page_alloc, false),
            (&programs.kernel_page_alloc_nested, true),
            (&programs.kernel_percpu_alloc, false),
            (&programs.kernel_percpu_alloc_nested, true),
            (&programs.kernel_bulk_alloc, false),
        ];
        let frees = [
            (&programs.kernel_kfree, false),
            (&programs.kernel_kfree_nested, true),
            (&programs.kernel_cache_free, false),
            (&programs.kernel_cache_free_nested, true),
            (&programs.kernel_page_free, false),
            (&programs.kernel_page_free_nested, true),
            (&programs.kernel_percpu_free, false),
            (&programs.kernel_percpu_free_nested, true),
            (&programs.kernel_bulk_free, false),
            (&programs.kernel_sheaf_free, false),
        ];
        let row = |about| {
            move |(program, second)| Row {
                program,
                about,
                second,
            }
        };
        let all = allocations
            .into_iter()
            .map(row(About::Allocations))
            .chain(frees.into_iter().map(row(About::Frees)));
        all.filter(|row| row.program.autoload()).collect()
    }
}

/// Selects the programs for which the kernel has the events.
fn choose_programs(
    object: &mut OpenKernelMemorySkel<'_>,
    settings: &KernelSettings,
    exceptions: &Exceptions,
) -> Result<(), LoadError> {
    let events = &settings.events;
    let percpu = settings.percpu && events.has_percpu();
    let (kmalloc_node, cache_alloc_node) = (events.kmalloc_node.is_some(), events.cache_alloc_node.is_some());
    let programs = &mut object.progs;
    for (exists, program) in [
        (kmalloc_node, &mut programs.kernel_kmalloc_node),
        (kmalloc_node, &mut programs.kernel_kmalloc_node_nested),
        (cache_alloc_node, &mut programs.kernel_cache_alloc_node),
        (cache_alloc_node, &mut programs.kernel_cache_alloc_node_nested),
        (percpu, &mut programs.kernel_percpu_alloc),
        (percpu, &mut programs.kernel_percpu_alloc_nested),
        (percpu, &mut programs.kernel_percpu_free),
        (percpu, &mut programs.kernel_percpu_free_nested),
    ] {
        program.set_autoload(exists);
    }
    for (function, program) in [
        (events.bulk_alloc, &mut programs.kernel_bulk_alloc),
        (events.bulk_free, &mut programs.kernel_bulk_free),
        (events.sheaf_free, &mut programs.kernel_sheaf_free),
    ] {
        let function = function.filter(|_| !exceptions.omits(program.name()));
        program.set_autoload(function.is_some());
        if let Some(function) = function {
            program.set_attach_target(0, Some(function.to_owned()))?;
        }
    }
    Ok(())
}

fn set_knobs(
    object: &mut OpenKernelMemorySkel<'_>,
    settings: &KernelSettings,
    sizes: &Sizes,
) -> Result<(), LoadError> {
    let missing = || libbpf_rs::Error::from_raw_os_error(libc::ENOENT);
    let knobs = object.maps.rodata_data.as_deref_mut().ok_or_else(missing)?;
    let events = &settings.events;
    let size_at = |event: Option<SizeAt>| event.map_or(0, SizeAt::number);
    knobs.kmalloc_size_at = events.kmalloc.number();
    knobs.kmalloc_node_size_at = size_at(events.kmalloc_node);
    knobs.cache_size_at = events.cache_alloc.number();
    knobs.cache_node_size_at = size_at(events.cache_alloc_node);
    knobs.percpu_has_caller = events.percpu_has_caller.unwrap_or(true);
    knobs.page_descriptor_bytes = match events.page_descriptor_bytes {
        bytes if bytes.is_power_of_two() => bytes,
        _ => 0,
    };
    knobs.kernel_stack_limit = settings.stack_limit.clamp(1, limits::MAX_FRAMES.0);
    (knobs.interrupt_entries_start, knobs.interrupt_entries_end) = settings.interrupt_entries;
    // In another pid namespace, the kernel's number for this process is unknown.
    if settings.calls != CallTrace::Off && pid_namespace() == 0 {
        knobs.call_trace_except = std::process::id();
    }
    set_store_knobs!(knobs, settings, sizes);
    Ok(())
}
