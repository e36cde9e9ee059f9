//! State of the view and the effect of keys on it. No terminal, no clock.

mod keys;
mod sites;
#[cfg(test)]
mod tests;

use ratatui::Frame;
use ratatui::layout::Rect;

use super::layout::{Focus, Panes};
use super::messages::Message;
use super::paint::Theme;
use super::sample::{Order, Sample, Site};
use super::stack::StackText;
use super::terminal::Content;
use super::trend::Trends;
use super::view;
pub(super) use keys::HELP;
use leak_report::model::{SiteKey, Unit};

/// Requests of the user that the view cannot fulfil itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Quit,
    /// Sets the mark: growth is counted from now on.
    Mark,
    /// Turns verdicts in further reports on or off.
    Verdict,
    /// Redraws everything: something else wrote to the terminal.
    Redraw,
}

/// Keys that have a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Move(Move),
    Left,
    Right,
    /// Enter or Tab.
    Enter,
    Escape,
    Backspace,
    /// Control-C.
    Interrupt,
    /// Control-L.
    Redraw,
    /// Control-U.
    Clear,
    Character(char),
}

/// Maximum characters of a filter.
const LONGEST_FILTER: usize = 100;

impl Key {
    /// Edits the text of a filter. Returns whether it is still edited.
    pub(crate) fn edit(self, filter: &mut String) -> bool {
        match self {
            Self::Enter => return false,
            Self::Escape => {
                filter.clear();
                return false;
            }
            Self::Backspace => _ = filter.pop(),
            Self::Clear => filter.clear(),
            Self::Character(character) if filter.chars().count() < LONGEST_FILTER => filter.push(character),
            Self::Character(_)
            | Self::Move(_)
            | Self::Left
            | Self::Right
            | Self::Interrupt
            | Self::Redraw => {}
        }
        true
    }
}

/// Movement in a list or text that is longer than its pane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

impl Move {
    /// Opposite direction.
    pub(crate) fn back(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
            Self::PageUp => Self::PageDown,
            Self::PageDown => Self::PageUp,
            Self::First => Self::Last,
            Self::Last => Self::First,
        }
    }

    /// Line that this leads to from line `at`, with pages of `page` lines. The caller limits it to the last
    /// line.
    pub(crate) fn from(self, at: usize, page: usize) -> usize {
        match self {
            Self::Up => at.saturating_sub(1),
            Self::Down => at.saturating_add(1),
            Self::PageUp => at.saturating_sub(page),
            Self::PageDown => at.saturating_add(page),
            Self::First => 0,
            Self::Last => usize::MAX,
        }
    }
}

/// Window over the panes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Overlay {
    #[default]
    None,
    Help,
    Messages,
}

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
#[derive(Debug, Default)]
pub(super) struct Model {
    /// Incremented with every change that can be seen.
    version: u64,
    area: Rect,
    now: Option<ShownReport>,
    /// Shown instead of `now` while paused.
    paused: Option<ShownReport>,
    /// True if no more reports will come.
    is_over: bool,
    messages: Vec<Message>,
    order: Chosen,
    filter: String,
    /// True while the filter is being typed.
    is_filtering: bool,
    focus: Focus,
    overlay: Overlay,
    /// Indices in the sample of the sites shown, in order.
    listed: Vec<usize>,
    /// Site that the user moved to; without one, the first is selected.
    selected: Option<SiteKey>,
    /// Row of the selected site in the list.
    row: usize,
    /// Lines and columns of the stack that are scrolled out of sight.
    scrolled: (usize, usize),
    /// Lines of help, or messages, that are scrolled out of sight.
    overlay_scrolled: usize,
}

/// Order and unit of the list of sites.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    order: Order,
    unit: Unit,
}

impl Default for Chosen {
    fn default() -> Self {
        Self {
            order: Order::Suspicion,
            unit: Unit::Bytes,
        }
    }
}

impl Model {
    pub(super) fn new(order: Order) -> Self {
        Self {
            order: Chosen {
                order,
                ..Chosen::default()
            },
            ..Self::default()
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
        self.version += 1;
        self.limit_scrolling();
    }

    /// Limits scrolling to the last line.
    fn limit_scrolling(&mut self) {
        let heights = Panes::of(self.area, self.focus).map(|panes| panes.stack.height);
        let height = usize::from(heights.unwrap_or_default());
        let text = self.selected().map(|site| StackText::of(site, self.sample()));
        let (lines, columns) = text.map_or((0, 0), |text| (text.lines.len(), text.width()));
        let (down, right) = self.scrolled;
        let width = usize::from(self.area.width);
        self.scrolled = (
            down.min(lines.saturating_sub(height)),
            right.min(columns.saturating_sub(width)),
        );
        let lines = match self.overlay {
            Overlay::None => 0,
            // The frame takes two lines.
            Overlay::Help => HELP
                .len()
                .saturating_sub(usize::from(self.area.height.saturating_sub(2))),
            Overlay::Messages => self.messages.len().saturating_sub(1),
        };
        self.overlay_scrolled = self.overlay_scrolled.min(lines);
    }
}

impl Content for Model {
    fn version(&self) -> u64 {
        self.version
    }

    fn set_messages(&mut self, messages: Vec<Message>) {
        self.messages = messages;
        self.changed();
    }

    fn resize(&mut self, area: Rect) {
        if self.area != area {
            self.area = area;
            self.changed();
        }
    }

    fn press(&mut self, key: Key) -> Option<Action> {
        self.act(key)
    }

    fn draw(&self, frame: &mut Frame<'_>, theme: Theme) {
        view::draw(frame, self, theme);
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

    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Number of messages, from the newest, or lines of help, from the first, that are scrolled out of sight.
    pub(super) fn overlay_scrolled(&self) -> usize {
        self.overlay_scrolled
    }

    pub(super) fn order(&self) -> Order {
        self.order.order
    }

    pub(super) fn unit(&self) -> Unit {
        self.order.unit
    }

    pub(super) fn filter(&self) -> &str {
        &self.filter
    }

    pub(super) fn is_filtering(&self) -> bool {
        self.is_filtering
    }

    pub(super) fn focus(&self) -> Focus {
        self.focus
    }

    pub(super) fn overlay(&self) -> Overlay {
        self.overlay
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
