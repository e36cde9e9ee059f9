//! Options and outcome of `memleak top`.

use std::num::NonZeroU64;
use std::time::Duration;

use super::watch;
use crate::commands::Format;
use crate::process::select::{Found, Selectors};

/// Samples between two tables.
const SAMPLES: u32 = 20;
/// Minimum time between two samples.
pub(super) const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time between two samples of tables.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Default time between two tables.
pub(super) const TABLES: Duration = Duration::from_secs(10);
/// Default time between two samples of the view.
pub(super) const VIEW: Duration = Duration::from_secs(1);

/// Options of `memleak top`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub selectors: Selectors,
    /// True to wait, instead of failing, if nothing matches yet.
    pub waits: bool,
    /// Time between two tables, or two samples of the view.
    pub interval: Option<Duration>,
    /// Number of tables; without it, the view is shown if there is a terminal.
    pub count: Option<NonZeroU64>,
    /// Time over which growth is judged; by default, that of 60 samples.
    pub window: Option<Duration>,
    /// Rows of a table.
    pub rows: Option<usize>,
    pub format: Format,
}

impl Options {
    /// Minimum of `window`: the time of ten samples, so that there are enough to judge growth.
    pub fn min_window(&self) -> Duration {
        10 * match self.has_view() {
            true => self.interval.unwrap_or(VIEW),
            false => self.table_interval(),
        }
    }

    pub(super) fn window_of(&self, interval: Duration) -> Duration {
        self.window.unwrap_or(watch::POINTS * interval)
    }

    /// Time between two samples of tables.
    pub(super) fn table_interval(&self) -> Duration {
        let interval = self.interval.unwrap_or(TABLES) / SAMPLES;
        interval.clamp(MIN_INTERVAL, MAX_INTERVAL)
    }

    pub(super) fn has_view(&self) -> bool {
        #[cfg(feature = "tui")]
        let is_possible = crate::sinks::live::is_usable();
        #[cfg(not(feature = "tui"))]
        let is_possible = false;
        is_possible && self.format == Format::Text && self.count.is_none()
    }
}

/// Outcome of the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The user wants this process to be traced.
    Trace(Found),
}
