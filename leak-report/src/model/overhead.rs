//! What tracing costs the target, in CPU time.

use serde::{Deserialize, Serialize};
/// A program of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeProgram {
    /// Entry and return of functions that allocate, in one.
    Session,
    /// Entry of functions that allocate: of all, or with session probes of those that can throw.
    Entry,
    /// Return of functions that allocate.
    Return,
    /// The `ret` instructions of functions that can throw.
    Ret,
    /// Entry of functions that free.
    Free,
}

impl ProbeProgram {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 5] = [Self::Session, Self::Entry, Self::Return, Self::Ret, Self::Free];

    /// The program's name.
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

/// Nanoseconds that a probe takes besides its program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traps {
    /// At an instruction that the kernel emulates.
    pub emulated: f64,
    /// At one that it single-steps; `None` if that was not asked for.
    pub stepped: Option<f64>,
    /// For the return to be seen too.
    pub returning: f64,
    /// What the kernel's statistics say of a program that does nothing.
    pub empty_program: f64,
}

/// What a program took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgramTime {
    /// Runs, as far as they are known.
    pub runs: f64,
    /// In nanoseconds, all together.
    pub nanoseconds: f64,
}

impl ProgramTime {
    /// Nanoseconds of one run.
    pub fn per_run(self) -> f64 {
        ratio(self.nanoseconds, self.runs)
    }
}

/// What tracing took, in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// The time.
    pub seconds: f64,
    /// Entries of functions that allocate, nested ones included.
    pub entries: f64,
    /// By [`ProbeProgram`].
    pub programs: [ProgramTime; ProbeProgram::ALL.len()],
    /// Times that the target ran into a probe, or out of one.
    pub traps: f64,
    /// Nanoseconds that these took besides the programs.
    pub trap_nanoseconds: f64,
    /// Entries of which it is not known what followed: they came before the first window that saw any. They are in
    /// `entries` and nowhere else.
    pub unmeasured: f64,
}

impl Spent {
    /// Nanoseconds of all programs.
    pub fn program_nanoseconds(&self) -> f64 {
        self.programs.iter().map(|program| program.nanoseconds).sum()
    }

    /// The share of one CPU.
    pub fn share(&self) -> f64 {
        ratio(
            self.program_nanoseconds() + self.trap_nanoseconds,
            self.seconds * 1e9,
        )
    }

    /// Entries in a second.
    pub fn rate(&self) -> f64 {
        ratio(self.entries, self.seconds)
    }

    /// What came since `before`.
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

/// What a report says of the cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    /// Since the attach.
    pub spent: Spent,
    /// The share of one CPU in about the last second.
    pub lately: f64,
    /// Nanoseconds of each trap.
    pub traps: Traps,
    /// The kernel's statistics could be read; else programs are taken to run as long as they do on other machines.
    pub measured: bool,
    /// With `--max-overhead`.
    pub governed: Option<Governed>,
}

/// How the distance between chosen bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Governed {
    /// What was allowed, as a share of one CPU.
    pub limit: f64,
    /// Now; 1 is all allocations.
    pub now: u64,
    /// The least that it was.
    pub least: u64,
    /// The most.
    pub most: u64,
    /// How often it changed.
    pub changes: u64,
    /// What probes alone cost, where that is more than the limit.
    pub floor: Option<f64>,
}

/// The quotient; 0 of nothing.
pub fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
