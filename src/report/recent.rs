//! Ages and changes for people: a line per stack on what came and went, two lines in the closing block on ages.
//!
//! The word "byte" must not occur (see `text`).

use std::time::Duration;

use super::estimates::whole;
use super::health::{counted, short_size, size};
use super::{Report, Stack};
use crate::bpf::Sampling;
use crate::collect::{AGE_BOUNDS, Ages, Amount, Estimate};
use crate::leak::Change;

impl Report {
    /// Live blocks of all stacks by age; `None` if ages were not looked at.
    pub(super) fn ages(&self) -> Option<Ages> {
        self.compared.older?;
        let ages = self.stacks.iter().filter_map(|stack| stack.recent.ages);
        Some(ages.fold(Ages::default(), |sum, ages| sum + ages))
    }
}

/// What came and went from a stack: since the last report, and since the baseline if the user marked one. Nothing, if
/// nothing changed.
pub(super) fn growth_lines(stack: &Stack, report: &Report) -> Vec<String> {
    let compared = &report.compared;
    let since_last = match compared.first {
        true => "the attach".to_owned(),
        false => "the last report".to_owned(),
    };
    let last = (&stack.recent.since_last, compared.since_last, since_last);
    let marked = compared.marked.map(|time| {
        let since = format!("{time} (marked)");
        (&stack.recent.since_baseline, compared.since_baseline, since)
    });
    [Some(last), marked]
        .into_iter()
        .flatten()
        .filter(|(change, ..)| change.allocated.amount.blocks > 0 || change.freed.amount.blocks > 0)
        .map(|(change, time, since)| {
            let line = growth_line(change, time, &since);
            match report.sampling {
                Sampling::All => line,
                Sampling::Calls(_) | Sampling::Bytes(_) | Sampling::Governed(_) => {
                    let error = whole(change.net_spread().standard_error().bytes);
                    format!("{line}, standard error at most {error} B")
                }
            }
        })
        .collect()
}

fn growth_line(change: &Change, time: Duration, since: &str) -> String {
    let net = change.net_bytes();
    format!(
        "{} since {since} ({net:+} B: {} allocated, {} freed)",
        rate(net, time),
        change.allocated.amount.blocks,
        change.freed.amount.blocks
    )
}

/// Signed amount per second, in the largest binary unit that leaves at least one.
pub(crate) fn rate(net: i64, time: Duration) -> String {
    #[allow(
        clippy::cast_precision_loss,
        reason = "exact to 15 digits, of which three are shown"
    )]
    let net = net as f64;
    let rate = match time.as_secs_f64() {
        0.0 => 0.0,
        seconds => net / seconds,
    };
    format!("{}/s", signed(rate))
}

/// So many bytes with their sign, in the largest binary unit that leaves at least one.
pub(crate) fn signed(bytes: f64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let (mut amount, mut unit) = (bytes, 0);
    while amount.abs() >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:+.1} {}", UNITS[unit])
}

/// Lines of the closing block: what is hidden since it is young, and how old blocks are.
pub(super) fn age_lines(report: &Report) -> Vec<(&'static str, String)> {
    let Some(older) = report.compared.older else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    let young = report.stacks.iter().filter_map(|stack| stack.recent.young);
    let young: Amount = young.sum::<Estimate>().amount;
    if young.blocks > 0 {
        let text = format!(
            "{}, {}, younger than {}: hidden above (-o 0 shows all)",
            counted(young.blocks, "block"),
            size(young.bytes),
            spoken(older)
        );
        lines.push(("Young", text));
    }
    let ages = report.ages().unwrap_or_default();
    let classes: Vec<_> = ages
        .classes()
        .filter(|(_, class)| class.amount.blocks > 0)
        .map(|(bound, class)| age_class(bound, class.amount))
        .collect();
    if !classes.is_empty() {
        lines.push(("Ages", classes.join(", ")));
    }
    lines
}

fn age_class(bound: Option<Duration>, amount: Amount) -> String {
    let class = match (bound, AGE_BOUNDS.last()) {
        (Some(bound), _) => format!("<{}", spoken(bound)),
        (None, last) => format!("older than {}", spoken(last.copied().unwrap_or_default())),
    };
    let size = short_size(amount.bytes);
    format!("{class} {} ({size})", counted(amount.blocks, "block"))
}

/// A time in the largest unit in which it is a whole number.
pub(super) fn spoken(time: Duration) -> String {
    let milliseconds = time.as_millis();
    [(3_600_000, "h"), (60_000, "min"), (1000, "s")]
        .into_iter()
        .find(|&(unit, _)| milliseconds > 0 && milliseconds.is_multiple_of(unit))
        .map_or_else(
            || format!("{milliseconds} ms"),
            |(unit, name)| format!("{} {name}", milliseconds / unit),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates have a sign, a unit and one decimal; without time there is no rate.
    #[test]
    fn rates() {
        for (net, milliseconds, expected) in [
            (0, 1000, "+0.0 B/s"),
            (61_500, 5000, "+12.0 KiB/s"),
            (-1, 2000, "-0.5 B/s"),
            (1024, 1000, "+1.0 KiB/s"),
            (i64::MIN, 1, "-8589934592000.0 GiB/s"),
            (5, 0, "+0.0 B/s"),
        ] {
            assert_eq!(rate(net, Duration::from_millis(milliseconds)), expected);
        }
    }

    /// Times are whole numbers of their unit.
    #[test]
    fn times() {
        for (milliseconds, expected) in [
            (0, "0 ms"),
            (500, "500 ms"),
            (1500, "1500 ms"),
            (10_000, "10 s"),
            (60_000, "1 min"),
            (7_200_000, "2 h"),
        ] {
            assert_eq!(spoken(Duration::from_millis(milliseconds)), expected);
        }
    }
}
