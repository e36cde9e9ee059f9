//! Difference of two reports for people: sites that grew, largest growth first, then sites that shrank.

use std::io::{self, Write};

use super::difference::{Comparison, Difference, Side, SiteAmounts, State};
use crate::model::Report;
use crate::model::{Amount, Losses};
use crate::render::{
    FrameStyle, INDENT, Screen, counted, error, line, losses_in_short, percent, printable, size, via,
};

/// Writes `comparison`: at most `top` sites that grew, and at most `top` that shrank.
///
/// # Errors
///
/// Writing to `out` failed.
pub fn render(comparison: &Comparison<'_>, top: usize, out: &mut dyn Write) -> io::Result<()> {
    let Comparison { before, after, .. } = comparison;
    writeln!(out, "Difference from {} to {}:", side(before), side(after))?;
    // Sites are ranked by growth: the one that shrank most is last.
    let (ranked, reversed) = (comparison.sites.iter(), comparison.sites.iter().rev());
    let grown = ranked.filter(|site| site.rank() > [0; 5]);
    let shrunk = reversed.filter(|site| site.rank() < [0; 5]);
    for site in grown.take(top).chain(shrunk.take(top)) {
        render_site(site, comparison, out)?;
    }
    render_closing(comparison, out)
}

fn side(side: &Side<'_>) -> String {
    let Report { time, elapsed, .. } = side.report;
    format!(
        "{} ({time}, after {:.1} s)",
        printable(&side.name),
        elapsed.as_secs_f64()
    )
}

fn render_site(site: &Difference<'_>, comparison: &Comparison<'_>, out: &mut dyn Write) -> io::Result<()> {
    let (before, after) = (site.before.shown.amount, site.after.shown.amount);
    let style = FrameStyle::new(comparison.after.report, Screen::default());
    writeln!(
        out,
        "\n{:+} B in {:+} blocks ({}): {}",
        site.bytes(),
        site.blocks(),
        site.state().name(),
        style.title(site.stack)
    )?;
    writeln!(
        out,
        "   {} before, {} after, via {}",
        amount(before),
        amount(after),
        via(site.stack)
    )?;
    if let Some(lost) = lost_line(&site.before, &site.after) {
        writeln!(out, "   definitely lost: {lost}")?;
    }
    if let Some(pinned) = pinned_line(&site.before, &site.after) {
        writeln!(out, "   pinned: {pinned}")?;
    }
    if comparison.is_estimate() {
        writeln!(
            out,
            "   {}",
            error(site.before.shown.spread + site.after.shown.spread)
        )?;
    }
    style.write_frames(site.stack, INDENT, out)
}

fn render_closing(comparison: &Comparison<'_>, out: &mut dyn Write) -> io::Result<()> {
    let (before, after) = comparison.total();
    let (was, is) = (before.shown.amount, after.shown.amount);
    writeln!(out)?;
    let net = |is: u64, was: u64| i128::from(is) - i128::from(was);
    let total = format!(
        "{} before, {} after: {:+} B, {:+} blocks",
        amount(was),
        amount(is),
        net(is.bytes, was.bytes),
        net(is.blocks, was.blocks)
    );
    line(out, "Total", total)?;
    if comparison.is_estimate() {
        line(out, "", error(before.shown.spread + after.shown.spread))?;
    }
    if let Some(lost) = lost_line(&before, &after) {
        line(out, "Verdict", format!("definitely lost: {lost}"))?;
    }
    if let Some(pinned) = pinned_line(&before, &after) {
        line(out, "Pinned", pinned)?;
    }
    let young = |amounts: &SiteAmounts| amounts.outstanding.less(amounts.shown).amount;
    if [&before, &after]
        .into_iter()
        .any(|amounts| young(amounts).blocks > 0)
    {
        let (was, is) = (amount(young(&before)), amount(young(&after)));
        line(out, "Young", format!("in addition, {was} before, {is} after"))?;
    }
    let states = State::ALL.map(|state| format!("{} {}", comparison.count(state), state.name()));
    line(out, "Sites", states.join(", "))?;
    let complete = |side: &Side<'_>| complete(side.report);
    let (was, is) = (complete(&comparison.before), complete(&comparison.after));
    line(out, "Stacks", format!("{was} before, {is} after"))?;
    let (was, is) = (
        lost(&comparison.before.report.losses),
        lost(&comparison.after.report.losses),
    );
    line(out, "Lost", format!("{was} before, {is} after"))?;
    for note in &comparison.notes {
        line(out, "Note", note)?;
    }
    Ok(())
}

/// Formats the definitely lost amounts before and after, with "not judged" for a report without a verdict.
/// `None` if neither report has any.
fn lost_line(before: &SiteAmounts, after: &SiteAmounts) -> Option<String> {
    change_line([before.definitely_lost, after.definitely_lost], "not judged")
}

/// Formats what blocks pin before and after, with "not known" for a report that does not say. `None` if
/// neither report has any.
fn pinned_line(before: &SiteAmounts, after: &SiteAmounts) -> Option<String> {
    change_line([before.pinned, after.pinned], "not known")
}

/// Formats an amount before and after, and its change; `missing` stands for one that a report does not have.
/// `None` if neither report has any.
fn change_line([was, is]: [Option<Amount>; 2], missing: &str) -> Option<String> {
    let is_something = |amount: &Option<Amount>| amount.is_some_and(|amount| amount.blocks > 0);
    if ![was, is].iter().any(is_something) {
        return None;
    }
    let named = |given: Option<Amount>| given.map_or_else(|| missing.to_owned(), amount);
    let change = match (was, is) {
        (Some(was), Some(is)) => {
            let net = |is: u64, was: u64| i128::from(is) - i128::from(was);
            let (bytes, blocks) = (net(is.bytes, was.bytes), net(is.blocks, was.blocks));
            format!(": {bytes:+} B, {blocks:+} blocks")
        }
        (None, _) | (_, None) => String::new(),
    };
    Some(format!("{} before, {} after{change}", named(was), named(is)))
}

fn amount(amount: Amount) -> String {
    format!("{} in {}", size(amount.bytes), counted(amount.blocks, "block"))
}

/// Completeness of a report's stacks.
pub(super) fn complete(report: &Report) -> String {
    let [complete, all] = report.completeness.complete_stacks();
    let [complete_walks, walks] = report.completeness.complete_allocations();
    let share = percent(complete_walks, walks);
    format!("{complete} of {all} complete ({share} of allocations)")
}

/// Losses of a report.
pub(super) fn lost(losses: &Losses) -> String {
    let lost = losses_in_short(losses, size);
    match lost.is_empty() {
        true => "nothing".to_owned(),
        false => lost.join(", "),
    }
}
