//! A report in a few lines: the outstanding total, and the first sites.

use std::io::{self, Write};

use super::diagnosis::DiagnosisText;
use super::people::subject;
use super::titles::{process_mark, title};
use super::verdict;
use super::words::{counted, percent, short_size, size};
use super::{estimates, missing, occasion};
use crate::model::Report;
use crate::model::leak::Suspicion;
use crate::model::owner::callers;
use crate::model::printable::Printable;
use crate::model::{Amount, Estimate, Sampling, StackRef};

/// Maximum number of sites shown.
const MAX_SITES: usize = 5;
/// Maximum number of callers of the responsible function shown.
const MAX_CALLERS: usize = 2;

/// Writes the summary of `report`.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let ranked = report.ranked();
    let all: Estimate = ranked.iter().map(|stack| stack.shown_estimate()).sum();
    let seconds = report.elapsed.as_secs_f64();
    writeln!(
        out,
        "[{}] Summary of {} after {seconds:.1} s",
        report.time,
        subject(report)
    )?;
    for line in occasion::lines(report) {
        writeln!(out, "  {line}")?;
    }
    if let Some(diagnosis) = &report.diagnosis {
        let DiagnosisText { headline, causes, .. } = DiagnosisText::from(&**diagnosis);
        writeln!(out, "  {:<15} {headline}", "Diagnosis:")?;
        for cause in causes {
            writeln!(out, "  {:<15} {}", "Cause:", cause.title)?;
        }
    }
    let Amount { bytes, blocks } = all.amount;
    for (label, value) in [
        ("Outstanding", size(bytes)),
        ("Sites", ranked.len().to_string()),
        ("Blocks", blocks.to_string()),
        ("Average block", size(average(all.amount))),
    ] {
        writeln!(out, "  {:<15} {value}", format!("{label}:"))?;
    }
    for line in verdict::lines(report) {
        writeln!(out, "  {:<15} {line}", "Verdict:")?;
    }
    for (label, value) in doubts(report, all) {
        writeln!(out, "  {label:<15} {value}")?;
    }
    if !ranked.is_empty() {
        writeln!(out, "\nTop {} sites:", ranked.len().min(MAX_SITES))?;
    }
    for (stack, number) in ranked.into_iter().take(MAX_SITES).zip(1..) {
        write_site(stack, number, report, out)?;
    }
    writeln!(out)
}

/// Reasons why the numbers are inexact or incomplete.
fn doubts(report: &Report, all: Estimate) -> Vec<(&'static str, String)> {
    let mut doubts = Vec::new();
    if report.sampling != Sampling::All {
        doubts.push(("Estimated:", estimates::error(all.spread)));
    }
    let [complete, walks] = report.completeness.complete_allocations();
    if complete < walks {
        let share = percent(complete, walks);
        doubts.push(("Stacks:", format!("{share} of allocations have complete ones")));
    }
    let missing = missing::lines(report).into_iter();
    doubts.extend(missing.map(|line| ("Missing:", line)));
    let losses = &report.losses;
    if losses.blocks > 0 {
        let blocks = counted(losses.blocks, "block");
        doubts.push(("Lost:", format!("{blocks}, {}", size(losses.bytes))));
    }
    if losses.frees > 0 {
        doubts.push(("Lost:", format!("{} not seen", counted(losses.frees, "free"))));
    }
    doubts
}

fn write_site(stack: StackRef<'_>, number: usize, report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let amount = stack.shown();
    let suspicion = stack.recent.suspicion.filter(Suspicion::is_known);
    let suspicion = suspicion.map_or_else(String::new, |suspicion| {
        format!(", suspicion {} of {}", suspicion.score(), Suspicion::MAX_SCORE)
    });
    let title = title(stack, report.names);
    writeln!(out, "{number}. {title}{}", process_mark(stack, report))?;
    writeln!(
        out,
        "   {} in {}, average {}{suspicion}",
        size(amount.bytes),
        counted(amount.blocks, "block"),
        short_size(average(amount))
    )?;
    if let Some(of_stack) = verdict::of_stack(stack) {
        writeln!(out, "   {of_stack}")?;
    }
    for caller in callers(stack).skip(1).take(MAX_CALLERS) {
        writeln!(out, "   < {}", Printable(&report.names.show(&caller)))?;
    }
    Ok(())
}

fn average(amount: Amount) -> u64 {
    let half = amount.blocks / 2;
    amount
        .bytes
        .saturating_add(half)
        .checked_div(amount.blocks)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Averages are rounded to the nearest integer.
    #[test]
    fn averages() {
        assert_eq!(average(Amount { bytes: 7, blocks: 2 }), 4);
        assert_eq!(average(Amount { bytes: 7, blocks: 0 }), 0);
    }
}
