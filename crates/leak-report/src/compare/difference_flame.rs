//! Difference of two reports as folded stacks and as a flame graph.
//!
//! Stacks are compared by function names, whatever their builds; all processes are taken together.

use std::collections::BTreeSet;
use std::io::{self, Write};

use super::difference::Comparison;
use crate::model::{Quantity, Unit};
use crate::render::flame::{self, Caption, Folded};
use crate::render::{counted, size};

/// Writes a line for each stack with two numbers: its value before, and its value after.
///
/// # Errors
///
/// Writing to `out` failed.
pub fn render_folded(comparison: &Comparison<'_>, quantity: Quantity, out: &mut dyn Write) -> io::Result<()> {
    let (before, after) = folded(comparison, quantity);
    let stacks = before.stacks().chain(after.stacks());
    let stacks: BTreeSet<&str> = stacks.map(|(stack, _)| stack).collect();
    for stack in stacks {
        writeln!(out, "{stack} {} {}", before.get(stack), after.get(stack))?;
    }
    Ok(())
}

/// Draws the values after: red where they are higher than before, blue where lower.
///
/// # Errors
///
/// Writing to `out` failed.
pub fn render_svg(comparison: &Comparison<'_>, quantity: Quantity, out: &mut dyn Write) -> io::Result<()> {
    let (before, after) = folded(comparison, quantity);
    let caption = caption(comparison, quantity, &before, &after);
    flame::difference(&before, &after, &caption, out)
}

fn folded(comparison: &Comparison<'_>, quantity: Quantity) -> (Folded, Folded) {
    let of = |report| Folded::of_all_processes(report, quantity);
    (of(comparison.before.report), of(comparison.after.report))
}

fn caption(comparison: &Comparison<'_>, quantity: Quantity, before: &Folded, after: &Folded) -> Caption {
    let Comparison {
        before: was,
        after: is,
        ..
    } = comparison;
    let of_after = Caption::of(is.report, quantity);
    let amount = |number: u64| match quantity.unit {
        Unit::Bytes => size(number),
        Unit::Blocks => counted(number, "block"),
    };
    let (total_before, total_after) = (before.total(), after.total());
    let net = i128::from(total_after) - i128::from(total_before);
    let gone = before.stacks().filter(|(stack, _)| after.get(stack) == 0);
    let gone = gone.fold(0, |sum: u64, (_, amount)| sum.saturating_add(amount));
    let mut notes = vec![
        format!("red: more than in {}, blue: less", was.name),
        format!(
            "in all {} before, {net:+} {}",
            amount(total_before),
            quantity.unit.name()
        ),
    ];
    if gone > 0 {
        notes.push(format!(
            "{} of stacks that are gone are not in the picture",
            amount(gone)
        ));
    }
    notes.extend(of_after.subtitle);
    notes.extend(comparison.notes.iter().cloned());
    Caption {
        title: format!("{}: {}", is.name, of_after.title),
        subtitle: Some(notes.join("; ")),
        unit: quantity.unit,
    }
}
