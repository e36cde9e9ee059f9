//! Kernel mode's programs: loading, attaching and what they missed. It knows nothing of processes, and the programs for
//! processes are not loaded with it.

#[cfg(test)]
mod tests;

use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, ProgramMut};

use super::call_trace;
use super::fdinfo::recursion_misses;
use super::load::{LoadError, SizeFilter, Sizes, choose_allocations, pid_namespace};
use super::skeleton::types::{instance, limits};
use super::skeleton::{MemleakSkel, MemleakSkelBuilder, OpenMemleakSkel};
use super::tracepoints::{KernelEvents, SizeAt};
use super::{Capacity, Recorded, Storage};
use leak_report::model::{CallTrace, Sampling};

/// Everything that is fixed when kernel mode is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSettings {
    /// What the kernel has.
    pub events: KernelEvents,
    /// Whether the per-CPU allocator is traced too.
    pub percpu: bool,
    /// Whether objects that are allocated or freed together are to be seen, which the kernel may refuse.
    pub bulk: bool,
    /// Distinct stacks.
    pub stacks: u32,
    /// Blocks live at once; their memory is taken at once.
    pub blocks: u32,
    /// Frames of a stack that the kernel gives.
    pub stack_limit: u32,
    /// Sizes that are recorded, if not all are.
    pub sizes: Option<SizeFilter>,
    /// Which allocations of these sizes are recorded.
    pub sampling: Sampling,
    /// Which of them, and which frees, are told one by one. This program's own are not.
    pub calls: CallTrace,
    /// Where the code is that interrupts begin with; both 0 where it is not known.
    pub interrupt_entries: (u64, u64),
}

/// The loaded programs of kernel mode.
pub struct KernelTrace<'obj> {
    skeleton: MemleakSkel<'obj>,
    /// What they recorded, in place.
    pub(crate) recorded: Recorded,
}

/// The attached programs; dropping it detaches.
pub struct Tracing {
    /// In the order in which they are to be detached.
    links: Vec<Link>,
}

impl Tracing {
    /// How many programs are attached.
    pub fn program_count(&self) -> usize {
        self.links.len()
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        // Allocations first: what is freed while it goes on is then still seen.
        self.links.drain(..).for_each(drop);
    }
}

/// Events that came while the same program ran on the same CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelMisses {
    /// Of allocations.
    pub allocations: u64,
    /// Of frees.
    pub frees: u64,
}

/// What a program is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    Allocations,
    Frees,
}

/// A loaded program.
struct Row<'a, 'obj> {
    program: &'a ProgramMut<'obj>,
    about: About,
    /// It makes up for what the first program for its event misses.
    second: bool,
}

impl<'obj> KernelTrace<'obj> {
    /// Loads kernel mode. Nothing is attached yet.
    ///
    /// # Errors
    ///
    /// [`LoadError`]; nothing stays loaded.
    pub fn load(storage: &'obj mut Storage, settings: &KernelSettings) -> Result<Self, LoadError> {
        let sizes = Sizes::new(
            &Capacity {
                table_words: 1,
                mappings: 1,
                processes: 0,
                stacks: settings.stacks,
                blocks: settings.blocks,
            },
            settings.sampling,
        )?;
        let mut object = MemleakSkelBuilder::default().open(storage)?;
        choose_programs(&mut object, settings)?;
        set_knobs(&mut object, settings, &sizes)?;
        // In another namespace it is not known by which number the kernel knows this process.
        let own = (pid_namespace() == 0).then(std::process::id);
        call_trace::set(settings.calls, &mut object, own)?;
        set_sizes(&mut object, settings, &sizes)?;
        let skeleton = object.load()?;
        let recorded = Recorded::of(&skeleton.maps, &sizes, settings.sampling, false, settings.calls)?;
        Ok(Self { skeleton, recorded })
    }

    /// Attaches all programs, those for frees first.
    ///
    /// # Errors
    ///
    /// What the kernel says; nothing stays attached.
    pub fn attach(&self) -> Result<Tracing, libbpf_rs::Error> {
        let mut rows = self.rows();
        // Frees first; of two programs for one event, first the one that makes up for the other.
        rows.sort_by_key(|row| (row.about == About::Allocations, !row.second));
        let mut tracing = Tracing { links: Vec::new() };
        for row in rows {
            tracing.links.insert(0, row.program.attach()?);
        }
        Ok(tracing)
    }

    /// What the kernel counted of events at which a program was left out. Of those with two programs, those count at
    /// which the first was.
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

    /// The loaded programs.
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

/// Only those of kernel mode, for what the kernel has.
fn choose_programs(object: &mut OpenMemleakSkel<'_>, settings: &KernelSettings) -> Result<(), LoadError> {
    for mut program in object.open_object_mut().progs_mut() {
        program.set_autoload(false);
    }
    let events = &settings.events;
    let percpu = settings.percpu && events.has_percpu();
    let programs = &mut object.progs;
    for (exists, program) in [
        (true, &mut programs.kernel_kmalloc),
        (true, &mut programs.kernel_kmalloc_nested),
        (events.kmalloc_node.is_some(), &mut programs.kernel_kmalloc_node),
        (
            events.kmalloc_node.is_some(),
            &mut programs.kernel_kmalloc_node_nested,
        ),
        (true, &mut programs.kernel_cache_alloc),
        (true, &mut programs.kernel_cache_alloc_nested),
        (
            events.cache_alloc_node.is_some(),
            &mut programs.kernel_cache_alloc_node,
        ),
        (
            events.cache_alloc_node.is_some(),
            &mut programs.kernel_cache_alloc_node_nested,
        ),
        (true, &mut programs.kernel_kfree),
        (true, &mut programs.kernel_kfree_nested),
        (true, &mut programs.kernel_cache_free),
        (true, &mut programs.kernel_cache_free_nested),
        (true, &mut programs.kernel_page_alloc),
        (true, &mut programs.kernel_page_alloc_nested),
        (true, &mut programs.kernel_page_free),
        (true, &mut programs.kernel_page_free_nested),
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
        if let Some(function) = function.filter(|_| settings.bulk) {
            program.set_attach_target(0, Some(function.to_owned()))?;
            program.set_autoload(true);
        }
    }
    Ok(())
}

fn set_knobs(
    object: &mut OpenMemleakSkel<'_>,
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
    choose_allocations(knobs, settings.sizes, settings.sampling);
    knobs.variance_mask = sizes.variances - 1;
    knobs.stack_capacity = sizes.stack_capacity;
    knobs.stack_mask = sizes.stacks - 1;
    knobs.frame_capacity = sizes.frame_capacity;
    knobs.frame_mask = sizes.frames - 1;
    Ok(())
}

/// The arrays for processes and their tables stay as small as they can be.
fn set_sizes(
    object: &mut OpenMemleakSkel<'_>,
    settings: &KernelSettings,
    sizes: &Sizes,
) -> Result<(), LoadError> {
    sizes.set_stack_arrays(object)?;
    let maps = &mut object.maps;
    let one = u32::try_from(size_of::<instance>()).unwrap_or(u32::MAX);
    maps.bss_instances.set_value_size(one)?;
    let cpus = u32::try_from(libbpf_rs::num_possible_cpus()?).unwrap_or(u32::MAX);
    maps.scratches
        .set_max_entries(cpus.saturating_mul(limits::SCRATCH_PER_CPU.0))?;
    maps.stack_ids.set_max_entries(settings.stacks.max(1))?;
    maps.blocks.set_max_entries(settings.blocks.max(1))?;
    // Taking memory for a block would be an allocation to be recorded.
    maps.blocks.set_map_flags(0)?;
    maps.kernel_stacks.set_autocreate(false)?;
    Ok(())
}
