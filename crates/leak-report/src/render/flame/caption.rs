//! Caption of a flame graph: title, and notes on how complete and how exact it is.

use super::super::estimates::whole;
use super::super::health::losses_in_short;
use super::super::peak;
use super::super::recent::in_whole_units;
use super::super::verdict::{doubts, in_words};
use super::super::words::{counted, percent, size};
use crate::model::{Amount, Estimate, Losses, Sampling, Spread};
use crate::model::{Direction, Measure, Quantity, Report, Unit};

/// Caption of a flame graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caption {
    /// Quantity, target, time and share of complete stacks.
    pub title: String,
    /// Notes on what is included, estimated or missing.
    pub subtitle: Option<String>,
    /// Unit of the widths.
    pub unit: Unit,
}

impl Caption {
    /// The caption of a graph of `quantity` over the stacks of `report`.
    pub fn of(report: &Report, quantity: Quantity) -> Self {
        let mut notes = notes(report, quantity);
        if report.direction == Direction::Allocating {
            notes.insert(
                0,
                "allocating functions first, their callers above them".to_owned(),
            );
        }
        Self {
            title: title(report, quantity),
            subtitle: (!notes.is_empty()).then(|| notes.join("; ")),
            unit: quantity.unit,
        }
    }
}

/// Name of a quantity outside a caption; for growth, with the time that it is counted from.
pub(crate) fn name(report: &Report, quantity: Quantity) -> String {
    match quantity.measure {
        Measure::Outstanding
        | Measure::Allocated
        | Measure::Peak
        | Measure::DefinitelyLost
        | Measure::Pinned => short_name(quantity),
        Measure::Growth => format!("{} since {}", short_name(quantity), since(report)),
    }
}

fn short_name(quantity: Quantity) -> String {
    let unit = quantity.unit.name();
    match quantity.measure {
        Measure::Outstanding => format!("Outstanding {unit}"),
        Measure::Allocated => format!("Allocated {unit}"),
        Measure::Growth => format!("Growth in {unit}"),
        Measure::Peak => format!("Peak {unit}"),
        Measure::DefinitelyLost => format!("Definitely lost {unit}"),
        Measure::Pinned => pinned_name(quantity.unit).to_owned(),
    }
}

/// Name of what blocks pin.
fn pinned_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "Free bytes that blocks pin",
        Unit::Blocks => "Blocks that pin free memory",
    }
}

/// Remarks on the completeness of stacks and the accuracy of amounts.
pub(crate) fn remarks(report: &Report, quantity: Quantity) -> Vec<String> {
    completeness(report)
        .into_iter()
        .chain(notes(report, quantity))
        .collect()
}

/// Quantity, target, time and share of complete stacks.
fn title(report: &Report, quantity: Quantity) -> String {
    let seconds = report.elapsed.as_secs_f64();
    let mut title = format!("{}: {}, {seconds:.1} s", short_name(quantity), target(report));
    if let Some(complete) = completeness(report) {
        title += &format!(", {complete}");
    }
    title
}

/// The time that growth is counted from.
fn since(report: &Report) -> String {
    let compared = &report.compared;
    match (compared.marked, compared.first) {
        (Some(time), _) => format!("{time} (marked)"),
        (None, true) => "the attach".to_owned(),
        (None, false) => "the last report".to_owned(),
    }
}

fn target(report: &Report) -> String {
    if let Some(kernel) = &report.kernel {
        return format!("Linux {}", kernel.release);
    }
    let first = report.targets.first();
    let first = first.map_or_else(String::new, |first| format!("{} ({})", first.comm, first.pid));
    match report.targets.len().saturating_sub(1) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Share of allocations with complete stacks; `None` if there are no stacks.
fn completeness(report: &Report) -> Option<String> {
    let [complete, all] = report.completeness.complete_allocations();
    (all > 0).then(|| format!("complete stacks: {} of allocations", percent(complete, all)))
}

fn notes(report: &Report, quantity: Quantity) -> Vec<String> {
    let mut notes = Vec::new();
    if quantity.measure == Measure::Growth {
        notes.push(format!("of stacks that grew since {}", since(report)));
    }
    // The error of amounts at the peak is not kept.
    if report.sampling != Sampling::All && quantity.measure != Measure::Peak {
        let spread: Spread = report.suspects().map(|stack| quantity.spread_of(stack)).sum();
        let error = spread.standard_error();
        let error = match quantity.unit {
            Unit::Bytes => rounded(whole(error.bytes)),
            Unit::Blocks => counted(whole(error.blocks), "block"),
        };
        notes.push(format!("estimated from samples, in all ± {error}"));
    }
    if quantity.measure == Measure::Outstanding {
        notes.extend(young(report));
    }
    if quantity.measure == Measure::Peak {
        notes.push(at_peak(report));
    }
    if quantity.measure == Measure::DefinitelyLost {
        notes.extend(verdict(report));
    }
    if quantity.measure == Measure::Pinned && report.pinned().is_none() {
        notes.push("what blocks pin is not known".to_owned());
    }
    notes.extend(lost(&report.losses));
    notes
}

/// The verdict on all blocks, and reasons to doubt it.
fn verdict(report: &Report) -> Vec<String> {
    match (report.verdict(), &report.judgement) {
        (Some(verdict), Some(judgement)) => {
            let all = std::iter::once(in_words(&verdict));
            all.chain(doubts(judgement)).collect()
        }
        _ => vec!["no verdict on outstanding blocks".to_owned()],
    }
}

/// The moment that is shown.
fn at_peak(report: &Report) -> String {
    match &report.peak {
        Some(peak) => peak::in_words(peak, report.sampling),
        None => "the peak was not tracked".to_owned(),
    }
}

/// Young blocks, which are not shown.
fn young(report: &Report) -> Option<String> {
    let older = report.compared.older?;
    let young = report.suspects().filter_map(|stack| stack.recent.young);
    let Amount { bytes, blocks } = young.sum::<Estimate>().amount;
    (blocks > 0).then(|| {
        format!(
            "without {}, {}, younger than {}",
            counted(blocks, "block"),
            rounded(bytes),
            in_whole_units(older)
        )
    })
}

/// Losses, which are missing in the graph.
fn lost(losses: &Losses) -> Option<String> {
    let lost = losses_in_short(losses, rounded);
    (!lost.is_empty()).then(|| format!("lost: {}", lost.join(", ")))
}

/// Size without the exact number in parentheses.
fn rounded(bytes: u64) -> String {
    let size = size(bytes);
    size.split(" (").next().unwrap_or_default().to_owned()
}
