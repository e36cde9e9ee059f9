//! A look at several processes, without probes, for a command that then turns to one of them.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::options::Options;
use super::pace::{next_sample, pause_until};
use super::sampler::Sampler;
use super::table::{Row, Table, Trend};
use crate::commands::Format;
use crate::process::select::Selectors;
use leak_report::model::diagnosis::{Among, Growth, Holding};
use memleak_why::{MIN_RATE, MIN_SHARE, OPEN_SHARE};

/// Number of processes that are named if none grows.
const LARGEST: usize = 3;

/// Result of a look at several processes.
pub(in crate::commands) struct Survey {
    pub(in crate::commands) among: Among,
    /// Those that certainly grow by an amount that matters, the fastest first.
    pub(in crate::commands) growing: Vec<u32>,
    /// Answer for all of them together.
    pub(in crate::commands) growth: Growth,
}

/// Looks at processes for this time, or until `stop` is set.
///
/// # Errors
///
/// Fails if nothing matches, or processes cannot be read.
pub(in crate::commands) fn survey(
    selectors: &Selectors,
    time: Duration,
    stop: &AtomicBool,
) -> anyhow::Result<Survey> {
    let options = Options {
        selectors: selectors.clone(),
        waits: false,
        interval: Some(time),
        count: None,
        window: None,
        rows: None,
        format: Format::Json,
    };
    let interval = options.table_interval();
    let mut sampler = Sampler::new(&options, interval)?;
    let mut sampled = Instant::now();
    let end = sampled + time;
    loop {
        sampler.sample()?;
        if stop.load(Ordering::Relaxed) || Instant::now() >= end {
            return Ok(Survey::of(&sampler.table()));
        }
        sampled = next_sample(sampled, interval);
        pause_until(sampled.min(end), || stop.load(Ordering::Relaxed));
    }
}

impl Survey {
    /// The table's rows are in the order of certain growth.
    fn of(table: &Table) -> Self {
        let growing = table.rows.iter().filter(|row| grows(row));
        let growing: Vec<_> = growing.map(|row| row.pid).collect();
        let growth = match growing.is_empty() {
            false => Growth::Grows,
            true if table.rows.iter().all(is_early) || table.rows.iter().any(is_open) => Growth::NotSure {
                more: 2 * table.elapsed,
            },
            true => Growth::Steady {
                at_most: at_most(&table.rows),
            },
        };
        let mut largest: Vec<_> = table.rows.iter().collect();
        largest.sort_by_key(|row| (Reverse(row.memory.bytes()), row.pid));
        largest.truncate(if growing.is_empty() { LARGEST } else { 0 });
        Self {
            among: Among {
                processes: table.rows.len() as u64,
                took: table.elapsed,
                largest: largest.into_iter().map(holding).collect(),
            },
            growing,
            growth,
        }
    }
}

fn holding(row: &Row) -> Holding {
    Holding {
        pid: row.pid,
        comm: row.comm.clone(),
        bytes: row.memory.bytes(),
    }
}

/// True if a process certainly grows, by an amount that the diagnosis of a single one calls growth, too.
fn grows(row: &Row) -> bool {
    let least = (MIN_SHARE * row.memory.bytes() as f64).max(60.0 * MIN_RATE);
    row.trend() == Trend::Grows && row.growth.slope >= least
}

/// True if a process may still turn out to grow.
fn is_open(row: &Row) -> bool {
    let most = OPEN_SHARE * row.memory.bytes() as f64;
    !is_early(row) && row.growth.slope > 60.0 * MIN_RATE && row.growth.high > most
}

fn is_early(row: &Row) -> bool {
    row.trend() == Trend::Early
}

/// Largest growth that may have been missed, in bytes per second.
fn at_most(rows: &[Row]) -> f64 {
    let judged = rows.iter().filter(|row| !is_early(row));
    judged.map(|row| row.growth.high / 60.0).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::table::tests::row;

    fn of(rows: Vec<Row>) -> Survey {
        let mut table = Table {
            elapsed: Duration::from_secs(15),
            rows,
            ..Table::default()
        };
        table.sort();
        Survey::of(&table)
    }

    /// The fastest certain growth is chosen, whatever the size; growth of a few pages is none.
    #[test]
    fn the_fastest() {
        let small = row(1, 1 << 20, 1e6, 2e6);
        let large = row(2, 1 << 30, 3e6, 4e6);
        let unsure = row(3, 1 << 40, -1e9, 9e9);
        let survey = of(vec![small.clone(), large, unsure]);
        assert_eq!((survey.growing, survey.among.processes), (vec![2, 1], 3));
        assert_eq!((survey.growth, survey.among.largest.len()), (Growth::Grows, 0));
        let pages = row(4, 1 << 20, 100.0, 8000.0);
        assert!(of(vec![pages.clone()]).growing.is_empty());
        // A megabyte a minute is not much of a terabyte.
        assert!(of(vec![row(5, 1 << 40, 1e6, 2e6), pages]).growing.is_empty());
        assert_eq!(of(vec![small]).growing, [1]);
    }

    /// If none grows, the largest are named, and what may still turn out to grow makes the answer unsure.
    #[test]
    fn none_grows() {
        let steady = |pid: u32| row(pid, u64::from(pid) << 20, -1.0, 1.0);
        let survey = of((1..=5).map(steady).collect());
        let largest = survey.among.largest.iter().map(|holding| holding.pid);
        assert_eq!(largest.collect::<Vec<_>>(), [5, 4, 3]);
        assert!(matches!(survey.growth, Growth::Steady { at_most } if at_most < 1.0));
        let early = Row {
            samples: 3,
            ..steady(9)
        };
        let open = row(9, 1 << 20, -1e6, 9e6);
        let more = Duration::from_secs(30);
        for rows in [vec![early.clone()], vec![steady(1), open]] {
            assert_eq!(of(rows).growth, Growth::NotSure { more });
        }
        assert!(matches!(of(vec![steady(1), early]).growth, Growth::Steady { .. }));
    }
}
