//! The short closing block: one line if all is well, and lines for problems. `health` writes the full one.

use crate::model::Report;
use crate::model::Sampling;
use crate::render::health;
use crate::render::kernel::kind_lines;
use crate::render::words::{counted, percent};
use crate::render::{
    elsewhere, estimates, missing, overhead, peak, pinned, recent, regions, suppressed, verdict,
};

/// Lines of the block. `paths` explains the abbreviation of the paths above, if there is one.
pub(super) fn lines(report: &Report, paths: Option<String>) -> Vec<String> {
    let (losses, events) = (&report.losses, &report.events);
    let under = |label: &'static str| move |line: String| format!("{label}: {line}");
    let mut lines = vec![in_short(report)];
    lines.extend(verdict::lines(report).into_iter().map(under("verdict")));
    lines.extend(peak::line(report));
    lines.extend(pinned::lines(report).into_iter().map(under("pinned")));
    lines.extend(health::incomplete_lines(report));
    lines.extend(missing::lines(report).into_iter().map(under("missing")));
    lines.extend(health::python_gap_line(report).map(under("Python")));
    lines.extend(health::unseen_lines(losses).into_iter().map(under("lost")));
    if health::has_lost(losses) {
        lines.extend(health::lost_lines(losses).into_iter().map(under("lost")));
    }
    if events.probe_hits == 0 && report.stacks.is_empty() {
        lines.push(health::call_line(report));
    }
    lines.extend(elsewhere::lines(report));
    if events.missed_frees > 0 || events.abandoned_calls > 0 {
        lines.extend(health::exception_lines(events));
    }
    if report.sampling != Sampling::All || events.filtered.blocks > 0 {
        lines.extend(estimates::sampling_lines(report));
    }
    lines.extend(overhead::warnings(report));
    lines.extend(regions::lines(report));
    lines.extend(kind_lines(report));
    lines.extend(recent::young_line(report));
    lines.extend(health::depth_line(report));
    lines.extend(suppressed::lines(report).into_iter().map(under("suppressed")));
    let excerpts = report.excerpts.as_ref().filter(|excerpts| !excerpts.are_whole());
    lines.extend(excerpts.map(|excerpts| excerpts.in_words()).map(under("source")));
    lines.extend(paths);
    lines
}

/// Share of complete stacks, whether nothing was lost, and the cost of tracing.
fn in_short(report: &Report) -> String {
    let [complete, all] = report.completeness.complete_stacks();
    let [complete_walks, walks] = report.completeness.complete_allocations();
    let mut parts = vec![match (complete, all) {
        (_, 0) => "no allocation was recorded".to_owned(),
        (1, 1) => "the stack is complete".to_owned(),
        (complete, all) if complete == all => format!("all {all} stacks complete"),
        (some, all) => format!(
            "{some} of {} complete ({} of allocations)",
            counted(all, "stack"),
            percent(complete_walks, walks)
        ),
    }];
    if !health::has_lost(&report.losses) && health::unseen_lines(&report.losses).is_empty() {
        let all = match report.judgement {
            // Next to a verdict, "lost" means blocks that the process has lost.
            Some(_) => "every block recorded",
            None => "nothing lost",
        };
        parts.push(all.to_owned());
    }
    parts.extend(overhead::brief(report));
    parts.join(", ")
}
