//! Trend for people, fastest growth first.

use std::io::{self, Write};

use super::trend::{Course, Trend};
use crate::model::{Amount, StackRef};
use crate::render::{FrameStyle, INDENT, counted, line, printable, signed, size, via};

/// Maximum number of points written for a site.
const WRITTEN: usize = 8;
/// Bars from nothing to the maximum.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Writes `trend` with at most `top` growing sites.
///
/// # Errors
///
/// Writing to `out` failed.
pub fn render(trend: &Trend, top: usize, out: &mut dyn Write) -> io::Result<()> {
    let ends = trend.points.first().zip(trend.points.last());
    let Some(((first, last), style)) = ends.zip(trend.style()) else {
        return Ok(());
    };
    writeln!(
        out,
        "Trend over {} points in {}, from {} to {}:",
        trend.points.len(),
        span(last.minutes),
        printable(&first.name),
        printable(&last.name)
    )?;
    let growing = trend.sites.iter().filter(|site| site.bytes_per_minute > 0.0);
    for site in growing.clone().take(top) {
        let Some(stack) = trend.stack(site) else { continue };
        render_site(site, stack, &style, out)?;
    }
    writeln!(out)?;
    let amount = |amount: Amount| format!("{} in {}", size(amount.bytes), counted(amount.blocks, "block"));
    let (bytes, blocks) = trend.total();
    let (before, after) = (first.total.shown.amount, last.total.shown.amount);
    let total = format!(
        "{}: {} at first, {} at last",
        per_minute(bytes, blocks),
        amount(before),
        amount(after)
    );
    line(out, "Total", total)?;
    let lost: Vec<_> = trend
        .points
        .iter()
        .filter_map(|point| point.total.definitely_lost)
        .collect();
    if lost.iter().any(|amount| amount.blocks > 0) {
        let text = format!("definitely lost {}: {} B", bars(&lost), written(&lost));
        line(out, "Verdict", text)?;
    }
    let (all, growing) = (trend.sites.len(), growing.count());
    line(out, "Sites", format!("{growing} of {all} grow"))?;
    trend.notes.iter().try_for_each(|note| line(out, "Note", note))
}

fn span(minutes: f64) -> String {
    match minutes {
        short if short < 2.0 => format!("{:.1} s", short * 60.0),
        minutes if minutes < 120.0 => format!("{minutes:.1} min"),
        hours => format!("{:.1} h", hours / 60.0),
    }
}

fn render_site(
    site: &Course,
    stack: StackRef<'_>,
    style: &FrameStyle,
    out: &mut dyn Write,
) -> io::Result<()> {
    let steps = site.amounts.len().saturating_sub(1);
    writeln!(
        out,
        "\n{}: {}",
        per_minute(site.bytes_per_minute, site.blocks_per_minute),
        style.title(stack)
    )?;
    writeln!(
        out,
        "   rising in {} of {steps} steps {}: {} B",
        site.rises(),
        bars(&site.amounts),
        written(&site.amounts)
    )?;
    writeln!(out, "   via {}", via(stack))?;
    style.write_frames(stack, INDENT, out)
}

/// Formats `+1.5 KiB/min, +12.0 blocks/min`.
fn per_minute(bytes: f64, blocks: f64) -> String {
    format!("{}/min, {blocks:+.1} blocks/min", signed(bytes))
}

/// Formats all amounts, or the first and last if there are more than [`WRITTEN`].
fn written(amounts: &[Amount]) -> String {
    let numbers: Vec<_> = amounts.iter().map(|amount| amount.bytes.to_string()).collect();
    match numbers.len() <= WRITTEN {
        true => numbers.join(", "),
        false => {
            let (first, last) = (&numbers[..WRITTEN / 2], &numbers[numbers.len() - WRITTEN / 2..]);
            format!("{}, …, {}", first.join(", "), last.join(", "))
        }
    }
}

fn bars(amounts: &[Amount]) -> String {
    let max = amounts.iter().map(|amount| amount.bytes).max().unwrap_or(0);
    let bar = |amount: &Amount| {
        let step = u128::from(amount.bytes) * (BARS.len() as u128 - 1);
        let height = step.checked_div(max.into()).unwrap_or(0);
        BARS[usize::try_from(height).map_or(0, |height| height.min(BARS.len() - 1))]
    };
    amounts.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each amount is one bar, and the maximum is the highest.
    #[test]
    fn heights() {
        let amounts = |bytes: &[u64]| {
            let amount = |&bytes: &u64| Amount { bytes, blocks: 1 };
            bytes.iter().map(amount).collect::<Vec<_>>()
        };
        for (bytes, expected) in [
            (&[0, 10, 70][..], "▁▂█"),
            (&[0, 0], "▁▁"),
            (&[u64::MAX, 0, u64::MAX / 2], "█▁▄"),
            (&[], ""),
        ] {
            assert_eq!(bars(&amounts(bytes)), expected);
        }
        assert_eq!(written(&amounts(&[1, 2, 3])), "1, 2, 3");
        assert_eq!(
            written(&amounts(&(0..10).collect::<Vec<_>>())),
            "0, 1, 2, 3, …, 6, 7, 8, 9"
        );
    }
}
