//! Reports on the terminal while they are made: `--live`.
//!
//! ```text
//!  session ─ Report ─► sample ─► model ◄─ keys ─ terminal (a thread)
//!                                  └──── view ────► screen
//! ```
//!
//! [`LiveView`] takes reports and shows them. The data that it keeps of one report (`sample`) and of earlier
//! ones (`trend`) is bounded. The model alone determines what is on the screen; `view` draws it, and only
//! `terminal` deals with a terminal. Nothing else prints to it while the view is open (`messages`).

mod content;
mod diagnosing;
mod keys;
mod layout;
mod messages;
mod model;
mod paint;
mod sample;
mod shell;
mod stack;
mod terminal;
#[cfg(test)]
mod tests;
mod text;
mod trend;
mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::session::Signals;
use crate::session::TraceConfig;
use crate::sinks::output::Output;
pub(crate) use keys::{Action, Key, Move};
pub(crate) use layout::MIN as MIN_SIZE;
use leak_report::model::Report;
use leak_report::model::leak;
use leak_report::render::{ReportSink, counted, short_size};
pub use messages::Messages;
use model::Model;
pub(crate) use paint::{Theme, draw_line, draw_too_small, first_shown, right_aligned, separated, shown};
use sample::{Order, Sample};
#[cfg(test)]
pub(crate) use shell::Overlay;
pub(crate) use shell::Shell;
pub use terminal::TerminalError;
pub(crate) use terminal::{Content, Screen, is_usable};
pub(crate) use text::{clock, fit, printable, width};
pub(crate) use trend::drawn;

/// Shows reports on the terminal until it is ended.
pub struct LiveView {
    screen: Screen<Model>,
    /// Set when the end is requested, by a key or a signal.
    stop: Arc<AtomicBool>,
    /// Output for the last report.
    output: Option<Output>,
    last: Option<Arc<Report>>,
    /// Line about the last report, logged when the view is closed.
    summary: Option<String>,
    /// Number of reports made.
    made: u64,
    /// Number of reports to make; `None` if unlimited.
    count: Option<u64>,
}

impl LiveView {
    /// Takes over the terminal. `is_restored` is set when the terminal is restored, which can be long before
    /// the end of the trace. The last report is written to `output`.
    ///
    /// # Errors
    ///
    /// Fails if there is no terminal, or none that can be drawn on.
    pub fn open(
        config: &TraceConfig,
        signals: &Signals,
        is_restored: &Arc<AtomicBool>,
        messages: &Messages,
        output: Option<Output>,
    ) -> Result<Self, TerminalError> {
        let order = match config.shown.view.sort {
            None | Some(leak::Order::Suspicion) => Order::Suspicion,
            Some(leak::Order::Size | leak::Order::Peak | leak::Order::Pinned) => Order::Outstanding,
            Some(leak::Order::Count) => Order::Blocks,
            Some(leak::Order::Growth) => Order::Growth,
        };
        let (model, is_restored) = (Model::new(order), Arc::clone(is_restored));
        Ok(Self {
            screen: Screen::open(model, signals, is_restored, messages.clone())?,
            stop: Arc::clone(&signals.stop),
            output,
            last: None,
            summary: None,
            made: 0,
            count: config.schedule.count.map(|count| count.get()),
        })
    }

    /// Restores the terminal: if the trace ended by itself, when the user leaves the view, otherwise at once.
    /// Then writes the last report, and logs a line about it.
    ///
    /// # Errors
    ///
    /// Fails if the report cannot be written, or the view has failed.
    pub fn finish(&mut self, has_failed: bool) -> anyhow::Result<()> {
        let are_all_made = self.count.is_some_and(|count| self.made >= count);
        if !has_failed && !are_all_made && !self.stop.load(Ordering::Relaxed) {
            self.screen.update(Model::end);
            self.screen.wait();
        }
        self.screen.update(Model::end_diagnosis);
        let closed = self.screen.close();
        // Writes the file first: logging may have to wait for a terminal that accepts no output.
        if let (Some(mut output), Some(report)) = (self.output.take(), self.last.take()) {
            output.report(&report)?;
            output.finish()?;
        }
        if let Some(summary) = &self.summary {
            tracing::info!("{summary}");
        }
        Ok(closed?)
    }
}

impl ReportSink for LiveView {
    fn report(&mut self, report: &Arc<Report>) -> anyhow::Result<()> {
        let sample = Sample::of(report);
        self.summary = Some(summary(&sample));
        self.screen.update(|model| model.take(sample));
        self.last = self.output.is_some().then(|| Arc::clone(report));
        self.made += 1;
        Ok(())
    }
}

/// Line about the last report, logged when the view is closed.
fn summary(sample: &Sample) -> String {
    let largest = sample.sites.iter().max_by_key(|site| site.shown.bytes);
    let largest = largest.filter(|site| site.shown.blocks > 0);
    let largest = largest.map_or_else(String::new, |site| {
        let amount = short_size(site.shown.bytes);
        format!(
            " at {}, most by {} ({amount})",
            counted(sample.outstanding_sites, "site"),
            site.name
        )
    });
    let lost = match &sample.health.lost {
        Some(lost) => format!("lost: {lost}"),
        None => "nothing lost".to_owned(),
    };
    format!(
        "{:.1} s: {} outstanding{largest}; {}, {lost}",
        sample.elapsed.as_secs_f64(),
        text::amount(sample.live),
        sample.health.completeness,
    )
}
