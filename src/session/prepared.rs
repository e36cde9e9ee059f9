//! Prepares a trace: all that it needs before it is attached, whichever way that is done.

use anyhow::bail;

use super::config::TraceConfig;
use super::members::Members;
use super::phases::Phases;
use super::probes::{self, AllocatorProbes};
use super::tables::{BuiltTables, Files, ModuleTables, debug_roots};
use super::{preload, provider};
use crate::process::{Mappings, Modules, Target};
use leak_report::model::Sampling;

/// Everything that a trace needs before it is attached, whichever way that is done.
pub(super) struct Prepared {
    pub(super) targets: Vec<Target>,
    /// Pids of targets that can be left out if they have ended.
    pub(super) found: Vec<u32>,
    pub(super) modules: Modules,
    pub(super) built: BuiltTables,
    pub(super) probes: AllocatorProbes,
    pub(super) sampling: Sampling,
    /// Mappings of each target, in the order of `targets`.
    pub(super) mappings: Vec<Mappings>,
    /// Durations of the steps of preparation.
    pub(super) phases: Phases,
}

/// Prepares everything that can be done before anything is loaded.
pub(super) fn prepare(config: &TraceConfig, started: Option<u32>) -> anyhow::Result<Prepared> {
    let mut modules = Modules::new();
    let mut phases = Phases::begin();
    let mut members = Members::open(config, started, &mut modules)?;
    phases.end("read mappings");
    let roots = || debug_roots(&members.targets);
    let files = Files {
        modules: &modules,
        roots: &roots,
    };
    let built = ModuleTables::default().build(&members.mappings, files, config.stacks.walk, |_| true);
    phases.end("build tables");
    let mut probes = AllocatorProbes::new(config.count.allocators.clone(), config.tuning.first_instructions);
    let found = probes.examine(modules.iter(), &modules);
    phases.end("find probes");
    if config.targets.preload {
        for (target, mappings) in members.targets.iter().zip(&members.mappings) {
            preload::check(target.comm(), mappings, &modules, &probes)?;
        }
    }
    let mapped = || modules.iter().filter(|module| !module.is_vdso());
    if let Some(missing) = probes::missing_by_request(&config.count.allocators, &found.problems, mapped()) {
        bail!("nothing to probe: {missing}");
    }
    let sampling = match provider::choose(config, &members.targets, &members.mappings, &probes)? {
        Some(chosen) => {
            probes.use_announcements(chosen.distance);
            match config.count.max_overhead {
                Some(_) => Sampling::Governed(chosen.distance),
                None => Sampling::Provider(chosen.is_known.then_some(chosen.distance)),
            }
        }
        None => config.count.sampling,
    };
    if config.count.counted.is_blocks() && !probes.are_announced() {
        probes::log_discovery(&found);
        let problems: Vec<_> = found.problems.iter().map(ToString::to_string).collect();
        members.keep_probed(config, &probes, &problems)?;
    }
    let Members { targets, mappings } = members;
    Ok(Prepared {
        found: config.targets.found.iter().map(|found| found.pid).collect(),
        mappings,
        targets,
        modules,
        built,
        probes,
        sampling,
        phases,
    })
}
