//! How often the programs of probes ran, and for how long, by the kernel's own statistics.
//!
//! They are kept only while somebody asks for it, since each run takes some 40 ns longer then.

#![allow(unsafe_code, reason = "a function of libbpf that libbpf-rs does not have")]

use leak_report::model::ProbeProgram;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use libbpf_rs::ProgramMut;

use super::fdinfo;
use super::skeleton::MemleakProgs;
use crate::base::proc_fields::ProcFields;

/// How often a program ran while statistics were kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    /// Times.
    pub count: u64,
    /// In nanoseconds, all together.
    pub nanoseconds: u64,
}

impl Runs {
    /// What came since `before`.
    pub fn since(self, before: Self) -> Self {
        Self {
            count: self.count.saturating_sub(before.count),
            nanoseconds: self.nanoseconds.saturating_sub(before.nanoseconds),
        }
    }
}

/// By [`ProbeProgram`], in the order of [`ProbeProgram::ALL`].
pub type AllRuns = [Runs; ProbeProgram::ALL.len()];

/// The programs, for any thread to ask about.
#[derive(Debug)]
pub struct ProbePrograms([Option<OwnedFd>; ProbeProgram::ALL.len()]);

impl ProbePrograms {
    pub(super) fn of(programs: &MemleakProgs<'_>) -> io::Result<Self> {
        let descriptor = |program: &ProgramMut<'_>| -> io::Result<Option<OwnedFd>> {
            match program.autoload() {
                true => program.as_fd().try_clone_to_owned().map(Some),
                false => Ok(None),
            }
        };
        Ok(Self([
            descriptor(&programs.allocation_session)?,
            descriptor(&programs.allocation_entry)?,
            descriptor(&programs.allocation_return)?,
            descriptor(&programs.allocation_ret)?,
            descriptor(&programs.free_entry)?,
        ]))
    }

    /// How often each ran while statistics were kept; never, if it is not loaded.
    ///
    /// # Errors
    ///
    /// The kernel does not say it.
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

/// What the kernel says of one program.
pub(super) fn runs_of(program: impl AsFd) -> io::Result<Runs> {
    parse(&fdinfo::read(program)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse(fields: &ProcFields) -> Option<Runs> {
    Some(Runs {
        count: fields.number("run_cnt")?,
        nanoseconds: fields.number("run_time_ns")?,
    })
}

/// The kernel keeps statistics for as long as one of these is there.
#[derive(Debug)]
pub struct Statistics(#[allow(dead_code, reason = "held for its drop")] OwnedFd);

impl Statistics {
    /// From now on.
    ///
    /// # Errors
    ///
    /// The kernel lets only those with `CAP_SYS_ADMIN` do it.
    pub fn keep() -> io::Result<Self> {
        // SAFETY: a system call that takes a number and no memory of ours.
        let descriptor = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
        if descriptor < 0 {
            return Err(io::Error::from_raw_os_error(-descriptor));
        }
        // SAFETY: the kernel has just given this descriptor to us, and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two fields are found among the others; without one of them nothing is made up.
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
