//! Cost of tracing in JSON. Shares are per cent of one CPU.

use serde::Serialize;

use crate::model::{Governed, Overhead, ProbeProgram};

#[derive(Serialize)]
pub(super) struct OverheadJson {
    percent: f64,
    /// Share over about the last second.
    lately_percent: f64,
    seconds: f64,
    /// Rate of entries into functions that allocate, including nested ones.
    allocations_per_second: f64,
    traps: TrapsJson,
    /// Programs that ran at least once.
    programs: Vec<ProgramJson>,
    /// True if the kernel's statistics could be read; otherwise times in programs are assumed.
    measured: bool,
    /// Allocations made before anything was measured; only `allocations_per_second` includes them.
    unmeasured_allocations: f64,
    governor: Option<GovernorJson>,
}

#[derive(Serialize)]
struct TrapsJson {
    count: f64,
    seconds: f64,
    emulated_ns: f64,
    /// Null if no instruction is single-stepped.
    single_stepped_ns: Option<f64>,
    return_ns: f64,
}

#[derive(Serialize)]
struct ProgramJson {
    name: &'static str,
    runs: f64,
    ns_per_run: f64,
    seconds: f64,
}

#[derive(Serialize)]
struct GovernorJson {
    limit_percent: f64,
    interval: IntervalJson,
    changes: u64,
    /// Minimum cost of tracing, if it exceeds the limit.
    floor_percent: Option<f64>,
}

/// Sampling interval in bytes: now, minimum and maximum; 1 stands for all allocations.
#[derive(Serialize)]
struct IntervalJson {
    now: u64,
    least: u64,
    most: u64,
}

impl From<&Overhead> for OverheadJson {
    fn from(overhead: &Overhead) -> Self {
        let (spent, traps) = (&overhead.spent, &overhead.traps);
        let programs = ProbeProgram::ALL.into_iter().zip(spent.programs);
        let programs = programs.filter(|(_, time)| time.runs > 0.0);
        Self {
            percent: spent.share() * 100.0,
            lately_percent: overhead.lately * 100.0,
            seconds: spent.seconds,
            allocations_per_second: spent.rate(),
            traps: TrapsJson {
                count: spent.traps.round(),
                seconds: spent.trap_nanoseconds / 1e9,
                emulated_ns: traps.emulated,
                single_stepped_ns: traps.stepped,
                return_ns: traps.returning,
            },
            programs: programs
                .map(|(program, time)| ProgramJson {
                    name: program.name(),
                    runs: time.runs.round(),
                    ns_per_run: time.per_run(),
                    seconds: time.nanoseconds / 1e9,
                })
                .collect(),
            measured: overhead.measured,
            unmeasured_allocations: spent.unmeasured,
            governor: overhead.governed.as_ref().map(GovernorJson::from),
        }
    }
}

impl From<&Governed> for GovernorJson {
    fn from(governed: &Governed) -> Self {
        Self {
            limit_percent: governed.limit * 100.0,
            interval: IntervalJson {
                now: governed.now,
                least: governed.least,
                most: governed.most,
            },
            changes: governed.changes,
            floor_percent: governed.floor.map(|floor| floor * 100.0),
        }
    }
}
