//! State of the view and the effect of keys on it. No terminal, no clock but that of a diagnosis.

mod diagnosis;
mod keys;
mod sites;
#[cfg(test)]
mod tests;

use std::process::Command;

use super::diagnosing::{self, Diagnosing};
use super::layout::{Focus, Panes};
use super::sample::{Order, Sample, Site};
use super::shell::Shell;
use super::stack::StackText;
use super::trend::Trends;
use keys::HELP;
use leak_report::model::{SiteKey, Unit};

/// Data of one report, and of those before it.
#[derive(Clone, Debug)]
pub(super) struct ShownReport {
    pub(super) sample: Sample,
    pub(super) trends: Trends,
    /// Allocations per second since the previous report.
    pub(super) allocations: f64,
    /// Frees per second since the previous report.
    pub(super) frees: f64,
}

/// State of the view.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) shell: Shell,
    now: Option<ShownReport>,
    /// Shown instead of `now` while paused.
    paused: Option<ShownReport>,
    /// True if no more reports will come.
    is_over: bool,
    order: Chosen,
    focus: Focus,
    /// Indices in the sample of the sites shown, in order.
    listed: Vec<usize>,
    /// Site that the user moved to; without one, the first is selected.
    selected: Option<SiteKey>,
    /// Row of the selected site in the list.
    row: usize,
    /// Lines and columns of the stack that are scrolled out of sight.
    scrolled: (usize, usize),
    /// Diagnosis in the window over the panes.
    diagnosis: Option<Diagnosing>,
    /// Command that diagnoses a process.
    diagnose: fn(u32) -> Command,
}

/// Order and unit of the list of sites.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    order: Order,
    unit: Unit,
}

impl Model {
    pub(super) fn new(order: Order) -> Self {
        Self {
            shell: Shell::new(&HELP),
            now: None,
            paused: None,
            is_over: false,
            order: Chosen {
                order,
                unit: Unit::Bytes,
            },
            focus: Focus::default(),
            listed: Vec::new(),
            selected: None,
            row: 0,
            scrolled: (0, 0),
            diagnosis: None,
            diagnose: diagnosing::command,
        }
    }

    /// Adds a report.
    pub(super) fn take(&mut self, sample: Sample) {
        let before = self.now.take();
        let (mut trends, earlier) = match before {
            Some(shown) => (shown.trends, (shown.sample.allocations, shown.sample.frees)),
            None => (Trends::default(), (0, 0)),
        };
        trends.take(&sample);
        let seconds = sample.since_last.as_secs_f64();
        let rate = |now: u64, before: u64| match seconds > 0.0 {
            true => now.saturating_sub(before) as f64 / seconds,
            false => 0.0,
        };
        self.now = Some(ShownReport {
            allocations: rate(sample.allocations, earlier.0),
            frees: rate(sample.frees, earlier.1),
            sample,
            trends,
        });
        if self.paused.is_none() {
            self.list();
        }
    }

    /// Notes that no more reports will come.
    pub(super) fn end(&mut self) {
        self.is_over = true;
        self.changed();
    }

    fn changed(&mut self) {
        self.shell.changed();
        self.limit_scrolling();
    }

    /// Limits scrolling of the stack to its last line.
    pub(super) fn limit_scrolling(&mut self) {
        let heights = Panes::of(self.shell.area(), self.focus).map(|panes| panes.stack.height);
        let height = usize::from(heights.unwrap_or_default());
        let text = self.selected().map(|site| StackText::of(site, self.sample()));
        let (lines, columns) = text.map_or((0, 0), |text| (text.lines.len(), text.width()));
        let (down, right) = self.scrolled;
        let width = usize::from(self.shell.area().width);
        self.scrolled = (
            down.min(lines.saturating_sub(height)),
            right.min(columns.saturating_sub(width)),
        );
    }
}

/// Accessors for drawing.
impl Model {
    /// The data that is shown; `None` before the first report.
    pub(super) fn shown(&self) -> Option<&ShownReport> {
        self.paused.as_ref().or(self.now.as_ref())
    }

    fn sample(&self) -> Option<&Sample> {
        self.shown().map(|shown| &shown.sample)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn order(&self) -> Order {
        self.order.order
    }

    pub(super) fn unit(&self) -> Unit {
        self.order.unit
    }

    pub(super) fn focus(&self) -> Focus {
        self.focus
    }

    /// Sites shown, in order.
    pub(super) fn sites(&self) -> Vec<&Site> {
        let sites = self.sample().map_or(&[][..], |sample| &sample.sites);
        self.listed.iter().filter_map(|&at| sites.get(at)).collect()
    }

    /// Row of the selected site in the list.
    pub(super) fn row(&self) -> usize {
        self.row
    }

    pub(super) fn selected(&self) -> Option<&Site> {
        let sites = self.sample().map_or(&[][..], |sample| &sample.sites);
        sites.get(*self.listed.get(self.row)?)
    }

    /// Lines and columns of the stack that are scrolled out of sight.
    pub(super) fn scrolled(&self) -> (usize, usize) {
        self.scrolled
    }
}
