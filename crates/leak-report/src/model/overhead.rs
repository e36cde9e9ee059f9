//! Cost of tracing for the target, in CPU time.

use serde::{Deserialize, Serialize};
/// BPF program of a probe, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeProgram {
    /// Entry and return of allocation functions, in one program.
    Session,
    /// Entry of allocation functions: of all, or with session probes only of those that can throw.
    Entry,
    /// Return of allocation functions.
    Return,
    /// `ret` instructions of functions that can throw: the part of the program that handles returns.
    Ret,
    /// Entry of functions that free.
    Free,
}

impl ProbeProgram {
    /// All programs in numeric order.
    pub const ALL: [Self; 5] = [Self::Session, Self::Entry, Self::Return, Self::Ret, Self::Free];

    /// Name of the BPF program; the part for `ret`s has its own.
    pub fn name(self) -> &'static str {
        match self {
            Self::Session => "allocation_session",
            Self::Entry => "allocation_entry",
            Self::Return => "allocation_return",
            Self::Ret => "allocation_ret",
            Self::Free => "free_entry",
        }
    }
}

/// Cost of a trap in nanoseconds, without the BPF program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traps {
    /// Trap at an instruction that the kernel emulates.
    pub emulated: f64,
    /// Trap at an instruction that the kernel single-steps; `None` if that was not measured.
    pub stepped: Option<f64>,
    /// Additional cost of a return probe.
    pub returning: f64,
    /// Run time of an empty program according to the kernel's statistics.
    pub empty_program: f64,
}

/// Runs and run time of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgramTime {
    /// Number of runs, as far as known.
    pub runs: f64,
    /// Total run time in nanoseconds.
    pub nanoseconds: f64,
}

impl ProgramTime {
    /// Mean nanoseconds per run; 0 without runs.
    pub fn per_run(self) -> f64 {
        ratio(self.nanoseconds, self.runs)
    }
}

/// Cost of tracing in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Length of the period in seconds.
    pub seconds: f64,
    /// Entries of allocation functions, including nested calls.
    pub entries: f64,
    /// Run time of each program, indexed by [`ProbeProgram`].
    pub programs: [ProgramTime; ProbeProgram::ALL.len()],
    /// Entries into the kernel at a probe, on entry or return of a function.
    pub traps: f64,
    /// Nanoseconds spent on traps, without the programs.
    pub trap_nanoseconds: f64,
    /// Entries before the first window that contains any: the cost of these is not known yet. They count in
    /// `entries` and nowhere else.
    pub unmeasured: f64,
}

impl Spent {
    /// Nanoseconds of all programs.
    pub fn program_nanoseconds(&self) -> f64 {
        self.programs.iter().map(|program| program.nanoseconds).sum()
    }

    /// Cost as a share of one CPU.
    pub fn share(&self) -> f64 {
        ratio(
            self.program_nanoseconds() + self.trap_nanoseconds,
            self.seconds * 1e9,
        )
    }

    /// Entries per second.
    pub fn rate(&self) -> f64 {
        ratio(self.entries, self.seconds)
    }

    /// Cost since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut since = *self;
        since.seconds -= before.seconds;
        since.entries -= before.entries;
        since.traps -= before.traps;
        since.trap_nanoseconds -= before.trap_nanoseconds;
        since.unmeasured = (since.unmeasured - before.unmeasured).max(0.0);
        for (program, before) in since.programs.iter_mut().zip(&before.programs) {
            program.runs -= before.runs;
            program.nanoseconds -= before.nanoseconds;
        }
        since
    }
}

/// Overhead of tracing in a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// Cost since the attach.
    pub spent: Spent,
    /// Share of one CPU over about the last second.
    pub lately: f64,
    /// Cost of one trap.
    pub traps: Traps,
    /// True if the kernel's statistics could be read; otherwise programs are assumed to take as long as on
    /// other machines.
    pub measured: bool,
    /// State of the governor (`--max-overhead`).
    pub governed: Option<Governed>,
}

/// Course of the governed sampling interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Governed {
    /// Permitted overhead as a share of one CPU.
    pub limit: f64,
    /// Current sampling interval in bytes; 1 records all allocations.
    pub now: u64,
    /// Smallest interval so far.
    pub least: u64,
    /// Largest interval so far.
    pub most: u64,
    /// Number of changes.
    pub changes: u64,
    /// Minimum cost of tracing as a share of one CPU, if it exceeds the limit: the cost of the probes alone,
    /// or of announcements at the largest interval.
    pub floor: Option<f64>,
}

/// Returns `part / whole`; 0 if `whole` is 0.
pub fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
