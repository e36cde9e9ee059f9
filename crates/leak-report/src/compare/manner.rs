//! Subjects and settings of reports, which must agree for reports to be comparable.

use std::collections::BTreeSet;
use std::time::Duration;

use unwind_tables::walk::Unwind;

use crate::model::{Amount, Sampling, Source};
use crate::model::{Report, TargetFacts};
use crate::render::printable;

/// Maximum number of programs listed in a note.
const MAX: usize = 3;

/// Subject of a report, and the settings it was made with.
#[derive(Clone, Debug)]
pub(super) struct Manner {
    subject: BTreeSet<String>,
    sampling: Sampling,
    /// True for mappings, false for blocks; `None` if there is neither.
    is_of_mappings: Option<bool>,
    is_of_pages: bool,
    unwind: Unwind,
    older: Option<Duration>,
    is_filtered: bool,
    has_verdict: bool,
}

impl Manner {
    pub(super) fn of(report: &Report) -> Self {
        Self {
            subject: subject(report),
            sampling: report.sampling,
            is_of_mappings: report.stacks.first().map(|stack| stack.kind.is_some()),
            is_of_pages: report.source == Source::Faults,
            unwind: report.unwind,
            older: report.compared.older,
            is_filtered: report.events.filtered != Amount::default(),
            has_verdict: report.judgement.is_some(),
        }
    }

    /// Reasons why this report and a later one may not be comparable.
    pub(super) fn notes(&self, later: &Self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.subject != later.subject {
            let (was, is) = (listed(&self.subject), listed(&later.subject));
            notes.push(format!("they are of different programs: {was} and {is}"));
        }
        if !is_same_sampling(self.sampling, later.sampling) {
            let (was, is) = (sampling(self.sampling), sampling(later.sampling));
            notes.push(format!("allocations were sampled differently: {was}, and {is}"));
        }
        let reasons = [
            (
                self.is_of_mappings
                    .is_some_and(|is| later.is_of_mappings == Some(!is)),
                "one is of mappings (--mmap), the other is not",
            ),
            (
                self.is_of_pages != later.is_of_pages,
                "one is of pages (--faults), the other is not",
            ),
            (
                self.unwind != later.unwind,
                "stacks were walked differently (--unwind): few will be the same",
            ),
            (
                self.older != later.older,
                "blocks count as young up to different ages (-o)",
            ),
            (
                self.is_filtered != later.is_filtered,
                "sizes were left out (-z, -Z) in one of them only",
            ),
            (
                self.has_verdict != later.has_verdict,
                "only one has a verdict on lost blocks",
            ),
        ];
        let reasons = reasons.into_iter().filter(|(applies, _)| *applies);
        notes.extend(reasons.map(|(_, reason)| reason.to_owned()));
        notes
    }
}

/// File names of executables, or process names if these are not known; "the kernel" if it was traced.
fn subject(report: &Report) -> BTreeSet<String> {
    if report.kernel.is_some() {
        return BTreeSet::from(["the kernel".to_owned()]);
    }
    let name = |target: &TargetFacts| match &target.exe {
        Some(exe) => exe.rsplit('/').next().unwrap_or(exe).to_owned(),
        None => target.comm.clone(),
    };
    report.targets.iter().map(name).collect()
}

fn listed(names: &BTreeSet<String>) -> String {
    let mut some: Vec<_> = names.iter().take(MAX).map(|name| printable(name)).collect();
    match names.len().saturating_sub(MAX) {
        0 => {}
        more => some.push(format!("{more} more")),
    }
    match some.is_empty() {
        true => "none".to_owned(),
        false => some.join(", "),
    }
}

/// Governed sampling counts as equal: its interval depends on the load.
fn is_same_sampling(before: Sampling, after: Sampling) -> bool {
    matches!((before, after), (Sampling::Governed(_), Sampling::Governed(_))) || before == after
}

fn sampling(sampling: Sampling) -> String {
    match sampling {
        Sampling::All => "all".to_owned(),
        Sampling::Calls(calls) => format!("one of {calls}"),
        Sampling::Bytes(bytes) => format!("one for each {bytes} B"),
        Sampling::Governed(bytes) => format!("one for each {bytes} B at last (--max-overhead)"),
        Sampling::Provider(None) => "by the process".to_owned(),
        Sampling::Provider(Some(bytes)) => format!("by the process, one for each {bytes} B"),
    }
}
