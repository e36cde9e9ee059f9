//! A diagnosis, as reports and `memleak why` have it. Fields are only ever added.

use serde::Serialize;

use super::recent::nanoseconds;
use crate::model::diagnosis::{Among, Cause, Diagnosis, Growth, Holding, Step};

/// Answer to whether the memory of a process grows, and why.
#[derive(Serialize)]
pub struct DiagnosisJson<'a> {
    /// Null if none of several processes grows, as are `comm` and `bytes`.
    pid: Option<u32>,
    comm: Option<&'a str>,
    /// Time that the diagnosis took.
    took_ns: u64,
    /// Memory of the process, resident and swapped out, and the kernel's for it.
    bytes: Option<u64>,
    /// Null if that cannot be told yet.
    grows: Option<bool>,
    bytes_per_second: f64,
    /// Further time that is needed, if `grows` is null.
    more_ns: Option<u64>,
    /// Only if several processes were compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    among: Option<AmongJson<'a>>,
    /// The largest growth first, then memory that is held without use.
    causes: Vec<CauseJson<'a>>,
    steps: Vec<StepJson<'a>>,
}

/// Part of the work.
#[derive(Serialize)]
struct StepJson<'a> {
    what: &'a str,
    took_ns: u64,
    /// Share of one CPU that it took from the process; null if it took none.
    cost: Option<f64>,
    /// True if it was given up because of its cost.
    given_up: bool,
}

impl<'a> From<&'a Step> for StepJson<'a> {
    fn from(step: &'a Step) -> Self {
        Self {
            what: &step.what,
            took_ns: nanoseconds(step.took),
            cost: step.cost,
            given_up: step.is_given_up,
        }
    }
}

#[derive(Serialize)]
struct AmongJson<'a> {
    processes: u64,
    /// Time for which they were compared.
    took_ns: u64,
    /// Those that hold most anonymous memory, if none grows.
    largest: Vec<HoldingJson<'a>>,
}

#[derive(Serialize)]
struct HoldingJson<'a> {
    pid: u32,
    comm: &'a str,
    bytes: u64,
}

#[derive(Serialize)]
struct CauseJson<'a> {
    kind: &'static str,
    /// Part of the growth, from 0 to 1.
    share: f64,
    bytes_per_second: f64,
    bytes: u64,
    blocks: u64,
    certainty: &'static str,
    /// Null if the place is not known.
    site: Option<SiteJson<'a>>,
    holder: Option<&'a str>,
    meaning: &'a str,
    next: &'a str,
}

#[derive(Serialize)]
struct SiteJson<'a> {
    function: &'a str,
    file: Option<&'a str>,
    line: Option<u32>,
    module: Option<&'a str>,
}

impl<'a> From<&'a Diagnosis> for DiagnosisJson<'a> {
    fn from(diagnosis: &'a Diagnosis) -> Self {
        let process = diagnosis.process.as_ref();
        Self {
            pid: process.map(|process| process.pid),
            comm: process.map(|process| process.comm.as_str()),
            took_ns: nanoseconds(diagnosis.took),
            bytes: process.map(|process| process.bytes),
            grows: diagnosis.growth.grows(),
            bytes_per_second: diagnosis.bytes_per_second,
            more_ns: match diagnosis.growth {
                Growth::NotSure { more } => Some(nanoseconds(more)),
                Growth::Grows | Growth::Steady { .. } => None,
            },
            among: diagnosis.among.as_ref().map(AmongJson::from),
            causes: diagnosis.causes.iter().map(CauseJson::from).collect(),
            steps: diagnosis.steps.iter().map(StepJson::from).collect(),
        }
    }
}

impl<'a> From<&'a Among> for AmongJson<'a> {
    fn from(among: &'a Among) -> Self {
        Self {
            processes: among.processes,
            took_ns: nanoseconds(among.took),
            largest: among.largest.iter().map(HoldingJson::from).collect(),
        }
    }
}

impl<'a> From<&'a Holding> for HoldingJson<'a> {
    fn from(holding: &'a Holding) -> Self {
        Self {
            pid: holding.pid,
            comm: &holding.comm,
            bytes: holding.bytes,
        }
    }
}

impl<'a> From<&'a Cause> for CauseJson<'a> {
    fn from(cause: &'a Cause) -> Self {
        Self {
            kind: cause.kind.name(),
            share: cause.share,
            bytes_per_second: cause.bytes_per_second,
            bytes: cause.amount.bytes,
            blocks: cause.amount.blocks,
            certainty: cause.certainty.name(),
            site: cause.site.as_ref().map(|site| SiteJson {
                function: &site.function,
                file: site.file.as_deref(),
                line: site.line,
                module: site.module.as_deref(),
            }),
            holder: cause.holder.as_deref(),
            meaning: &cause.meaning,
            next: &cause.next,
        }
    }
}
