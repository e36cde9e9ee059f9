//! The closing block in short: one line if all is well, and what is not. `health` says everything.

use unwind_tables::walk::End;

use crate::bpf::Sampling;
use crate::report::health::{self, call_lines, counted, percent};
use crate::report::kernel::kind_lines;
use crate::report::{Report, estimates, overhead, recent, regions, suppressed};

/// The lines. `paths`: what was left out of the paths above.
pub(super) fn lines(report: &Report, paths: Option<String>) -> Vec<String> {
    let mut lines = vec![verdict(report)];
    lines.extend(health::incomplete_lines(report));
    let losses = &report.losses;
    lines.extend(
        health::unseen_lines(losses)
            .into_iter()
            .map(|line| format!("lost: {line}")),
    );
    if health::has_lost(losses) {
        lines.extend(
            health::lost_lines(losses)
                .into_iter()
                .map(|line| format!("lost: {line}")),
        );
    }
    let [allocations, exceptions @ ..] = &call_lines(report)[..] else {
        return lines;
    };
    if report.events.probe_hits == 0 && report.stacks.is_empty() {
        lines.push(allocations.clone());
    }
    if report.events.missed_frees > 0 || report.events.abandoned_calls > 0 {
        lines.extend(exceptions.iter().cloned());
    }
    if report.sampling != Sampling::All || report.events.filtered.blocks > 0 {
        lines.extend(estimates::sampling_lines(report));
    }
    lines.extend(overhead::warnings(report));
    lines.extend(regions::lines(report));
    lines.extend(kind_lines(report));
    lines.extend(recent::young_line(report));
    lines.extend(health::depth_line(report));
    lines.extend(
        suppressed::lines(report)
            .into_iter()
            .map(|line| format!("suppressed: {line}")),
    );
    lines.extend(paths);
    lines
}

/// Whether the stacks are complete and anything was lost, and what tracing costs.
fn verdict(report: &Report) -> String {
    let sums = &report.completeness;
    let complete =
        |counts: &std::collections::BTreeMap<End, u64>| counts.get(&End::Complete).copied().unwrap_or(0);
    let (stacks, walks) = (health::all(&sums.stacks), health::all(&sums.allocations));
    let mut parts = vec![match (stacks, complete(&sums.stacks)) {
        (0, _) => "no allocation was recorded".to_owned(),
        (1, 1) => "the stack is complete".to_owned(),
        (stacks, complete) if stacks == complete => format!("all {stacks} stacks complete"),
        (stacks, some) => format!(
            "{some} of {} complete ({} of allocations)",
            counted(stacks, "stack"),
            percent(complete(&sums.allocations), walks)
        ),
    }];
    if !health::has_lost(&report.losses) && health::unseen_lines(&report.losses).is_empty() {
        parts.push("nothing lost".to_owned());
    }
    parts.extend(overhead::brief(report));
    parts.join(", ")
}
