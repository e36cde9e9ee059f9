//! Processes that are not traced, and that probes in all processes would harm.

use anyhow::{Context as _, bail};

use super::TraceConfig;
use super::attachments::Attachments;
use crate::bpf::{AttachPath, DynamicEvents, ProbedIn};
use crate::process::translator::{self, Translated};

/// Maximum number of processes that get separate probes. Each adds some 50 ns to a trap of all others, and
/// takes a tenth of a second to attach and to detach; but shared probes are a trap for every process that has
/// mapped the same files, traced or not.
const MAX_PROBED_APART: usize = 16;
/// Maximum number of processes that carry events. For each added carrier, the kernel looks at all carriers
/// for each process that has the file mapped: 200 take 0.7 s, a thousand take minutes.
const MAX_FAMILIES: usize = 256;
/// Maximum number of processes that a message names.
const MAX_NAMED: usize = 4;

/// How the processes of a trace have their probes.
#[derive(Debug)]
pub(super) enum Sharing {
    /// Each has separate probes.
    Apart,
    /// One set is in the traced processes and, from their first instruction on, in those that they start; in
    /// no others.
    Families(DynamicEvents),
    /// One set is in all processes with the same files.
    All,
}

impl Sharing {
    /// Chooses how probes are shared for a way to attach. `events`: those of [`events_for`], unless a way
    /// that was tried before has taken them.
    ///
    /// # Errors
    ///
    /// Probes would be in all processes, and would kill some.
    pub(super) fn choose(
        config: &TraceConfig,
        processes: usize,
        path: AttachPath,
        events: &mut Option<DynamicEvents>,
    ) -> anyhow::Result<Self> {
        if !share_probes(config.targets.follow_fork, processes) {
            return Ok(Self::Apart);
        }
        if path == AttachPath::Perf
            && let Some(events) = events.take().or_else(|| events_for(config, processes))
        {
            return Ok(Self::Families(events));
        }
        check(config)?;
        Ok(Self::All)
    }

    pub(super) fn are_families(&self) -> bool {
        matches!(self, Self::Families(_))
    }

    pub(super) fn is_shared(&self) -> bool {
        !matches!(self, Self::Apart)
    }

    /// Adds the attached probes to a process that was not started by a traced one.
    pub(super) fn carry(&self, attached: &mut Attachments, pid: u32) -> anyhow::Result<()> {
        let Self::Families(events) = self else {
            return Ok(());
        };
        attached.carry(events, pid).context("cannot add its probes")
    }

    /// Returns where probes are attached for process `pid`. `all` are the traced processes, used only for
    /// families.
    pub(super) fn probed_in(&self, pid: u32, all: impl Iterator<Item = u32>) -> ProbedIn<'_> {
        match self {
            Self::Apart => ProbedIn::Process(pid),
            Self::Families(events) => ProbedIn::Families(events, all.collect()),
            Self::All => ProbedIn::All,
        }
    }
}

/// Events that this number of processes can carry, if they share probes; `None` if there are no such events,
/// or attaching them would take too long.
pub(super) fn events_for(config: &TraceConfig, processes: usize) -> Option<DynamicEvents> {
    (share_probes(config.targets.follow_fork, processes) && processes <= MAX_FAMILIES)
        .then(DynamicEvents::available)
        .flatten()
}

/// Returns whether several processes share one set of probes.
pub(super) fn share_probes(follow_fork: bool, processes: usize) -> bool {
    follow_fork || processes > MAX_PROBED_APART
}

/// Checks that probes in all processes will kill none of them. Processes to trace are checked elsewhere, one
/// by one.
///
/// # Errors
///
/// Some are executed in translated copies; the error names them and what to do.
fn check(config: &TraceConfig) -> anyhow::Result<()> {
    if config.targets.ignores_translators {
        return Ok(());
    }
    let mut running = translator::running();
    running.retain(|one| !config.targets.pids.contains(&one.pid));
    if running.is_empty() {
        return Ok(());
    }
    let (why, instead) = match config.targets.follow_fork {
        true => ("children are followed", "leave out --follow-fork"),
        false => ("so many processes are traced", "trace fewer at a time"),
    };
    bail!(
        "{} would be killed by a probe: as {why}, probes are in all processes, and these run translated \
         copies of their code; {instead}, wait until they have ended, mount tracefs (mount -t tracefs \
         tracefs /sys/kernel/tracing) so that only traced processes get probes, or give --ignore-translators",
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
