//! Sinks of reports while a trace runs: output, recordings, the live view, gates, receivers of profiles and
//! metrics, the status line. [`Sinks`] owns them all; only it knows their order.

pub mod export;
pub mod gate;
#[cfg_attr(not(feature = "tui"), path = "no_live.rs")]
pub mod live;
pub mod output;
pub mod recording;
pub mod status;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::bail;
use leak_report::model::Report;
use leak_report::model::Vitals;
use leak_report::render::{Call, Format, ReportSink, Stage};

use crate::session::{self, Signals, TraceConfig};
use export::Exports;
use gate::Gate;
use live::{LiveView, Messages};
use output::{Destination, Output};
use recording::Recorder;
use status::{Progress, StatusLine};

/// Sinks to open for a trace, and their settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkConfig {
    /// Format of the reports.
    pub format: Format,
    /// File, or standard output, that they are written to.
    pub destination: Destination,
    /// Recording to write in addition.
    pub recording: Option<recording::Settings>,
    /// Receivers to export to in addition.
    pub export: export::Settings,
    /// Conditions, suppressions and baselines that reports are checked against.
    pub gate: gate::Settings,
    /// Set if reports are shown on the terminal while they are made.
    pub live: Option<LiveConfig>,
}

impl SinkConfig {
    /// Returns whether every result of the trace is lost once the reader of standard output is gone. A trace
    /// with conditions goes on, because conditions are decided only at its end.
    pub fn ends_with_its_reader(&self) -> bool {
        let writes = self.live.is_none() && self.destination.file.is_none();
        writes && !self.gate.is_enabled() && self.export.is_empty()
    }
}

/// Settings of the live view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveConfig {
    /// True if the last report is written when the view is left.
    pub keeps_report: bool,
}

/// Log messages and the status line, both on standard error.
#[derive(Clone, Debug, Default)]
pub struct Diagnostics {
    /// Log messages, kept back while the live view is open.
    pub messages: Messages,
    pub line: StatusLine,
}

/// The sinks of a trace.
///
/// Each report is exported and recorded first, since the reader of the output may be gone; then it is
/// checked, which marks suppressed stacks, and shown.
pub struct Sinks<'a> {
    config: &'a SinkConfig,
    progress: Option<Progress>,
    line: StatusLine,
    exports: Exports,
    recorder: Option<Recorder>,
    gate: Gate<'a>,
    shown: Shown,
}

enum Shown {
    Output(Box<Output>),
    View(Box<LiveView>),
}

impl<'a> Sinks<'a> {
    /// Opens the sinks before there are reports of `trace`. `is_restored` is set when the live view has
    /// restored the terminal.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be created or read, a port is taken, or there is no terminal.
    pub fn open(
        config: &'a SinkConfig,
        trace: &TraceConfig,
        signals: &Signals,
        is_restored: &Arc<AtomicBool>,
        diagnostics: &Diagnostics,
    ) -> anyhow::Result<Self> {
        let writes = config.live.is_none_or(|live| live.keeps_report);
        let output = writes.then(|| Output::open(config.format, &config.destination));
        let output = output.transpose()?;
        let recorder = config.recording.as_ref().map(Recorder::create).transpose()?;
        let gate = Gate::open(&config.gate)?;
        let exports = Exports::start(&config.export)?;
        let shown = match (config.live, output) {
            (None, Some(output)) => Shown::Output(Box::new(output)),
            (_, output) => Shown::View(Box::new(LiveView::open(
                trace,
                signals,
                is_restored,
                &diagnostics.messages,
                output,
            )?)),
        };
        let has_line = config.live.is_none();
        Ok(Self {
            config,
            progress: has_line.then(|| Progress::new(&diagnostics.line)),
            line: diagnostics.line.clone(),
            exports,
            recorder,
            gate,
            shown,
        })
    }

    /// Writes the output that is due at the end, and decides the exit status. `traced` is the result of the
    /// trace: the status of the program that was started.
    ///
    /// # Errors
    ///
    /// Returns the error of the trace, or of a write that failed. Reports from before an error are still
    /// written.
    pub fn finish(self, traced: anyhow::Result<u8>) -> anyhow::Result<u8> {
        self.line.end();
        let recorded = self.recorder.map_or(Ok(()), Recorder::finish);
        // Restores the terminal, if there is a view.
        let shown = match self.shown {
            Shown::Output(output) => output.finish(),
            Shown::View(mut view) => view.finish(traced.is_err()),
        };
        // A failed trace decides no conditions.
        let decided = match &traced {
            Ok(status) => self.gate.finish(*status),
            Err(_) => Ok(None),
        };
        self.exports.finish();
        let status = settle(traced, decided?, shown, self.config)?;
        recorded?;
        Ok(status)
    }
}

/// Exit status of a trace. It is no failure if the reader of the output is gone: decided conditions keep
/// their status. But conditions that are not decided must not count as passed.
fn settle(
    traced: anyhow::Result<u8>,
    decided: Option<u8>,
    shown: anyhow::Result<()>,
    config: &SinkConfig,
) -> anyhow::Result<u8> {
    match (traced, decided, shown) {
        (Err(error), ..) if session::is_broken_pipe(&error) && !config.gate.conditions.is_empty() => bail!(
            "standard output was closed before the last report, so the conditions of --fail-on are not decided: give \
             --output FILE"
        ),
        (_, Some(decided), Err(error)) if session::is_broken_pipe(&error) => Ok(decided),
        (_, _, Err(error)) => Err(error),
        (traced, decided, Ok(())) => Ok(decided.unwrap_or(traced?)),
    }
}

impl Sinks<'_> {
    fn shown(&mut self) -> &mut dyn ReportSink {
        match &mut self.shown {
            Shown::Output(output) => &mut **output,
            Shown::View(view) => &mut **view,
        }
    }
}

impl ReportSink for Sinks<'_> {
    fn report(&mut self, report: &Arc<Report>) -> anyhow::Result<()> {
        if let Some(progress) = &mut self.progress {
            progress.report(report)?;
        }
        self.exports.report(report)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.report(report)?;
        }
        let checked = self.gate.check(report);
        self.shown().report(&checked)
    }

    fn stage(&mut self, stage: &Stage<'_>) -> anyhow::Result<()> {
        if let Some(progress) = &mut self.progress {
            progress.stage(stage)?;
        }
        self.shown().stage(stage)
    }

    fn calls(&mut self, calls: &[Call]) -> anyhow::Result<()> {
        if let Some(progress) = &mut self.progress {
            progress.calls(calls)?;
        }
        self.shown().calls(calls)
    }

    fn poll(&mut self, read_vitals: &mut dyn FnMut() -> anyhow::Result<Vitals>) -> anyhow::Result<()> {
        match &mut self.progress {
            Some(progress) => progress.poll(read_vitals),
            None => Ok(()),
        }
    }

    fn waiting(&mut self, text: &str) {
        if let Some(progress) = &mut self.progress {
            progress.waiting(text);
        }
    }

    fn report_pending(&mut self, is_last: bool) {
        self.shown().report_pending(is_last);
        if let Some(progress) = &mut self.progress {
            progress.report_pending(is_last);
        }
    }
}
