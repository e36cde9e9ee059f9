//! `memleak trend`: growth rates of sites, over the reports of a recording or over several recordings.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::bail;

use super::DEFAULT_TOP;
use super::diff::{is_one_trace, rebuilt};
use super::source::{Source, index, name, open, read};
use crate::sinks::output::{Destination, write_document, write_text};
use crate::sinks::recording::Recording;
use leak_report::compare::{self, Builds, Trace, render_trend_json, render_trend_text};
use leak_report::model::NameStyle;

/// Options of `memleak trend`.
#[derive(Clone, Debug)]
pub struct TrendOptions {
    /// One recording, with all its reports if none is chosen; or several, with the last report of each.
    pub sources: Vec<Source>,
    /// True for JSON instead of text.
    pub json: bool,
    pub destination: Destination,
    /// Maximum sites in text and JSON; `None` for the default in text, and for all in JSON.
    pub top: Option<usize>,
    pub names: NameStyle,
}

/// A report to read.
struct Chosen {
    recording: Arc<Recording>,
    index: usize,
    number: u64,
    read_at: SystemTime,
}

/// Writes the trend of the chosen reports.
///
/// # Errors
///
/// Fails if there are too few or too many reports, a recording cannot be read, or nothing can be written.
pub fn trend(options: &TrendOptions) -> anyhow::Result<()> {
    let mut chosen = choose(&options.sources)?;
    if chosen.len() < 2 {
        bail!("a trend needs at least two reports: give a recording with more, or several recordings");
    }
    let (builds, note) = builds(&mut chosen)?;
    let mut trend = compare::Trend::new(builds);
    for Chosen { recording, index, .. } in &chosen {
        let mut recorded = read(recording, *index)?;
        recorded.report.names = options.names;
        let name = name(recording, *index);
        trend.add(name, recorded.report);
    }
    trend.finish();
    trend.notes.extend(note);
    match options.json {
        false => write_text(&options.destination, |out| {
            render_trend_text(&trend, options.top.unwrap_or(DEFAULT_TOP), out)
        }),
        true => write_document(&options.destination, |out| {
            render_trend_json(&trend, options.top, out)
        }),
    }
}

fn choose(sources: &[Source]) -> anyhow::Result<Vec<Chosen>> {
    let mut recordings: Vec<Arc<Recording>> = Vec::new();
    let mut chosen = Vec::new();
    for source in sources {
        let known = recordings
            .iter()
            .find(|recording| recording.path() == source.file);
        let recording = match known {
            Some(recording) => Arc::clone(recording),
            None => Arc::new(open(&source.file)?),
        };
        recordings.push(Arc::clone(&recording));
        let indices = match (source.report, sources) {
            (Some(number), _) => vec![index(&recording, number)?],
            (None, [_]) => spread(recording.count()),
            (None, _) => vec![recording.count() - 1],
        };
        chosen.extend(indices.into_iter().map(|index| Chosen {
            recording: Arc::clone(&recording),
            index,
            number: 0,
            read_at: UNIX_EPOCH,
        }));
    }
    match chosen.len() > compare::Trend::MAX_POINTS {
        true => bail!("at most {} reports make a trend", compare::Trend::MAX_POINTS),
        false => Ok(chosen),
    }
}

/// Indices of reports, spread evenly from the first to the last, at most [`compare::Trend::MAX_POINTS`].
fn spread(count: usize) -> Vec<usize> {
    let max = compare::Trend::MAX_POINTS;
    if count <= max {
        return (0..count).collect();
    }
    tracing::info!("using {max} of {count} reports, spread evenly over the trace");
    (0..max).map(|at| at * (count - 1) / (max - 1)).collect()
}

/// Determines the builds of the traces, and a note about modules with several. Also sorts the reports: within
/// one trace by number, so that the clock does not matter, otherwise by time.
fn builds(chosen: &mut [Chosen]) -> anyhow::Result<(Builds, Option<String>)> {
    let mut kernels = Vec::with_capacity(chosen.len());
    for chosen in chosen.iter_mut() {
        let summary = chosen.recording.summary(chosen.index)?;
        (chosen.number, chosen.read_at) = (summary.number, summary.read_at);
        kernels.push(summary.kernel);
    }
    let [first, others @ ..] = &*chosen else {
        return Ok((Builds::default(), None));
    };
    let mut others = others.iter();
    if others.all(|other| is_one_trace(&first.recording, &other.recording)) {
        chosen.sort_by_key(|chosen| chosen.number);
        return Ok((Builds::of_one_trace(), None));
    }
    let traces = chosen.iter().zip(&kernels).map(|(chosen, kernel)| Trace {
        dictionary: chosen.recording.dictionary(),
        kernel: kernel.as_deref(),
    });
    let traces: Vec<_> = traces.collect();
    let builds = Builds::of_traces(traces.iter().copied());
    let note = rebuilt(&builds.rebuilt(&traces));
    chosen.sort_by_key(|chosen| chosen.read_at);
    Ok((builds, note))
}
