//! Output of bcc's two memleaks besides their reports, and the facts that their formats cannot express.
//!
//! Format `bcc` is that of `tools/memleak.py`, `libbpf` that of `libbpf-tools/memleak`, both of bcc 0.37. A
//! script that reads one of them finds the same lines here, byte for byte, and nothing else on standard
//! output. Where the originals are wrong, the wording is theirs and the values are right: blocks are hidden
//! when they are younger than half a second, not 500 ns (libbpf), and stacks that could not be stored are not
//! silently dropped (bcc). Facts that a format cannot express go to standard error, in one line for each
//! report.

use std::fmt::Write;

use unwind_tables::walk::End;

use super::words::{counted, size};
use crate::model::Report;
use crate::model::{Sampling, StackRef};

/// An event of a trace that is not a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage<'a> {
    /// A program was started, and is stopped before any of its code runs.
    Started {
        /// Its command line, as the user gave it.
        command: &'a str,
        /// Its process ID.
        pid: u32,
    },
    /// All probes are placed.
    Attached {
        /// The traced processes; empty when tracing the kernel.
        pids: &'a [u32],
    },
    /// The program that was started is about to run.
    Released,
    /// The program that was started has ended, and with it the trace.
    Ended,
}

/// A line for standard error that goes with a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StderrLine {
    /// A line of the original tool, printed as it is.
    Verbatim(String),
    /// A warning of memleak's own.
    Warning(String),
}

/// Output of a format besides its reports.
pub(super) struct Dialect {
    pub(super) stage_lines: fn(&Stage<'_>) -> Vec<String>,
    pub(super) stderr_line: fn(&Report) -> Option<String>,
}

/// Lines for [`Stage::Attached`], whose wording is the same in both dialects.
pub(super) fn attached(pids: &[u32]) -> Vec<String> {
    match pids {
        [] => vec!["Attaching to kernel allocators, Ctrl+C to quit.".to_owned()],
        pids => pids
            .iter()
            .map(|pid| format!("Attaching to pid {pid}, Ctrl+C to quit."))
            .collect(),
    }
}

/// Facts that the format of this name cannot express and without which the report seems better than it is,
/// as one line; `None` if there are none.
pub(super) fn omitted_facts(report: &Report, format: &str) -> Option<String> {
    let facts = [
        incomplete(report),
        lost(report),
        sampled(report),
        several(report),
        unlisted(report),
    ];
    let facts: Vec<_> = facts.into_iter().flatten().collect();
    match facts.is_empty() {
        true => None,
        false => Some(format!("--format {format} cannot express: {}", facts.join("; "))),
    }
}

/// Number of shown stacks whose walk did not reach the end of the stack, by cause.
fn incomplete(report: &Report) -> Option<String> {
    let shown = || report.outstanding_suspects().take(report.top);
    let is_incomplete = |stack: &StackRef<'_>| stack.end != End::Complete && !stack.is_cut();
    let count = shown().filter(is_incomplete).count();
    if count == 0 {
        return None;
    }
    let mut text = format!("{count} of {} stacks not complete (", shown().count());
    let ends = End::ALL.into_iter().filter_map(|end| {
        let of_end = shown().filter(is_incomplete).filter(|stack| stack.end == end);
        Some((end, of_end.count())).filter(|(_, count)| *count > 0)
    });
    for (index, (end, count)) in ends.enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        _ = write!(text, "{comma}{count} {}", end.name());
    }
    Some(text + ")")
}

fn lost(report: &Report) -> Option<String> {
    let losses = &report.losses;
    let parts = [
        (losses.blocks > 0).then(|| {
            let blocks = counted(losses.blocks, "block");
            format!("{blocks}, {}, not recorded", size(losses.bytes))
        }),
        (losses.frees > 0).then(|| format!("{} not seen", counted(losses.frees, "free"))),
        (losses.processes > 0).then(|| match losses.processes {
            1 => "1 process not traced".to_owned(),
            more => format!("{more} processes not traced"),
        }),
        (losses.beginnings > 0).then(|| {
            let programs = counted(losses.beginnings, "program");
            format!("{programs} not traced from the start")
        }),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn sampled(report: &Report) -> Option<String> {
    match report.sampling {
        Sampling::All | Sampling::Governed(0 | 1) => None,
        Sampling::Calls(_) | Sampling::Bytes(_) | Sampling::Governed(_) | Sampling::Provider(_) => {
            Some("amounts are estimates, not sums of what was sampled".to_owned())
        }
    }
}

fn several(report: &Report) -> Option<String> {
    let targets = report.targets.len();
    (targets > 1).then(|| format!("the stacks of {targets} programs are listed together"))
}

fn unlisted(report: &Report) -> Option<String> {
    let lists = report
        .outstanding_suspects()
        .filter_map(|stack| stack.get().blocks.as_ref());
    let left_out = lists.map(|list| list.left_out).fold(0, u64::saturating_add);
    (left_out > 0).then(|| format!("{} not listed", counted(left_out, "block")))
}
