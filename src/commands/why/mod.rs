//! `memleak why`: whether the memory of a process grows, and why.
//!
//! ```text
//!  processes ─ choice ─► /proc ─ readings ─► growing regions ─ traces ─► sites
//!   ─► memleak_why::diagnose ─► text | json | recording
//! ```
//!
//! The process is the one that grows fastest if several match. A diagnosis begins with what costs the process
//! nothing, and traces only what the answer needs.

mod choice;
mod output;
mod readings;
mod recorded;
mod traced;

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Context;

use leak_report::model::diagnosis::{Diagnosis, Holding, Step};

use self::choice::{Choice, choose};
use self::readings::Readings;
use self::recorded::{Found, decisive};
use self::traced::{Subject, Traced, Traces};
use super::Format;
use crate::process::select::Selectors;
use crate::process::{ProcessName, Target};
use crate::session::{MaxOverhead, Signals, VerdictSettings, judge_in_use};
use crate::sinks::gate::{Condition, check_diagnosis};
use crate::sinks::recording::{self, Recorder};
use memleak_why::{MIN_READINGS, Observed, diagnose};

/// Options of `memleak why`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Properties of the processes, of which one is diagnosed; all if there are none.
    pub processes: Selectors,
    /// Time that the diagnosis may take.
    pub time: Duration,
    /// Limit on the cost of tracing.
    pub max_overhead: MaxOverhead,
    /// Conditions that must not be exceeded: [`crate::sinks::gate::Measure::is_of_diagnosis`].
    pub conditions: Vec<Condition>,
    /// Recording of the report about the first cause, if it is recorded.
    pub recording: Option<recording::Settings>,
    pub format: Format,
}

/// Minimum time for a trace.
const LEAST_TRACE: Duration = Duration::from_secs(4);

/// Diagnoses a process, and prints the answer. Returns the exit status.
///
/// # Errors
///
/// Fails if no process matches, it cannot be read, or the answer cannot be written.
pub fn run(options: &Options, signals: &Signals, out: &mut dyn Write) -> anyhow::Result<u8> {
    // An output that cannot be written is an error at once, not after the diagnosis.
    let recorder = options.recording.as_ref().map(Recorder::create).transpose()?;
    let found = match find(options, signals) {
        Ok(found) => found,
        Err(error) => {
            // Nothing was recorded: removes the file if it is new.
            _ = recorder.map(Recorder::finish);
            return Err(error);
        }
    };
    output::write(&found.diagnosis, options.format, out)?;
    let status = check_diagnosis(&options.conditions, &found.diagnosis);
    if let Some(recorder) = recorder {
        found.record(recorder)?;
    }
    Ok(status.unwrap_or(0))
}

/// Chooses a process and diagnoses it.
fn find(options: &Options, signals: &Signals) -> anyhow::Result<Found> {
    let began = Instant::now();
    match choose(&options.processes, options.time, signals)? {
        Choice::None(diagnosis) => Ok(Found::untraced(diagnosis, None)),
        Choice::Only(pid) => look_at(pid, options.time, options.max_overhead, signals),
        Choice::Growing { pids, among } => {
            let left = || options.time.saturating_sub(began.elapsed());
            let look = |pid| look_at(pid, left(), options.max_overhead, signals);
            let mut found = first_that_stays(&pids, look)?;
            found.diagnosis.among = Some(among);
            found.diagnosis.took = began.elapsed();
            Ok(found)
        }
    }
}

/// Looks at the first of these processes that does not end meanwhile.
fn first_that_stays(
    pids: &[u32],
    mut look: impl FnMut(u32) -> anyhow::Result<Found>,
) -> anyhow::Result<Found> {
    let (last, earlier) = pids.split_last().context("no process grows")?;
    for &pid in earlier {
        match look(pid) {
            Err(error) if ProcessName::of(pid).is_none() => {
                tracing::warn!("the fastest-growing process, {pid}, has ended: {error:#}");
            }
            found => return found,
        }
    }
    look(*last)
}

/// Diagnoses one process.
fn look_at(pid: u32, time: Duration, limit: MaxOverhead, signals: &Signals) -> anyhow::Result<Found> {
    let target = Target::open(pid)?;
    let began = Instant::now();
    let end = began + time;
    let mut readings = Readings::begin(&target, time);
    let heap = readings.heap()?;
    let mut observed = Observed::default();
    let mut reports = Vec::new();
    // Until there is something to trace, or nothing to find.
    let mut traces = Traces::default();
    let decided = |observed: &Observed| match traces.wanted(observed).is_empty() {
        true => Instant::now() >= began + time / 2 && diagnose(observed).growth.grows().is_some(),
        false => observed.readings.len() > MIN_READINGS,
    };
    while !decided(&observed) && Instant::now() < end && !signals.wants_end() {
        observed.readings.push(readings.read()?);
        std::thread::sleep(readings.pause());
    }
    let mut steps = vec![Step::of("readings", began.elapsed())];
    let subject = Subject {
        target: &target,
        limit,
        signals,
    };
    while !signals.wants_end() {
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
            Traced::Whole(whole) => {
                observed.traces.push(whole.trace);
                reports.push(whole.report);
                (Some(whole.cost), false)
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
        ..diagnosis(&target, &observed, began.elapsed())
    };
    Ok(match decisive(&diagnosis, &observed.traces) {
        Some(at) if at < reports.len() => Found::traced(diagnosis, reports.swap_remove(at)),
        Some(_) | None => Found::untraced(diagnosis, Some(&target)),
    })
}

/// Answer about a process, by what was observed.
fn diagnosis(target: &Target, observed: &Observed, took: Duration) -> Diagnosis {
    let answer = diagnose(observed);
    Diagnosis {
        process: Some(Holding {
            pid: target.pid(),
            comm: target.comm().to_owned(),
            bytes: observed.readings.last().map_or(0, |last| last.bytes.all()),
        }),
        among: None,
        took,
        growth: answer.growth,
        bytes_per_second: answer.bytes_per_second,
        causes: answer.causes,
        steps: Vec::new(),
    }
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
