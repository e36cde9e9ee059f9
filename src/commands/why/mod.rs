//! `memleak why`: whether the memory of a process grows, and why.
//!
//! ```text
//!  /proc ─ readings ─► growing regions ─ traces ─► sites ─► memleak_why::diagnose ─► text | json
//! ```
//!
//! It begins with what costs the process nothing, and traces only what the answer needs.

mod diagnosis;
mod json;
mod readings;
mod text;
mod traced;

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Context;

use self::diagnosis::Diagnosis;
use self::readings::Readings;
use super::{Format, targets};
use crate::process::Target;
use crate::process::select::Selectors;
use crate::session::{MaxOverhead, Signals};
use memleak_why::{MIN_READINGS, Observed, diagnose};

/// Options of `memleak why`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Properties of the process.
    pub process: Selectors,
    /// Time that the diagnosis may take.
    pub time: Duration,
    /// Limit on the cost of tracing.
    pub max_overhead: MaxOverhead,
    pub format: Format,
}

/// Diagnoses a process, and prints the answer. Returns the exit status.
///
/// # Errors
///
/// Fails if there is not exactly one process, it cannot be read, or the answer cannot be written.
pub fn run(options: &Options, signals: &Signals, out: &mut dyn Write) -> anyhow::Result<u8> {
    let target = Target::open(targets::find_one(&options.process)?)?;
    let began = Instant::now();
    let end = began + options.time;
    let mut readings = Readings::begin(&target);
    let heap = readings.heap()?;
    let mut observed = Observed::default();
    // Until there is something to trace, or nothing to find.
    let decided = |observed: &Observed| match traced::wanted(observed).is_empty() {
        true => Instant::now() >= began + options.time / 2,
        false => observed.readings.len() >= MIN_READINGS + 2,
    };
    while !decided(&observed) && Instant::now() < end && !signals.wants_end() {
        observed.readings.push(readings.read()?);
        std::thread::sleep(readings.pause());
    }
    let all = traced::wanted(&observed);
    for (left, wanted) in (1..=all.len()).rev().zip(all) {
        let time = end.saturating_duration_since(Instant::now()) / u32::try_from(left).unwrap_or(1);
        let trace = traced::trace(
            (target.pid(), wanted),
            time,
            options.max_overhead,
            signals,
            &mut || {
                let reading = readings.read_when_due(observed.readings.last())?;
                observed.readings.extend(reading);
                Ok(())
            },
        );
        let trace = trace.with_context(|| format!("cannot trace {}", wanted.what()))?;
        observed.traces.push(trace);
    }
    observed.readings.push(readings.read()?);
    observed.heap = heap.zip(readings.heap()?).map(|(first, last)| [first, last]);
    let diagnosis = Diagnosis {
        target: &target,
        observed: &observed,
        answer: diagnose(&observed),
        took: began.elapsed(),
    };
    match options.format {
        Format::Text => text::render(&diagnosis, out)?,
        Format::Json => json::render(&diagnosis, out)?,
    }
    out.flush()?;
    Ok(0)
}
