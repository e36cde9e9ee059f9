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

use self::diagnosis::{Diagnosis, Step};
use self::readings::Readings;
use self::traced::{Subject, Traced, Traces};
use super::{Format, targets};
use crate::process::Target;
use crate::process::select::Selectors;
use crate::session::{MaxOverhead, Signals, VerdictSettings, judge_in_use};
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

/// Minimum time for a trace.
const LEAST_TRACE: Duration = Duration::from_secs(4);

/// Diagnoses a process, and prints the answer. Returns the exit status.
///
/// # Errors
///
/// Fails if there is not exactly one process, it cannot be read, or the answer cannot be written.
pub fn run(options: &Options, signals: &Signals, out: &mut dyn Write) -> anyhow::Result<u8> {
    let target = Target::open(targets::find_one(&options.process)?)?;
    let began = Instant::now();
    let end = began + options.time;
    let mut readings = Readings::begin(&target, options.time);
    let heap = readings.heap()?;
    let mut observed = Observed::default();
    // Until there is something to trace, or nothing to find.
    let mut traces = Traces::default();
    let decided = |observed: &Observed| match Traces::default().wanted(observed).is_empty() {
        true => Instant::now() >= began + options.time / 2 && diagnose(observed).growth.grows().is_some(),
        false => observed.readings.len() > MIN_READINGS,
    };
    while !decided(&observed) && Instant::now() < end && !signals.wants_end() {
        observed.readings.push(readings.read()?);
        std::thread::sleep(readings.pause());
    }
    let mut steps = vec![Step::of("readings", began.elapsed())];
    let subject = Subject {
        target: &target,
        limit: options.max_overhead,
        signals,
    };
    loop {
        let wanted = traces.wanted(&observed);
        let (from, shares) = (Instant::now(), u32::try_from(wanted.len()).unwrap_or(u32::MAX));
        let time = end.saturating_duration_since(from) / shares.max(1);
        let Some(wanted) = wanted.first().copied().filter(|_| time >= LEAST_TRACE) else {
            break;
        };
        let trace = traced::trace(subject, wanted, time, &mut || {
            let reading = readings.read_when_due(observed.readings.last())?;
            observed.readings.extend(reading);
            Ok(())
        });
        let trace = trace.with_context(|| format!("cannot trace {}", wanted.what()))?;
        let (cost, is_given_up) = match trace {
            Traced::Whole(trace, cost) => {
                observed.traces.push(trace);
                (cost, false)
            }
            Traced::TooCostly(cost) => (Some(cost), true),
        };
        traces.note(wanted, is_given_up);
        steps.push(Step {
            cost,
            is_given_up,
            ..Step::of(wanted.what(), from.elapsed())
        });
        if is_given_up {
            observed.lost = lost_by_structures(target.pid(), &mut steps);
        }
    }
    observed.readings.push(readings.read()?);
    observed.heap = heap.zip(readings.heap()?).map(|(first, last)| [first, last]);
    observed.names = readings.names();
    let diagnosis = Diagnosis {
        steps,
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

/// Lost bytes among all blocks of a process, by the allocator's structures; `None` if these are not known.
fn lost_by_structures(pid: u32, steps: &mut Vec<Step>) -> Option<u64> {
    let from = Instant::now();
    let judged = judge_in_use(pid, VerdictSettings::default());
    let judged = judged
        .inspect_err(|error| tracing::debug!("no verdict: {error}"))
        .ok()?;
    steps.push(Step::of("verdict on all blocks", from.elapsed()));
    let lost = judged.verdict.definitely_lost + judged.verdict.indirectly_lost;
    Some(lost.bytes)
}
