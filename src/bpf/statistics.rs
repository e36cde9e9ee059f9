//! Run counts and run times of the probe programs, from the kernel's statistics.
//!
//! The kernel keeps them only on request, since each run then takes about 40 ns longer.

#![allow(unsafe_code, reason = "a function of libbpf that libbpf-rs does not have")]

use leak_report::model::ProbeProgram;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use libbpf_rs::ProgramMut;

use super::fdinfo;
use super::skeleton::MemleakProgs;
use crate::base::proc_fields::ProcFields;

/// Runs of a program while statistics were kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    pub count: u64,
    /// Total time of the runs.
    pub nanoseconds: u64,
}

impl Runs {
    /// Runs since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            count: self.count.saturating_sub(before.count),
            nanoseconds: self.nanoseconds.saturating_sub(before.nanoseconds),
        }
    }
}

/// Runs by [`ProbeProgram`], in the order of [`ProbeProgram::ALL`].
pub type AllRuns = [Runs; ProbeProgram::ALL.len()];

/// Descriptors of the probe programs, usable on any thread. [`ProbeProgram::Ret`] has none: it is a part of
/// another.
#[derive(Debug)]
pub struct ProbePrograms([Option<OwnedFd>; ProbeProgram::ALL.len()]);

impl ProbePrograms {
    /// Opens descriptors of the loaded programs. With USDT probes, their program for allocations counts as
    /// the entry program, since it, too, runs once for each allocation.
    pub(super) fn of(programs: &MemleakProgs<'_>) -> io::Result<Self> {
        let announced = programs.usdt_allocation.autoload();
        let (entry, free) = match announced {
            true => (&programs.usdt_allocation, &programs.usdt_free),
            false => (&programs.allocation_entry, &programs.free_entry),
        };
        let descriptor = |program: &ProgramMut<'_>| -> io::Result<Option<OwnedFd>> {
            match program.autoload() {
                true => program.as_fd().try_clone_to_owned().map(Some),
                false => Ok(None),
            }
        };
        Ok(Self([
            descriptor(&programs.allocation_session)?,
            descriptor(entry)?,
            descriptor(&programs.allocation_return)?,
            None,
            descriptor(free)?,
        ]))
    }

    /// Runs of each program while statistics were kept; 0 for one that has no descriptor or is not loaded.
    pub fn read(&self) -> io::Result<AllRuns> {
        let mut all = AllRuns::default();
        for (runs, descriptor) in all.iter_mut().zip(&self.0) {
            if let Some(descriptor) = descriptor {
                *runs = runs_of(descriptor)?;
            }
        }
        Ok(all)
    }
}

/// Runs of one program.
pub(super) fn runs_of(program: impl AsFd) -> io::Result<Runs> {
    parse(&fdinfo::read(program)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse(fields: &ProcFields) -> Option<Runs> {
    Some(Runs {
        count: fields.number("run_cnt")?,
        nanoseconds: fields.number("run_time_ns")?,
    })
}

/// Request for statistics: the kernel keeps them while at least one exists.
#[derive(Debug)]
pub struct Statistics(#[allow(dead_code, reason = "held for its drop")] OwnedFd);

impl Statistics {
    /// Starts statistics.
    ///
    /// # Errors
    ///
    /// Without `CAP_SYS_ADMIN`, the kernel refuses.
    pub fn keep() -> io::Result<Self> {
        // SAFETY: a system call that takes a number and no memory of ours.
        let descriptor = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if descriptor < 0 {
            return Err(io::Error::from_raw_os_error(-descriptor));
        }
        // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two fields are found among the others; if one is missing, the result is `None`.
    #[test]
    fn fields() {
        let parse = |text: &str| parse(&ProcFields::from(text.as_bytes()));
        let text = "prog_type:\t2\nrun_time_ns:\t1234\nrun_cnt:\t5\nrecursion_misses:\t0\n";
        let runs = Runs {
            count: 5,
            nanoseconds: 1234,
        };
        assert_eq!(parse(text), Some(runs));
        assert_eq!(parse("run_time_ns:\t1234\n"), None);
        assert_eq!(parse("run_time_ns:\tx\nrun_cnt:\t5\n"), None);
    }
}
