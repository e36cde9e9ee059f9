//! Opens the processes to trace. Those given by number must be traceable. Those found by their properties are
//! left out with a warning if they are not traceable or have ended meanwhile, as long as one process is left.

use anyhow::{Context, bail};

use super::TraceConfig;
use super::probes::AllocatorProbes;
use crate::process::{Mappings, Modules, Target};

/// Processes and their code, in the same order.
pub(super) struct Members {
    pub(super) targets: Vec<Target>,
    pub(super) mappings: Vec<Mappings>,
}

impl Members {
    /// Opens the processes of `config` and the program that was started, and reads their mappings.
    ///
    /// # Errors
    ///
    /// A given process cannot be traced, or none of those that were found.
    pub(super) fn open(
        config: &TraceConfig,
        started: Option<u32>,
        modules: &mut Modules,
    ) -> anyhow::Result<Self> {
        let mut members = Self {
            targets: Vec::new(),
            mappings: Vec::new(),
        };
        for pid in config.targets.pids.iter().copied().chain(started) {
            members.add(pid, None, modules)?;
        }
        let mut failed = None;
        for found in &config.targets.found {
            if let Err(error) = members.add(found.pid, Some(found.start_time), modules) {
                tracing::warn!("left out: {error:#}");
                failed = Some(error);
            }
        }
        match failed {
            Some(error) if members.targets.is_empty() => Err(error),
            _ => Ok(members),
        }
    }

    fn add(&mut self, pid: u32, start_time: Option<u64>, modules: &mut Modules) -> anyhow::Result<()> {
        let target = Target::open(pid)?;
        if start_time.is_some_and(|start_time| start_time != target.start_time()) {
            bail!("process {pid} has ended, and another one has its pid");
        }
        let mappings = read_mappings(&target, modules)?;
        self.targets.push(target);
        self.mappings.push(mappings);
        Ok(())
    }

    /// Leaves out processes that were found if nothing can be probed in them.
    ///
    /// # Errors
    ///
    /// Nothing can be probed in a given process, or in any.
    pub(super) fn keep_probed(
        &mut self,
        config: &TraceConfig,
        probes: &AllocatorProbes,
        problems: &[String],
    ) -> anyhow::Result<()> {
        let is_found = |pid| config.targets.found.iter().any(|found| found.pid == pid);
        let all = std::mem::take(&mut self.targets).into_iter();
        let mut failed = None;
        for (target, mappings) in all.zip(std::mem::take(&mut self.mappings)) {
            if probes.any(mappings.module_ids()) {
                self.targets.push(target);
                self.mappings.push(mappings);
                continue;
            }
            let pid = target.pid();
            let error = anyhow::anyhow!("nothing to probe in process {pid}: {}", problems.join("; "));
            if !is_found(pid) {
                return Err(error);
            }
            tracing::warn!("left out: {error}");
            failed = Some(error);
        }
        match failed {
            Some(error) if self.targets.is_empty() => Err(error),
            _ => Ok(()),
        }
    }
}

fn read_mappings(target: &Target, modules: &mut Modules) -> anyhow::Result<Mappings> {
    let mappings = target
        .read_mappings(modules)
        .with_context(|| format!("cannot read the mappings of process {}", target.pid()))?;
    if mappings.malformed_lines() > 0 {
        tracing::warn!(
            "{} lines of the process's maps could not be read: stacks end in that code",
            mappings.malformed_lines()
        );
    }
    if mappings.entries().is_empty() {
        bail!("process {} has no code mapped: it has just exited", target.pid());
    }
    Ok(mappings)
}
