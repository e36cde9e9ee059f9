//! The process that is diagnosed: the only one that matches, or of several the one that grows fastest.

use std::time::Duration;

use anyhow::Context;

use crate::commands::targets::without_wait;
use crate::commands::top::survey;
use crate::process::select::{Found, Selection, Selectors, Wanted};
use crate::session::Signals;
use leak_report::model::diagnosis::{Among, Diagnosis};

/// Minimum time for which several processes are compared, unless that is more than half of all.
const MIN_TIME: Duration = Duration::from_secs(10);

/// Outcome of the choice.
pub(super) enum Choice {
    /// The only one that matches.
    Only(u32),
    /// Processes that grow, the fastest first.
    Growing {
        pids: Vec<u32>,
        /// All of them.
        among: Among,
    },
    /// None of several grows, and that is the answer.
    None(Diagnosis),
}

/// Chooses a process; compares them for a quarter of `time` if several match.
///
/// # Errors
///
/// Fails if none matches, or processes cannot be read.
pub(super) fn choose(selectors: &Selectors, time: Duration, signals: &Signals) -> anyhow::Result<Choice> {
    if let Some(pid) = only(selectors)? {
        return Ok(Choice::Only(pid));
    }
    let time = comparing(time);
    let found = survey(selectors, time, &signals.stop).context("cannot compare processes")?;
    Ok(match found.growing.is_empty() {
        false => Choice::Growing {
            pids: found.growing,
            among: found.among,
        },
        true => Choice::None(Diagnosis {
            process: None,
            took: found.among.took,
            among: Some(found.among),
            growth: found.growth,
            bytes_per_second: 0.0,
            causes: Vec::new(),
            steps: Vec::new(),
        }),
    })
}

/// The only process that matches; `None` if there are several, or none is named.
fn only(selectors: &Selectors) -> anyhow::Result<Option<u32>> {
    if *selectors == Selectors::default() {
        return Ok(None);
    }
    if let ([Wanted::Pid(pid)], false) = (&selectors.wanted[..], selectors.has_others()) {
        return Ok(Some(*pid));
    }
    let found = Selection::new(selectors.clone())?.scan().map_err(without_wait)?;
    match &found[..] {
        [found] => Ok(Some(found.pid)),
        found => {
            tracing::info!("{} processes: {}", found.len(), Found::list(found));
            Ok(None)
        }
    }
}

/// Part of the time in which processes are compared.
fn comparing(time: Duration) -> Duration {
    (time / 4).max(MIN_TIME).min(time / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quarter of the time, but at least ten seconds, and at most half.
    #[test]
    fn times() {
        for (all, expected) in [(240, 60), (60, 15), (30, 10), (20, 10), (10, 5)] {
            let time = comparing(Duration::from_secs(all));
            assert_eq!(time, Duration::from_secs(expected), "{all}");
        }
    }
}
