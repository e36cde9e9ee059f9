//! `memleak top`: shows which processes' anonymous memory grows, without any probe.
//!
//! ```text
//!  /proc ─ read ─► watch ─ sampler ─► table ─► text | json | view ─ Enter ─► a trace
//! ```
//!
//! Growth is the Theil–Sen slope over the last samples. A process counts as growing or shrinking only if the
//! 99 % confidence interval of the slope excludes 0.

mod json;
mod read;
mod sampler;
mod table;
mod text;
#[cfg(feature = "tui")]
mod view;
mod watch;

use std::io::Write;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anstream::{AutoStream, ColorChoice};

use super::Format;
use crate::process::select::{Found, Selectors};
use crate::sinks::live::Messages;
use crate::sinks::output::{self, Look, standard};
use sampler::Sampler;

/// Samples between two tables.
const SAMPLES: u32 = 20;
/// Minimum time between two samples.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum time between two samples of tables.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Default time between two tables.
const TABLES: Duration = Duration::from_secs(10);
/// Default time between two samples of the view.
const VIEW: Duration = Duration::from_secs(1);
/// Default number of rows of a table in text.
const ROWS: usize = 10;
/// Maximum time until a signal is noticed.
const PAUSE: Duration = Duration::from_millis(50);

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

    fn window_of(&self, interval: Duration) -> Duration {
        self.window.unwrap_or(watch::POINTS * interval)
    }

    /// Time between two samples of tables.
    fn table_interval(&self) -> Duration {
        let interval = self.interval.unwrap_or(TABLES) / SAMPLES;
        interval.clamp(MIN_INTERVAL, MAX_INTERVAL)
    }

    fn has_view(&self) -> bool {
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

/// Watches processes until `stop` is set, as many tables as wanted are printed, or a process is chosen.
///
/// # Errors
///
/// Fails if nothing matches, processes cannot be read, or the output cannot be written.
pub fn run(options: &Options, stop: &Arc<AtomicBool>, messages: &Messages) -> anyhow::Result<Outcome> {
    #[cfg(feature = "tui")]
    if options.has_view() {
        let interval = options.interval.unwrap_or(VIEW).max(MIN_INTERVAL);
        return view::run(Sampler::new(options, interval)?, interval, stop, messages);
    }
    _ = messages;
    print_tables(options, stop)?;
    Ok(Outcome::Done)
}

fn print_tables(options: &Options, stop: &AtomicBool) -> anyhow::Result<()> {
    let interval = options.table_interval();
    let mut sampler = Sampler::new(options, interval)?;
    let mut out = standard::output()?;
    let (look, is_painted) = (
        Look::of_characters(),
        AutoStream::choice(&out) != ColorChoice::Never,
    );
    let began = Instant::now();
    let mut next = began + options.interval.unwrap_or(TABLES);
    let mut sampled = began;
    let mut left = options.count.map(NonZeroU64::get);
    while left != Some(0) {
        sampler.sample()?;
        let is_last = stop.load(Ordering::Relaxed);
        if is_last || Instant::now() >= next {
            let table = sampler.table();
            match options.format {
                Format::Text => output::paint(look, &mut out, |out| {
                    text::render(&table, options.rows.unwrap_or(ROWS), is_painted, out)
                })?,
                Format::Json => json::render(&table, options.rows.unwrap_or(usize::MAX), &mut out)?,
            }
            out.flush()?;
            next = Instant::now() + options.interval.unwrap_or(TABLES);
            left = left.map(|left| left - 1);
        }
        if is_last {
            break;
        }
        sampled = next_sample(sampled, interval);
        pause_until(sampled.min(next), || stop.load(Ordering::Relaxed));
    }
    Ok(())
}

/// Time of the next sample; samples whose time has passed are skipped.
fn next_sample(last: Instant, interval: Duration) -> Instant {
    (last + interval).max(Instant::now())
}

/// Waits until `time`, or until `is_wanted` returns true.
fn pause_until(time: Instant, mut is_wanted: impl FnMut() -> bool) {
    loop {
        let left = time.saturating_duration_since(Instant::now());
        if left.is_zero() || is_wanted() {
            return;
        }
        thread::sleep(left.min(PAUSE));
    }
}
