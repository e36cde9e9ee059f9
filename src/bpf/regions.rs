//! Attaches the programs for mapping calls, and counts the calls that they missed.

use std::os::fd::AsFd;

use libbpf_rs::{Link, ProgramInput, ProgramMut};

use super::Kernel;
use super::fdinfo::recursion_misses;
use super::types::region_event;

/// Bytes of one call in the queue, with the kernel's header of 8 bytes.
const QUEUED_BYTES: usize = size_of::<region_event>() + 8;

/// Links of the programs for mapping calls; dropping it detaches them.
pub struct RegionWatch(#[allow(dead_code, reason = "held for its drop")] Vec<Link>);

impl<'obj> Kernel<'obj> {
    /// Starts to trace the mapping calls of traced processes. Requires [`super::Settings::regions`].
    pub fn watch_regions(&self) -> Result<RegionWatch, libbpf_rs::Error> {
        let programs = self.region_programs();
        let links = programs.into_iter().map(|program| program.attach());
        links.collect::<Result<_, _>>().map(RegionWatch)
    }

    /// Number of calls, also of other processes, that were missed since the tracepoint preempted another program on the
    /// same CPU: the kernel skips a tracepoint's programs then, and counts that since Linux 6.7.
    pub fn missed_region_calls(&self) -> u64 {
        let missed = |program: &ProgramMut<'obj>| recursion_misses(program.as_fd());
        self.region_programs().into_iter().map(missed).sum()
    }

    /// Events in the queue of mapping calls that wait to be read, including those still being written.
    pub fn waiting_region_events(&self) -> Result<usize, libbpf_rs::Error> {
        let program = &self.skeleton.progs.waiting_regions;
        let bytes = program.test_run(ProgramInput::default())?.return_value;
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX) / QUEUED_BYTES)
    }

    /// Ends first: an end alone describes a call, a beginning alone does not.
    fn region_programs(&self) -> [&ProgramMut<'obj>; 8] {
        let programs = &self.skeleton.progs;
        [
            &programs.mmap_ends,
            &programs.munmap_ends,
            &programs.mremap_ends,
            &programs.brk_ends,
            &programs.mmap_begins,
            &programs.munmap_begins,
            &programs.mremap_begins,
            &programs.brk_begins,
        ]
    }
}
