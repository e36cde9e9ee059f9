//! The closing block of verbose text reports (`-v`): how complete the report is, in a few aligned lines.

use std::fmt::Display;
use std::io::{self, Write};

use unwind_tables::walk::{End, FoundBy};

use super::ends::{advice, explain};
use super::kernel::kind_lines;
use super::modules::{end_lines, fp_lines};
use super::words::{counted, percent, size};
use super::{
    elsewhere, estimates, memory, missing, overhead, peak, pinned, recent, regions, suppressed, verdict,
};
use crate::model::Report;
use crate::model::leak::{PYTHON, WALKS};
use crate::model::printable::Printable;
use crate::model::{Amount, CALLS, Count, Events, InstanceEnd, LOSSES, Losses, OwnMemory};
/// Maximum number of lines about processes.
const MAX_PROCESSES: usize = 10;

/// Writes the block. `paths` explains the abbreviation of the paths above, if there is one.
pub(super) fn render(report: &Report, paths: Option<String>, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out)?;
    match &report.kernel {
        Some(kernel) => line(out, "Kernel", format!("Linux {}", Printable(&kernel.release)))?,
        None => render_targets(report, out)?,
    }
    lines(out, "Calls", call_lines(report))?;
    render_total(report, out)?;
    lines(out, "Peak", peak::always(report).into_iter().collect())?;
    lines(out, "Verdict", verdict::lines(report))?;
    lines(out, "Pinned", pinned::lines(report))?;
    lines(out, "Paths", paths.into_iter().collect())?;
    let excerpts = report.excerpts.as_ref().map(|excerpts| excerpts.in_words());
    lines(out, "Source", excerpts.into_iter().collect())?;
    render_memory(report, out)?;
    lines(out, "Mapped", regions::lines(report))?;
    lines(out, "Kinds", kind_lines(report))?;
    lines(out, "Sampling", estimates::sampling_lines(report))?;
    match report.completeness.stacks.is_empty() {
        true => line(out, "Stacks", "none: no allocation was recorded")?,
        false => {
            render_stacks(report, out)?;
            lines(out, "Ends", end_lines(report))?;
            if report.kernel.is_none() {
                render_frames(report, out)?;
                lines(out, "Python", python_line(report).into_iter().collect())?;
            }
            lines(out, "", fp_lines(report))?;
        }
    }
    lines(out, "Missing", missing::lines(report))?;
    lines(out, "Overhead", overhead::lines(report))?;
    recent::age_lines(report)
        .into_iter()
        .try_for_each(|(label, text)| line(out, label, text))?;
    lines(out, "Left out", suppressed::lines(report))?;
    render_own(report, out)?;
    render_losses(report, out)
}

/// Writes a line of the block; an empty `label` continues the line above.
///
/// # Errors
///
/// Fails if `out` cannot be written.
pub fn line(out: &mut dyn Write, label: &str, text: impl Display) -> io::Result<()> {
    let label = match label {
        "" => String::new(),
        label => format!("{label}:"),
    };
    writeln!(out, "  {label:<10} {text}")
}

/// Writes several lines, the first with the label.
fn lines(out: &mut dyn Write, label: &str, texts: Vec<String>) -> io::Result<()> {
    let labels = std::iter::once(label).chain(std::iter::repeat(""));
    labels
        .zip(texts)
        .try_for_each(|(label, text)| line(out, label, text))
}

fn render_targets(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    // Running processes first: there may be many that have ended.
    let (running, ended): (Vec<_>, Vec<_>) = report.targets.iter().partition(|target| target.ended.is_none());
    let shown = running.iter().chain(&ended).take(MAX_PROCESSES);
    for (index, target) in shown.enumerate() {
        let label = if index == 0 { "Process" } else { "" };
        let exe = target.exe.as_deref().unwrap_or("executable unknown");
        let end = match target.ended {
            None => "",
            Some(InstanceEnd::Exited) => ", exited",
            Some(InstanceEnd::Execed) => ", replaced by exec",
            Some(InstanceEnd::Left) => ", no longer traced",
            Some(InstanceEnd::OutOfMemory) => ", killed for lack of memory",
        };
        let text = format!(
            "{} {} ({}){end}",
            target.pid,
            Printable(&target.comm),
            Printable(exe)
        );
        line(out, label, text)?;
    }
    match report.targets.len().saturating_sub(MAX_PROCESSES) {
        0 => Ok(()),
        more => line(out, "", format!("and {more} more ({} ended in all)", ended.len())),
    }
}

fn render_memory(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let several = report.targets.len() > 1;
    let running = report.targets.iter().filter(|target| target.memory.is_some());
    running.take(MAX_PROCESSES).try_for_each(|target| {
        let error = report.tracked_error(target.instance);
        lines(out, "Memory", memory::lines(target, several, error))
    })?;
    lines(out, "Growth", elsewhere::lines(report))
}

/// Counts of the calls, and of those that were exceptional.
pub(super) fn call_lines(report: &Report) -> Vec<String> {
    let exceptions = exception_lines(&report.events);
    std::iter::once(call_line(report)).chain(exceptions).collect()
}

/// Counts of allocations and frees.
pub(super) fn call_line(report: &Report) -> String {
    let events = &report.events;
    let seconds = report.elapsed.as_secs_f64();
    if events.is_without_calls() {
        let why = match (report.grows_without_calls(), report.grows_elsewhere()) {
            (true, _) => "the allocator's memory grows, by functions that are not probed",
            (false, true) => "memory grows, but not by allocator functions",
            (false, false) => "the process is idle, or calls allocator functions that are not probed",
        };
        return format!("none in {seconds:.1} s: {why}");
    }
    let (allocations, frees) = (
        counted(events.allocations, "allocation"),
        counted(events.frees, "free"),
    );
    format!("{allocations}, {frees} in {seconds:.1} s")
}

/// Counts of exceptional calls, one line for each kind.
pub(super) fn exception_lines(events: &Events) -> Vec<String> {
    if events.is_without_calls() {
        return Vec::new();
    }
    count_lines(&CALLS, events)
}

/// Formats the counts that are not 0.
fn count_lines<T>(counts: &[Count<T>], of: &T) -> Vec<String> {
    let lines = counts.iter().filter_map(|count| count.line.as_ref());
    let shown = lines
        .map(|line| ((line.of)(of), line))
        .filter(|&(count, _)| count > 0);
    shown
        .map(|(count, line)| format!("{} {}", counted(count, line.noun), line.text))
        .collect()
}

/// Writes the total that the shares of stacks refer to, and how many stacks are not shown.
fn render_total(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let stacks = report.outstanding_suspects().count();
    if stacks == 0 {
        return Ok(());
    }
    let Amount { bytes, blocks } = report.outstanding_suspects().map(|stack| stack.shown()).sum();
    let stacks_text = counted(u64::try_from(stacks).unwrap_or(u64::MAX), "stack");
    let shown = match stacks.saturating_sub(report.top) {
        0 => String::new(),
        more => format!(" ({more} not shown: -T {stacks} shows all)"),
    };
    let text = format!(
        "{} outstanding in {} of {stacks_text}{shown}",
        size(bytes),
        counted(blocks, "block")
    );
    line(out, "In all", text)?;
    lines(out, "Depth", depth_line(report).into_iter().collect())
}

/// The limit on the number of frames kept of each stack, if there is one.
pub(super) fn depth_line(report: &Report) -> Option<String> {
    let depth = u64::try_from(report.depth?).unwrap_or(u64::MAX);
    Some(format!(
        "innermost {} of each stack (--perf-max-stack-depth); stacks with the same innermost frames are \
         merged",
        counted(depth, "frame")
    ))
}

fn render_stacks(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let [complete, total] = report.completeness.complete_stacks();
    let [complete_walks, walks] = report.completeness.complete_allocations();
    let share = percent(complete_walks, walks);
    let text = format!("{complete} of {total} complete ({share} of allocations)");
    line(out, "Stacks", text)?;
    lines(out, "", walk_lines(report))?;
    lines(out, "", incomplete_lines(report))
}

/// Counts of walks through code that had just been mapped, one line each.
pub(super) fn walk_lines(report: &Report) -> Vec<String> {
    count_lines(&WALKS, &report.completeness)
}

/// A line for each reason for which stacks are incomplete, followed by its remedy.
pub(super) fn incomplete_lines(report: &Report) -> Vec<String> {
    let sums = &report.completeness;
    let [_, walks] = sums.complete_allocations();
    let mut lines = Vec::new();
    for (&end, &stacks) in sums.stacks.iter().filter(|&(&end, _)| end != End::Complete) {
        let allocations = sums.allocations.get(&end).copied().unwrap_or(0);
        let (name, meaning, share) = (end.name(), explain(end).meaning, percent(allocations, walks));
        lines.push(format!("{stacks} {name} ({share} of allocations): {meaning}"));
        let advice = advice(end, &report.targets);
        if !advice.is_empty() {
            lines.push(format!("  {advice}"));
        }
    }
    lines
}

fn render_frames(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let by = |found_by| report.completeness.frames_by(found_by);
    let (probe, cfi, fp) = (by(FoundBy::Probe), by(FoundBy::Cfi), by(FoundBy::Fp));
    let (generated, uncertain) = (by(FoundBy::FpGenerated), by(FoundBy::FpUncertain));
    let all = [cfi, fp, generated, uncertain]
        .into_iter()
        .fold(probe, u64::saturating_add);
    let mut found = format!("{cfi} by CFI, {fp} by frame pointer ({})", percent(fp, all));
    if generated > 0 {
        let share = percent(generated, all);
        found += &format!(", {generated} by frame pointer of generated code ({share})");
    }
    if uncertain > 0 {
        let share = percent(uncertain, all);
        found += &format!(", {uncertain} by frame pointer with callers that may be missing ({share})");
    }
    line(out, "Frames", found)
}

/// A line about functions of Python in stacks; `None` if none was seen.
pub(super) fn python_line(report: &Report) -> Option<String> {
    let stacks = &report.completeness.python;
    let parts = PYTHON.iter().filter_map(|count| count.line.as_ref());
    let parts = parts.map(|line| ((line.of)(stacks), line.text));
    let shown = parts.filter(|&(blocks, _)| blocks > 0);
    let shown: Vec<_> = shown.map(|(blocks, text)| format!("{blocks} {text}")).collect();
    let functions = counted(report.completeness.frames_by(FoundBy::Python), "function");
    let allocations = shown.join(", ");
    (!shown.is_empty()).then(|| format!("{functions}; allocations: {allocations}"))
}

/// [`python_line`] if functions are missing in stacks.
pub(super) fn python_gap_line(report: &Report) -> Option<String> {
    let stacks = &report.completeness.python;
    python_line(report).filter(|_| stacks.whole < stacks.all())
}

fn render_own(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let OwnMemory {
        resident_bytes,
        peak_bytes,
        kernel_bytes,
    } = report.own;
    let (resident, peak, kernel) = (size(resident_bytes), size(peak_bytes), size(kernel_bytes));
    line(
        out,
        "memleak",
        format!("{resident} resident, at most {peak}; maps in the kernel: {kernel}"),
    )
}

fn render_losses(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let losses = &report.losses;
    unseen_lines(losses)
        .into_iter()
        .try_for_each(|text| line(out, "Lost", text))?;
    lines(out, "Lost", lost_lines(losses))
}

/// Counts of events that were not observed at all, one line each.
pub(super) fn unseen_lines(losses: &Losses) -> Vec<String> {
    count_lines(&LOSSES, losses)
}

/// Short texts on everything that is missing in the amounts.
pub fn losses_in_short(losses: &Losses, size: fn(u64) -> String) -> Vec<String> {
    let blocks =
        has_lost(losses).then(|| format!("{}, {}", counted(losses.blocks, "block"), size(losses.bytes)));
    // Calls that are missing in the call trace are included in the amounts.
    let others = LOSSES.iter().filter(|count| count.field != "calls");
    let others = others.filter_map(|count| {
        let (lost, line) = ((count.of)(losses), count.line.as_ref()?);
        (lost > 0).then(|| counted(lost, line.noun))
    });
    blocks.into_iter().chain(others).collect()
}

/// True if anything was observed and could not be recorded.
pub(super) fn has_lost(losses: &Losses) -> bool {
    losses.blocks > 0 || losses.bytes > 0 || losses.causes.values().any(|&blocks| blocks > 0)
}

/// Amounts that were observed and could not be recorded, by cause; a single line "nothing" if there are none.
pub(super) fn lost_lines(losses: &Losses) -> Vec<String> {
    if !has_lost(losses) {
        return vec!["nothing".to_owned()];
    }
    let mut lines = vec![format!(
        "{}, {}: not in the amounts shown",
        counted(losses.blocks, "block"),
        size(losses.bytes)
    )];
    let causes = losses.causes.iter().filter(|&(_, &blocks)| blocks > 0);
    lines.extend(causes.map(|(cause, blocks)| format!("{blocks} {cause}")));
    lines
}
