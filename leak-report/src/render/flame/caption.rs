//! What is written above a picture: of what it is, and how far it can be trusted.

use super::super::estimates::whole;
use super::super::health::{counted, losses_in_short, percent, size};
use super::super::recent::spoken;
use crate::model::{Amount, Estimate, Losses, Sampling, Spread};
use crate::model::{Measure, Quantity, Report, Unit};

/// What is written above a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caption {
    /// Of what it is.
    pub title: String,
    /// What to know of it.
    pub subtitle: Option<String>,
    /// What it counts.
    pub unit: Unit,
}

impl Caption {
    /// Of a picture of what the stacks of `report` have of `quantity`.
    pub fn of(report: &Report, quantity: Quantity) -> Self {
        let notes = notes(report, quantity);
        Self {
            title: title(report, quantity),
            subtitle: (!notes.is_empty()).then(|| notes.join("; ")),
            unit: quantity.unit,
        }
    }
}

/// What the quantity is called, on its own.
pub(crate) fn name(report: &Report, quantity: Quantity) -> String {
    match quantity.measure {
        Measure::Outstanding | Measure::Allocated => short_name(quantity),
        Measure::Growth => format!("{} since {}", short_name(quantity), since(report)),
    }
}

fn short_name(quantity: Quantity) -> String {
    let unit = quantity.unit.name();
    match quantity.measure {
        Measure::Outstanding => format!("Outstanding {unit}"),
        Measure::Allocated => format!("Allocated {unit}"),
        Measure::Growth => format!("Growth in {unit}"),
    }
}

/// How far stacks and amounts can be trusted.
pub(crate) fn remarks(report: &Report, quantity: Quantity) -> Vec<String> {
    completeness(report)
        .into_iter()
        .chain(notes(report, quantity))
        .collect()
}

/// Quantity, target, time, completeness.
fn title(report: &Report, quantity: Quantity) -> String {
    let seconds = report.elapsed.as_secs_f64();
    let mut title = format!("{}: {}, {seconds:.1} s", short_name(quantity), target(report));
    if let Some(complete) = completeness(report) {
        title += &format!(", {complete}");
    }
    title
}

/// What growth is reckoned from.
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

/// `None` without stacks.
fn completeness(report: &Report) -> Option<String> {
    let [complete, all] = report.completeness.complete_allocations();
    (all > 0).then(|| format!("complete stacks: {} of allocations", percent(complete, all)))
}

fn notes(report: &Report, quantity: Quantity) -> Vec<String> {
    let mut notes = Vec::new();
    if quantity.measure == Measure::Growth {
        notes.push(format!("of stacks that grew since {}", since(report)));
    }
    if report.sampling != Sampling::All {
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
    notes.extend(lost(&report.losses));
    notes
}

/// What is left out since it is young.
fn young(report: &Report) -> Option<String> {
    let older = report.compared.older?;
    let young = report.suspects().filter_map(|stack| stack.recent.young);
    let Amount { bytes, blocks } = young.sum::<Estimate>().amount;
    (blocks > 0).then(|| {
        format!(
            "without {}, {}, younger than {}",
            counted(blocks, "block"),
            rounded(bytes),
            spoken(older)
        )
    })
}

/// What is missing in the picture.
fn lost(losses: &Losses) -> Option<String> {
    let lost = losses_in_short(losses, rounded);
    (!lost.is_empty()).then(|| format!("lost: {}", lost.join(", ")))
}

/// A size without the exact number.
fn rounded(bytes: u64) -> String {
    let size = size(bytes);
    size.split(" (").next().unwrap_or_default().to_owned()
}
