//! Processes that are not traced and would take harm from probes that are in all of them.

use anyhow::bail;

use super::TraceConfig;
use crate::process::translator::{self, Translated};

/// Maximum number of processes with probes of their own. Each adds some 50 ns to a trap of all others, and takes a tenth of a second to
/// attach and to detach; but shared probes are a trap for every process that has mapped the same files, traced or not.
const MAX_PROBED_APART: usize = 16;
/// Maximum number of processes that a message names.
const MAX_NAMED: usize = 4;

/// Returns whether one set of probes is for all processes.
pub(super) fn share_probes(follow_fork: bool, processes: usize) -> bool {
    follow_fork || processes > MAX_PROBED_APART
}

/// Checks that probes in all processes will end none of them. Of those that are to be traced, each is checked by itself.
///
/// # Errors
///
/// Some are executed in translated copies; the error names them and what to do.
pub(super) fn check(config: &TraceConfig) -> anyhow::Result<()> {
    let processes = config.pids.len() + config.found.len();
    if config.ignores_translators || !share_probes(config.follow_fork, processes) {
        return Ok(());
    }
    let mut running = translator::running();
    running.retain(|one| !config.pids.contains(&one.pid));
    if running.is_empty() {
        return Ok(());
    }
    let (why, instead) = match config.follow_fork {
        true => ("children are followed", "leave out --follow-fork"),
        false => ("so many processes are traced", "trace fewer at a time"),
    };
    bail!(
        "{} would end by a probe: as {why}, probes are in all processes, and these are executed in translated copies of \
         their code; {instead}, wait until they have ended, or give --ignore-translators",
        named(&running)
    )
}

/// The first of these, in words.
fn named(running: &[Translated]) -> String {
    let name = |one: &Translated| format!("{} ({}, by {})", one.pid, one.comm, one.by);
    let mut names: Vec<_> = running.iter().take(MAX_NAMED).map(name).collect();
    if running.len() > MAX_NAMED {
        names.push(format!("{} more", running.len() - MAX_NAMED));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_are_named() {
        let one = |pid| Translated {
            pid,
            comm: "server".to_owned(),
            by: "valgrind",
        };
        assert_eq!(named(&[one(7)]), "7 (server, by valgrind)");
        let many: Vec<_> = (1..=6).map(one).collect();
        assert!(named(&many).ends_with("4 (server, by valgrind), 2 more"));
    }
}
