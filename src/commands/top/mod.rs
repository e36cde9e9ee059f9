//! `memleak top`: shows which processes' anonymous memory grows, without any probe.
//!
//! ```text
//!  /proc ─ read ─► watch ─ sampler ─► table ─► text | json | view ─ Enter ─► a trace
//! ```
//!
//! Growth is the Theil–Sen slope over the last samples. A process counts as growing or shrinking only if the
//! 99 % confidence interval of the slope excludes 0.

mod json;
mod options;
mod pace;
mod read;
mod sampler;
mod survey;
mod table;
mod text;
#[cfg(feature = "tui")]
mod view;
mod watch;

use std::io::Write;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anstream::{AutoStream, ColorChoice};

use super::Format;
use crate::sinks::live::Messages;
use crate::sinks::output::{self, Look, standard};
use options::TABLES;
#[cfg(feature = "tui")]
use options::{MIN_INTERVAL, VIEW};
pub use options::{Options, Outcome};
use pace::{next_sample, pause_until};
use sampler::Sampler;
pub(super) use survey::survey;

/// Default number of rows of a table in text.
const ROWS: usize = 10;

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
