//! Loads and attaches the programs for mapping calls, and counts the calls that they missed.

use std::os::fd::AsFd;

use libbpf_rs::skel::OpenSkel;
use libbpf_rs::{ErrorKind, Link, ProgramInput, ProgramMut, TracepointCategory};

use super::call_hooks::{CallHooks, FUNCTION_PREFIX};
use super::collect::{Counters, counter};
use super::fdinfo::recursion_misses;
use super::kernel::Kernel;
use super::load_error::LoadError;
use super::settings::Settings;
use super::skeleton::OpenMemleakSkel;

/// Links of the programs for mapping calls, or for descriptors and writes; dropping it detaches them.
pub struct RegionWatch(#[allow(dead_code, reason = "held for its drop")] Vec<Link>);

/// Chooses the programs to load: those for mapping calls, by their sections, and the one for page faults. A
/// kernel may lack what other programs attach to.
pub(super) fn choose_region_programs(
    object: &mut OpenMemleakSkel<'_>,
    settings: &Settings,
) -> Result<(), LoadError> {
    let hooks = settings.regions.or(settings.frees);
    let (notes_frees, faults) = (settings.frees.is_some(), settings.faults.is_some());
    object.progs.page_fault.set_autoload(faults);
    let takes = settings.faults.map(|faults| faults.takes).unwrap_or_default();
    for program in [
        &mut object.progs.descriptor_call,
        &mut object.progs.socket_pair_call,
        &mut object.progs.pipe_call,
    ] {
        program.set_autoload(takes.descriptors);
    }
    object.progs.write_call.set_autoload(takes.writes);
    object
        .progs
        .waiting_regions
        .set_autoload(settings.regions.is_some());
    for mut program in object.open_object_mut().progs_mut() {
        let section = program.section().to_string_lossy().into_owned();
        let Some((of, moment, call)) = attach_point(&section) else {
            continue;
        };
        let is_wanted = match notes_frees {
            true => GIVE_MEMORY.contains(&(moment, call)),
            false => faults || call != ONLY_OF_FAULTS,
        };
        let is_loaded = hooks == Some(of) && is_wanted;
        program.set_autoload(is_loaded);
        if is_loaded && of == CallHooks::Functions {
            program.set_attach_target(0, Some(format!("{FUNCTION_PREFIX}{call}")))?;
        }
    }
    Ok(())
}

/// System call that is followed only for page faults: it discards pages, and changes no mapping.
const ONLY_OF_FAULTS: &str = "madvise";

/// Moment of a mapping call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Beginning,
    End,
}

/// Moments at which a process gets memory: all that notes of freed memory need.
const GIVE_MEMORY: [(Moment, &str); 3] = [
    (Moment::End, "mmap"),
    (Moment::End, "mremap"),
    (Moment::Beginning, "brk"),
];

/// Kind of attach point, moment and system call by the section of a program for mapping calls; `None` for
/// other programs.
fn attach_point(section: &str) -> Option<(CallHooks, Moment, &str)> {
    [
        ("fentry/", CallHooks::Functions, Moment::Beginning),
        ("fexit/", CallHooks::Functions, Moment::End),
        (
            "tp/syscalls/sys_enter_",
            CallHooks::Tracepoints,
            Moment::Beginning,
        ),
        ("tp/syscalls/sys_exit_", CallHooks::Tracepoints, Moment::End),
    ]
    .into_iter()
    .find_map(|(prefix, hooks, moment)| Some((hooks, moment, section.strip_prefix(prefix)?)))
}

/// System calls whose result is a new descriptor, which a kernel or a machine may lack.
const DESCRIPTOR_CALLS: [&str; 17] = [
    "open",
    "openat",
    "openat2",
    "creat",
    "socket",
    "accept",
    "accept4",
    "dup",
    "dup2",
    "dup3",
    "eventfd2",
    "epoll_create1",
    "timerfd_create",
    "signalfd4",
    "inotify_init1",
    "memfd_create",
    "pidfd_open",
];
/// System calls that make two descriptors, at the address that is the first argument.
const PIPE_CALLS: [&str; 2] = ["pipe", "pipe2"];
/// System calls that write to a file; the result are the bytes.
const WRITE_CALLS: [&str; 4] = ["write", "pwrite64", "writev", "pwritev"];

impl<'obj> Kernel<'obj> {
    /// Starts to trace the mapping calls of traced processes. Requires [`super::Settings::regions`] or
    /// [`super::Settings::frees`]. With [`super::Settings::faults`], also calls that discard pages.
    pub fn watch_regions(&self) -> Result<RegionWatch, libbpf_rs::Error> {
        let programs = self.region_programs();
        let links = programs.into_iter().map(|(program, _)| program.attach());
        links.collect::<Result<_, _>>().map(RegionWatch)
    }

    /// Starts to follow descriptors and writes, as far as [`super::FaultSettings::takes`] has them. While
    /// they are followed, every system call of every process is a little slower.
    pub fn watch_takes(&self) -> Result<RegionWatch, libbpf_rs::Error> {
        let programs = &self.skeleton.progs;
        let calls = [
            (&programs.descriptor_call, &DESCRIPTOR_CALLS[..]),
            (&programs.socket_pair_call, &["socketpair"]),
            (&programs.pipe_call, &PIPE_CALLS),
            (&programs.write_call, &WRITE_CALLS),
        ];
        let loaded = calls.into_iter().filter(|(program, _)| program.autoload());
        let each = loaded.flat_map(|(program, calls)| calls.iter().map(move |call| (program, call)));
        let links = each.map(|(program, call)| {
            let name = format!("sys_exit_{call}");
            program.attach_tracepoint(TracepointCategory::Syscalls, &name)
        });
        let attached = links.filter(|link| !matches!(link, Err(error) if is_missing(error)));
        attached.collect::<Result<_, _>>().map(RegionWatch)
    }

    /// Number of calls, also of other processes, that were missed because a program was preempted, or
    /// preempted another one, on the same CPU: the kernel then skips a program and counts that, for
    /// tracepoints since Linux 6.7. Calls that a second program saw, which `counters` has, are not included.
    pub fn missed_region_calls(&self, counters: &Counters) -> u64 {
        let missed = |program: &ProgramMut<'obj>| recursion_misses(program.as_fd());
        let programs = self.region_programs().into_iter();
        let first = programs.filter(|(_, is_second)| !is_second);
        let missed: u64 = first.map(|(program, _)| missed(program)).sum();
        missed.saturating_sub(counters.get(counter::COUNTER_NESTED_REGION_CALL))
    }

    /// Bytes in the queue of mapping calls that wait to be read, including those still being written.
    pub fn waiting_region_bytes(&self) -> Result<usize, libbpf_rs::Error> {
        let program = &self.skeleton.progs.waiting_regions;
        let bytes = program.test_run(ProgramInput::default())?.return_value;
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Loaded programs in the order in which they are attached, each with true if it is the second of a pair.
    /// Ends first: an end alone describes a call, a beginning alone does not. Of a pair, the second first:
    /// the kernel then runs it last.
    pub(super) fn region_programs(&self) -> Vec<(&ProgramMut<'obj>, bool)> {
        let programs = &self.skeleton.progs;
        let all = [
            (&programs.mmap_exit_nested, true),
            (&programs.mmap_exit, false),
            (&programs.munmap_exit_nested, true),
            (&programs.munmap_exit, false),
            (&programs.mremap_exit_nested, true),
            (&programs.mremap_exit, false),
            (&programs.brk_exit_nested, true),
            (&programs.brk_exit, false),
            (&programs.madvise_exit_nested, true),
            (&programs.madvise_exit, false),
            (&programs.mmap_entry_nested, true),
            (&programs.mmap_entry, false),
            (&programs.munmap_entry_nested, true),
            (&programs.munmap_entry, false),
            (&programs.mremap_entry_nested, true),
            (&programs.mremap_entry, false),
            (&programs.brk_entry_nested, true),
            (&programs.brk_entry, false),
            (&programs.madvise_entry_nested, true),
            (&programs.madvise_entry, false),
            (&programs.mmap_ends, false),
            (&programs.munmap_ends, false),
            (&programs.mremap_ends, false),
            (&programs.brk_ends, false),
            (&programs.madvise_ends, false),
            (&programs.mmap_begins, false),
            (&programs.munmap_begins, false),
            (&programs.mremap_begins, false),
            (&programs.brk_begins, false),
            (&programs.madvise_begins, false),
        ];
        all.into_iter()
            .filter(|(program, _)| program.autoload())
            .collect()
    }
}

/// Returns whether the kernel has no such tracepoint.
fn is_missing(error: &libbpf_rs::Error) -> bool {
    error.kind() == ErrorKind::NotFound
}
