//! Finds the processes that a command applies to, and logs them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::bail;

use crate::bpf::{Capacity, preflight};
use crate::process;
use crate::process::select::{Found, SelectError, Selection, Selectors, Wanted};
use crate::session::TraceConfig;

/// Time between two searches.
const PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of searches that find something before a trace begins anyway. A program that maps no
/// library except its loader, as with musl, always looks as if it were loading, and takes all of them.
const MAX_TRIES: u32 = 10;

/// Processes to look for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetOptions {
    pub selectors: Selectors,
    /// True to wait until something matches.
    pub waits: bool,
}

/// Finds the processes to trace, and adds them to the settings of the trace. Waits for them if
/// `options.waits`, until `stop` is set.
///
/// # Errors
///
/// Fails if nothing or too much matches, or the wait was ended. Also fails, instead of waiting, if nothing
/// can be traced on this system.
pub fn find(options: &TargetOptions, stop: &AtomicBool, trace: &mut TraceConfig) -> anyhow::Result<()> {
    let mut selection = Selection::new(options.selectors.clone())?;
    let found = match selection.scan() {
        Err(SelectError::Nothing(nothing)) if options.waits => {
            preflight::check()?;
            tracing::info!("waiting: {}", nothing.what());
            wait(&mut selection, stop)?
        }
        found => found?,
    };
    let is_given = |found: &&Found| trace.targets.pids.contains(&found.pid);
    let given = found.iter().filter(is_given).count();
    let max = trace.limits.processes.unwrap_or(Capacity::MAX_PROCESSES);
    check_number(trace.targets.pids.len() + found.len() - given, max)?;
    match &found[..] {
        [_] => tracing::info!("process {}", Found::list(&found)),
        _ => tracing::info!("{} processes: {}", found.len(), Found::list(&found)),
    }
    trace.targets.found = found;
    trace
        .targets
        .found
        .retain(|found| !trace.targets.pids.contains(&found.pid));
    Ok(())
}

/// Searches until something matches, and then until two searches in a row find the same processes, none of
/// them still loading: servers start further processes.
fn wait(selection: &mut Selection, stop: &AtomicBool) -> anyhow::Result<Vec<Found>> {
    let mut last = Vec::new();
    let mut tries = 0;
    loop {
        if stop.load(Ordering::Relaxed) {
            bail!("ended while waiting: nothing was traced");
        }
        thread::sleep(PAUSE);
        match selection.scan() {
            Ok(found) if tries >= MAX_TRIES || found == last && !found.iter().any(is_loading) => {
                return Ok(found);
            }
            Ok(found) => {
                last = found;
                tries += 1;
            }
            Err(SelectError::Nothing(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// True if a process may still be loading its libraries: it has mapped code of only two files, its program
/// and its loader.
fn is_loading(found: &Found) -> bool {
    let maps = process::maps_of(found.pid).unwrap_or_default();
    let code = maps.iter().filter(|entry| entry.executable && entry.inode != 0);
    let files: BTreeSet<_> = code.map(|entry| (entry.device, entry.inode)).collect();
    files.len() == 2
}

fn check_number(count: usize, max: u32) -> anyhow::Result<()> {
    if u32::try_from(count).is_ok_and(|count| count <= max) {
        return Ok(());
    }
    bail!(
        "{count} processes match, but at most {max} can be traced at once: select fewer with -p NAME, \
         --systemd-unit, --cgroup, --container or --user together, or give pids"
    )
}

/// Finds the one process that a command applies to.
///
/// # Errors
///
/// Fails if none or several match.
pub fn find_one(selectors: &Selectors) -> anyhow::Result<u32> {
    if let ([Wanted::Pid(pid)], false) = (&selectors.wanted[..], selectors.has_others()) {
        return Ok(*pid);
    }
    let mut selection = Selection::new(selectors.clone())?;
    match &selection.scan().map_err(without_wait)?[..] {
        [found] => Ok(found.pid),
        found => bail!(
            "this command needs exactly one process, but {} match: give the pid of one of {}",
            found.len(),
            Found::list(found)
        ),
    }
}

/// Converts an error for a command that cannot wait.
pub(super) fn without_wait(error: SelectError) -> anyhow::Error {
    match error {
        SelectError::Nothing(nothing) => nothing.without_wait().into(),
        SelectError::Ambiguous(_)
        | SelectError::NoSuchUser(_)
        | SelectError::User { .. }
        | SelectError::Proc { .. } => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many processes as can be traced are accepted, and one more is not.
    #[test]
    fn numbers() {
        assert!(check_number(63, 63).is_ok());
        let error = check_number(64, 63).expect_err("too many").to_string();
        assert!(error.contains("64 processes match, but at most 63"), "{error}");
    }
}
