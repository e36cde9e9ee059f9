//! Attaches the programs for mapping calls, and counts the calls that they missed.

use std::os::fd::AsFd;

use libbpf_rs::{Link, ProgramInput, ProgramMut};

use super::Kernel;
use super::fdinfo::recursion_misses;

/// Links of the programs for mapping calls; dropping it detaches them.
pub struct RegionWatch(#[allow(dead_code, reason = "held for its drop")] Vec<Link>);

impl<'obj> Kernel<'obj> {
    /// Starts to trace the mapping calls of traced processes. Requires [`super::Settings::regions`]. With
    /// [`super::Settings::faults`], also calls that discard pages.
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

    /// Bytes in the queue of mapping calls that wait to be read, including those still being written.
    pub fn waiting_region_bytes(&self) -> Result<usize, libbpf_rs::Error> {
        let program = &self.skeleton.progs.waiting_regions;
        let bytes = program.test_run(ProgramInput::default())?.return_value;
        Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Ends first: an end alone describes a call, a beginning alone does not.
    fn region_programs(&self) -> Vec<&ProgramMut<'obj>> {
        let programs = &self.skeleton.progs;
        let all = [
            &programs.mmap_ends,
            &programs.munmap_ends,
            &programs.mremap_ends,
            &programs.brk_ends,
            &programs.madvise_ends,
            &programs.mmap_begins,
            &programs.munmap_begins,
            &programs.mremap_begins,
            &programs.brk_begins,
            &programs.madvise_begins,
        ];
        all.into_iter().filter(|program| program.autoload()).collect()
    }
}
