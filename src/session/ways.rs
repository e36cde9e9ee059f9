//! Ways to attach: which of them are tried, and in which order.

use std::fmt;

use leak_report::model::Sampling;

use super::TraceConfig;
use super::live::Prepared;
use crate::allocator::Selection;
use crate::bpf::{AttachPath, CallHooks};

/// Maximum number of ways that may be tried: mapping calls are followed in one of several ways, or not at all.
pub(super) const MAX_WAYS: usize = AttachPath::ALL.len() * (CallHooks::ALL.len() + 1);

/// A way to attach.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub(super) path: AttachPath,
    /// How mapping calls are followed to account mappings or pages.
    pub(super) regions: Option<CallHooks>,
    /// How they are followed to note which memory blocks were freed from.
    pub(super) frees: Option<CallHooks>,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} probes", self.path)?;
        match self.regions.or(self.frees) {
            Some(calls) => write!(f, ", mapping calls by {calls}"),
            None => Ok(()),
        }
    }
}

/// Ways to attach, in the order in which they are tried. The last one works on every kernel.
pub(super) fn ways(config: &TraceConfig, prepared: &Prepared) -> Vec<Way> {
    let hooks = || CallHooks::supported().into_iter().map(Some);
    let (regions, frees) = match (config.is_of_blocks(), notes_frees(config, prepared)) {
        (false, _) => (hooks().collect(), vec![None]),
        // Verdicts are possible without.
        (true, true) => (vec![None], hooks().chain([None]).collect()),
        (true, false) => (vec![None], vec![None]),
    };
    let mut ways = Vec::new();
    // A kernel can lack one path or one kind of hooks: of the hooks there is less to choose from that is worth having.
    for frees in frees {
        for &path in &config.attach {
            let of_path = regions.iter().map(|&regions| Way { path, regions, frees });
            ways.extend(of_path);
        }
    }
    ways
}

/// Returns whether it is noted which memory blocks were freed from: for verdicts, if all blocks are recorded of functions that are
/// known to do nothing else than allocate and free.
fn notes_frees(config: &TraceConfig, prepared: &Prepared) -> bool {
    config.view.verdict.is_some()
        && prepared.sampling == Sampling::All
        && config.sizes.is_none()
        && !prepared.probes.are_announced()
        && config.allocators == Selection::default()
}
