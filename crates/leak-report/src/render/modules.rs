//! Lines of the closing block by module: where stacks ended, and where frame pointers replaced CFI.

use std::fmt;

use super::ends::explain;
use super::words::{counted, percent};
use crate::model::leak::{EndGroup, ModuleSteps};
use crate::model::printable::Printable;
use crate::model::{ModuleRef, Report};

/// Maximum number of lines of one kind.
const MAX_LINES: usize = 10;

/// One line for each group of ends by module and cause, most allocations first; the last line counts those
/// omitted.
pub(super) fn end_lines(report: &Report) -> Vec<String> {
    let describe = |group: &EndGroup<_>| {
        let EndGroup {
            module,
            end,
            stacks,
            allocations,
            addresses,
        } = group;
        format!(
            "{}: {} in {} ended here: {}{}",
            Name(module.map(|module| report.module(module))),
            counted(*allocations, "allocation"),
            counted(*stacks, "stack"),
            explain(*end).meaning,
            AtAddresses(addresses),
        )
    };
    bounded(report.ends.iter().map(describe).collect())
}

/// One line for each module with frames unwound by frame pointer, most frames first.
pub(super) fn fp_lines(report: &Report) -> Vec<String> {
    let describe = |steps: &ModuleSteps<_>| {
        let module = steps.module.map(|module| report.module(module));
        let share = percent(steps.fp, steps.fp.saturating_add(steps.cfi));
        let table = module.and_then(|module| module.table);
        let covered = table.map(|table| percent(table.covered_bytes, table.code_bytes));
        let covered = covered.map_or(String::new(), |covered| {
            format!("; CFI covers {covered} of its code")
        });
        format!(
            "{}: {} unwound by frame pointer ({share}){covered}",
            Name(module),
            counted(steps.fp, "frame")
        )
    };
    let mut by_fp: Vec<_> = report.steps.iter().filter(|steps| steps.fp > 0).collect();
    // The sort is stable: equal counts stay in the order of all steps.
    by_fp.sort_by_key(|steps| std::cmp::Reverse(steps.fp));
    bounded(by_fp.into_iter().map(describe).collect())
}

fn bounded(mut lines: Vec<String>) -> Vec<String> {
    let more = lines.len().saturating_sub(MAX_LINES);
    if more > 0 {
        lines.truncate(MAX_LINES);
        lines.push(format!("… and {more} more"));
    }
    lines
}

struct Name<'a>(Option<ModuleRef<'a>>);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(module) => Printable(module.basename()).fmt(f),
            None => f.write_str("outside all modules"),
        }
    }
}

/// Displays ` (at 0x1234, 0x1240, …)`.
struct AtAddresses<'a>(&'a [u64]);

impl fmt::Display for AtAddresses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, rest @ ..] = self.0 else {
            return Ok(());
        };
        write!(f, " (at {first:#x}")?;
        match rest {
            [] => {}
            [second] => write!(f, ", {second:#x}")?,
            [second, ..] => write!(f, ", {second:#x}, …")?,
        }
        f.write_str(")")
    }
}
