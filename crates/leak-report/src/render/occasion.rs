//! Lines on the occasion of a report: why it was made, and the processes that were killed for lack of memory.

use super::words::counted;
use crate::model::printable::Printable;
use crate::model::{Report, TargetFacts};

/// Maximum number of processes that are named.
const MAX_KILLED: usize = 5;

/// Lines below the header; usually none.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let reason = report
        .reason
        .as_ref()
        .map(|reason| format!("Reported because {}", Printable(&reason.to_string())));
    let killed = || report.targets.iter().filter_map(killed_line);
    let more = killed().count().saturating_sub(MAX_KILLED) as u64;
    let more = (more > 0).then(|| format!("And {} killed for lack of memory", counted(more, "more process")));
    let killed = killed().take(MAX_KILLED);
    reason.into_iter().chain(killed).chain(more).collect()
}

fn killed_line(target: &TargetFacts) -> Option<String> {
    let lack = target.lack.as_ref()?;
    let comm = Printable(&target.comm);
    Some(format!(
        "The kernel killed {comm} ({}) for lack of memory: {lack}",
        target.pid
    ))
}
