//! `memleak diff`: growth from one report to another.

use std::sync::Arc;

use super::DEFAULT_TOP;
use super::source::{Source, index, name, open, read};
use crate::sinks::output::{Destination, Output, write_document, write_text};
use crate::sinks::recording::{Recorded, Recording};
use leak_report::compare::{
    Builds, Comparison, Side, Trace, render_difference_folded, render_difference_json, render_difference_svg,
    render_difference_text,
};
use leak_report::model::NameStyle;
use leak_report::model::{Quantity, Report};
use leak_report::render::{Format, ReportSink, printable};

/// Maximum modules named in a note.
const MAX_MODULES: usize = 3;

/// Output format of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DifferenceFormat {
    /// For people.
    Text,
    /// One JSON object.
    Json,
    /// A line for each stack, with both amounts.
    Folded(Quantity),
    /// A flame graph in red and blue.
    Svg(Quantity),
    /// The later report alone; pprof subtracts the earlier one.
    Pprof,
}

/// Options of `memleak diff`.
#[derive(Clone, Debug)]
pub struct DifferenceOptions {
    /// Earlier report.
    pub before: Source,
    /// Later report.
    pub after: Source,
    pub format: DifferenceFormat,
    pub destination: Destination,
    /// Maximum number of sites in text and JSON that grew, and again of those that shrank; `None` for the
    /// default in text, and for all in JSON.
    pub top: Option<usize>,
    pub names: NameStyle,
}

/// Compares two reports and writes the difference.
pub fn diff(options: &DifferenceOptions) -> anyhow::Result<()> {
    let mut before = Opened::of(&options.before)?;
    let mut after = match options.after.file == options.before.file {
        true => before.another(&options.after)?,
        false => Opened::of(&options.after)?,
    };
    for opened in [&mut before, &mut after] {
        opened.recorded.report.names = options.names;
    }
    let traces = [before.trace(), after.trace()];
    let is_one_trace = is_one_trace(&before.recording, &after.recording);
    let builds = match is_one_trace {
        true => Builds::of_one_trace(),
        false => Builds::of_traces(traces),
    };
    let mut comparison = Comparison::of(before.side(), after.side(), &builds);
    comparison.notes.extend(rebuilt(&builds.rebuilt(&traces)));
    if before.recording.about().anonymized != after.recording.about().anonymized {
        let note = "only one of the two is anonymized: few sites will match";
        comparison.notes.push(note.to_owned());
    }
    let is_earlier = match is_one_trace {
        // In one trace the elapsed time decides, not the clock.
        true => after.report().elapsed < before.report().elapsed,
        false => after.report().read_at < before.report().read_at,
    };
    if is_earlier {
        comparison
            .notes
            .push("the first report is later than the second".to_owned());
    }
    if matches!(options.format, DifferenceFormat::Folded(_)) {
        comparison.notes.iter().for_each(|note| tracing::warn!("{note}"));
    }
    match options.format {
        DifferenceFormat::Text => write_text(&options.destination, |out| {
            render_difference_text(&comparison, options.top.unwrap_or(DEFAULT_TOP), out)
        }),
        DifferenceFormat::Json => write_document(&options.destination, |out| {
            render_difference_json(&comparison, options.top, out)
        }),
        DifferenceFormat::Folded(quantity) => write_document(&options.destination, |out| {
            render_difference_folded(&comparison, quantity, out)
        }),
        DifferenceFormat::Svg(quantity) => write_document(&options.destination, |out| {
            render_difference_svg(&comparison, quantity, out)
        }),
        DifferenceFormat::Pprof => {
            comparison.notes.iter().for_each(|note| tracing::warn!("{note}"));
            pprof(&after, options)
        }
    }
}

/// Writes only the later profile, and logs how to get the earlier one: pprof needs both, and subtracts them
/// itself.
fn pprof(after: &Opened, options: &DifferenceOptions) -> anyhow::Result<()> {
    let mut output = Output::open(Format::Pprof, &options.destination)?;
    output.report(&Arc::new(after.report().clone()))?;
    output.finish()?;
    tracing::info!(
        "this is the later report alone; for the difference: memleak report {}{} --output before.pb.gz, then pprof -base \
         before.pb.gz with this one",
        options.before,
        options
            .before
            .report
            .map_or_else(String::new, |number| format!(" --at {number}"))
    );
    Ok(())
}

/// A report and its recording.
struct Opened {
    recording: Arc<Recording>,
    index: usize,
    recorded: Recorded,
}

impl Opened {
    fn of(source: &Source) -> anyhow::Result<Self> {
        Self::in_recording(Arc::new(open(&source.file)?), source)
    }

    /// Opens another report of the same recording.
    fn another(&self, source: &Source) -> anyhow::Result<Self> {
        Self::in_recording(Arc::clone(&self.recording), source)
    }

    fn in_recording(recording: Arc<Recording>, source: &Source) -> anyhow::Result<Self> {
        let index = match source.report {
            Some(number) => index(&recording, number)?,
            None => recording.count() - 1,
        };
        Ok(Self {
            recorded: read(&recording, index)?,
            recording,
            index,
        })
    }

    fn report(&self) -> &Report {
        &self.recorded.report
    }

    fn trace(&self) -> Trace<'_> {
        let kernel = self.report().kernel.as_ref();
        Trace {
            dictionary: self.recording.dictionary(),
            kernel: kernel.map(|kernel| kernel.release.as_str()),
        }
    }

    fn side(&self) -> Side<'_> {
        Side {
            name: name(&self.recording, self.index),
            report: self.report(),
        }
    }
}

/// Returns whether two recordings are of one trace: one is a copy of the other, or of its beginning.
pub(super) fn is_one_trace(a: &Recording, b: &Recording) -> bool {
    a.path() == b.path() || a.about() == b.about()
}

/// Note about modules with several builds; `None` without any.
pub(super) fn rebuilt(paths: &[&str]) -> Option<String> {
    let name = |path: &&str| printable(path.rsplit('/').next().unwrap_or(path));
    let mut names: Vec<_> = paths.iter().take(MAX_MODULES).map(name).collect();
    match paths.len().saturating_sub(MAX_MODULES) {
        0 => {}
        more => names.push(format!("{more} more")),
    }
    (!names.is_empty()).then(|| {
        format!(
            "there are several builds of {}: their code is compared by function names",
            names.join(", ")
        )
    })
}
