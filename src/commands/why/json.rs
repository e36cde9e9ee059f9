//! The diagnosis as one JSON object on one line, schema version 1. Fields are only ever added.

use std::io::{self, Write};

use serde::Serialize;

use super::diagnosis::{Diagnosis, Step};
use crate::commands::nanoseconds;
use leak_report::model::diagnosis::{Cause, Growth};
use leak_report::render::write_json;

const SCHEMA_VERSION: u32 = 1;

pub(super) fn render(diagnosis: &Diagnosis<'_>, out: &mut dyn Write) -> io::Result<()> {
    let answer = &diagnosis.answer;
    let json = DiagnosisJson {
        schema_version: SCHEMA_VERSION,
        memleak: env!("CARGO_PKG_VERSION"),
        pid: diagnosis.target.pid(),
        comm: diagnosis.target.comm(),
        took_ns: nanoseconds(diagnosis.took),
        bytes: diagnosis
            .observed
            .readings
            .last()
            .map_or(0, |last| last.bytes.all()),
        grows: answer.growth.grows(),
        bytes_per_second: answer.bytes_per_second,
        more_ns: match answer.growth {
            Growth::NotSure { more } => Some(nanoseconds(more)),
            Growth::Grows | Growth::Steady { .. } => None,
        },
        causes: answer.causes.iter().map(CauseJson::new).collect(),
        steps: diagnosis.steps.iter().map(StepJson::new).collect(),
    };
    write_json(&json, out)?;
    writeln!(out)
}

#[derive(Serialize)]
struct DiagnosisJson<'a> {
    schema_version: u32,
    memleak: &'static str,
    pid: u32,
    comm: &'a str,
    /// Time that the diagnosis took.
    took_ns: u64,
    /// Memory of the process, resident and swapped out, and the kernel's for it.
    bytes: u64,
    /// Null if that cannot be told yet.
    grows: Option<bool>,
    bytes_per_second: f64,
    /// Further time that is needed, if `grows` is null.
    more_ns: Option<u64>,
    /// The largest growth first, then memory that is held without use.
    causes: Vec<CauseJson<'a>>,
    steps: Vec<StepJson>,
}

/// Part of the work.
#[derive(Serialize)]
struct StepJson {
    what: &'static str,
    took_ns: u64,
    /// Share of one CPU that it took from the process; null if it took none.
    cost: Option<f64>,
    /// True if it was given up because of its cost.
    given_up: bool,
}

impl StepJson {
    fn new(step: &Step) -> Self {
        Self {
            what: step.what,
            took_ns: nanoseconds(step.took),
            cost: step.cost,
            given_up: step.is_given_up,
        }
    }
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

impl<'a> CauseJson<'a> {
    fn new(cause: &'a Cause) -> Self {
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
