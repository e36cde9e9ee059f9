//! What bcc's two memleaks say around their reports, and what they have no words for.
//!
//! `bcc` is the dialect of `tools/memleak.py`, `libbpf` that of `libbpf-tools/memleak`, both of bcc 0.37. A script that
//! reads one of them finds the same lines here, down to the byte, and nothing else on standard output. Where the
//! originals are wrong, the words are theirs and the values are right: blocks are hidden when they are younger than
//! half a second, not 500 ns (libbpf), and stacks that could not be stored are not dropped without a word (bcc). What
//! a dialect cannot say goes to standard error, in one line for each report.

use std::fmt::Write;

use unwind_tables::walk::End;

use super::health::{counted, size};
use super::{Format, bcc, libbpf};
use crate::model::Report;
use crate::model::{Sampling, StackRef};

/// What happens in a trace besides reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage<'a> {
    /// A program was started, and is held before any of its code runs.
    Started {
        /// As it was given.
        command: &'a str,
        /// Its process.
        pid: u32,
    },
    /// Everything is attached.
    Attached {
        /// The processes; none if it is the kernel.
        pids: &'a [u32],
    },
    /// The program that was started is about to be let go.
    Released,
    /// It has ended, and the trace with it.
    Ended,
}

/// A line for standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beside {
    /// The dialect's own.
    Verbatim(String),
    /// A warning of ours.
    Warning(String),
}

/// What a dialect has besides its reports.
struct Dialect {
    format: Format,
    said: fn(&Stage<'_>) -> Vec<String>,
    beside: fn(&Report) -> Option<String>,
}

const DIALECTS: &[Dialect] = &[
    Dialect {
        format: Format::Bcc,
        said: bcc::said,
        beside: |_| None,
    },
    Dialect {
        format: Format::Libbpf,
        said: libbpf::said,
        beside: libbpf::missing_stacks,
    },
];

impl Format {
    fn dialect(self) -> Option<&'static Dialect> {
        DIALECTS.iter().find(|dialect| dialect.format == self)
    }

    /// The lines that stand between reports when this happens.
    pub fn said(self, stage: &Stage<'_>) -> Vec<String> {
        self.dialect()
            .map_or_else(Vec::new, |dialect| (dialect.said)(stage))
    }

    /// The lines for standard error that go with a report.
    pub fn beside(self, report: &Report) -> Vec<Beside> {
        let Some(dialect) = self.dialect() else {
            return Vec::new();
        };
        let own = (dialect.beside)(report).map(Beside::Verbatim);
        let unsaid = unsaid(report, self).map(Beside::Warning);
        own.into_iter().chain(unsaid).collect()
    }
}

/// What happens when everything is attached: the same words in both dialects.
pub(super) fn attached(pids: &[u32]) -> Vec<String> {
    match pids {
        [] => vec!["Attaching to kernel allocators, Ctrl+C to quit.".to_owned()],
        pids => pids
            .iter()
            .map(|pid| format!("Attaching to pid {pid}, Ctrl+C to quit."))
            .collect(),
    }
}

/// What a reader of the dialect would take for better than it is, in one line; nothing if there is nothing.
fn unsaid(report: &Report, format: Format) -> Option<String> {
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
        false => Some(format!(
            "--format {} has no words for this: {}",
            format.name(),
            facts.join("; ")
        )),
    }
}

/// Of the stacks in the report, those that were not walked to their end.
fn incomplete(report: &Report) -> Option<String> {
    let shown = || report.holders().take(report.top);
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
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn sampled(report: &Report) -> Option<String> {
    match report.sampling {
        Sampling::All | Sampling::Governed(0 | 1) => None,
        Sampling::Calls(_) | Sampling::Bytes(_) | Sampling::Governed(_) => {
            Some("amounts are estimates, not sums of what was sampled".to_owned())
        }
    }
}

fn several(report: &Report) -> Option<String> {
    let targets = report.targets.len();
    (targets > 1).then(|| format!("the stacks of {targets} programs stand together"))
}

fn unlisted(report: &Report) -> Option<String> {
    let lists = report.holders().filter_map(|stack| stack.get().blocks.as_ref());
    let left_out = lists.map(|list| list.left_out).fold(0, u64::saturating_add);
    (left_out > 0).then(|| format!("{} not listed", counted(left_out, "block")))
}
