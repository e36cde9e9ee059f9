//! Ways to attach: which of them there are, in the order in which they are tried.

use std::fmt;

use leak_report::model::{CallTrace, Sampling};

use super::accounting::pages::fault_settings;
use super::bystanders::share_probes;
use super::prepared::Prepared;
use super::{TraceConfig, capacity};
use crate::allocator::Selection;
use crate::bpf::{AttachPath, CallHooks, Settings};

/// Maximum number of ways: mapping calls are followed in one of several ways, or not at all, and Python's
/// functions are read or not.
pub(super) const MAX_WAYS: usize = AttachPath::ALL.len() * (CallHooks::ALL.len() + 1) * 2;

/// A way to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) path: AttachPath,
    /// How mapping calls are followed to account mappings or pages.
    pub(super) regions: Option<CallHooks>,
    /// How they are followed for notes on freed memory.
    pub(super) frees: Option<CallHooks>,
    /// True if walks read functions of Python.
    pub(super) python: bool,
}

impl Way {
    /// Returns whether a program that is loaded for some ways is loaded for this one.
    pub(super) fn loads(&self, program: &str) -> bool {
        let hooks = CallHooks::of_program(program);
        self.path.loads(program) && (hooks.is_none() || hooks == self.regions.or(self.frees))
    }

    /// Returns whether a program that both ways load is the same in both, except for how it is attached.
    pub(super) fn has_the_programs_of(&self, other: &Self) -> bool {
        (self.python, self.frees.is_some()) == (other.python, other.frees.is_some())
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} probes", self.path)?;
        if let Some(calls) = self.regions.or(self.frees) {
            write!(f, ", mapping calls by {calls}")?;
        }
        f.write_str(if self.python { ", with Python" } else { "" })
    }
}

/// Ways to attach, the best first: those without Python's functions last, if `reads_python`. `has_events`:
/// families can carry events.
pub(super) fn ways(
    config: &TraceConfig,
    prepared: &Prepared,
    reads_python: bool,
    has_events: bool,
) -> Vec<Way> {
    let hooks = || CallHooks::supported().into_iter().map(Some);
    let (regions, frees) = match (config.count.counted.is_blocks(), notes_frees(config, prepared)) {
        (false, _) => (hooks().collect(), vec![None]),
        // Verdicts are possible without such notes.
        (true, true) => (vec![None], hooks().chain([None]).collect()),
        (true, false) => (vec![None], vec![None]),
    };
    let paths = paths(config, has_events);
    let mut ways = Vec::new();
    // A kernel can lack one path or one kind of hooks: of the hooks there is less to choose from that is
    // worth having.
    for python in [true, false]
        .into_iter()
        .filter(|&python| reads_python || !python)
    {
        for &frees in &frees {
            for &path in &paths {
                let of_path = regions.iter().map(|&regions| Way {
                    path,
                    regions,
                    frees,
                    python,
                });
                ways.extend(of_path);
            }
        }
    }
    ways
}

/// Paths to attach by. If processes share probes, the path by which no other process gets them comes first.
fn paths(config: &TraceConfig, has_events: bool) -> Vec<AttachPath> {
    let mut paths = config.tuning.attach.clone();
    if has_events {
        paths.sort_by_key(|&path| path != AttachPath::Perf);
    }
    paths
}

/// Returns whether notes on freed memory are kept: for verdicts, if all blocks are recorded, and all probed
/// functions are known to do nothing but allocate and free.
fn notes_frees(config: &TraceConfig, prepared: &Prepared) -> bool {
    config.shown.view.verdict.is_some()
        && prepared.sampling == Sampling::All
        && config.count.sizes.is_none()
        && !prepared.probes.are_announced()
        && config.count.allocators == Selection::default()
}

/// Settings of the kernel side by one way, for programs that memleak has not started.
pub(super) fn kernel_settings(way: Way, config: &TraceConfig, prepared: &Prepared) -> Settings {
    Settings {
        walk: config.stacks.walk,
        fast_paths: config.tuning.fast_paths,
        attach: way.path,
        follow_fork: config.targets.follow_fork,
        follow_members: config.targets.members.is_some(),
        regions: way.regions,
        frees: way.frees,
        faults: fault_settings(config, prepared.probes.catalog()),
        sizes: config.count.sizes,
        sampling: prepared.sampling,
        announced: prepared.probes.are_announced(),
        stops_translated: !config.targets.ignores_translators,
        shares_events: way.path == AttachPath::Perf
            && share_probes(config.targets.follow_fork, prepared.targets.len()),
        calls_move: prepared.probes.catalog().has_calls_that_move(),
        calls: config.shown.calls.map_or(CallTrace::Off, |calls| calls.trace),
        started: None,
        holds_end: false,
        python: way.python,
        capacity: capacity::of(config, prepared),
    }
}
