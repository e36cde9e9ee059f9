//! Ages and changes as text: allocations and frees of a stack, its suspicion, and the ages in the closing
//! block.

use std::time::Duration;

use super::estimates::whole;
use super::words::{counted, short_size, size};
use crate::model::Report;
use crate::model::leak::{Change, Suspicion};
use crate::model::{AGE_BOUNDS, Ages, Amount, Estimate, Sampling, StackRef};

impl Report {
    /// Outstanding blocks of all stacks by age; `None` if ages were not recorded.
    pub(super) fn ages(&self) -> Option<Ages> {
        self.compared.older?;
        let ages = self.stacks.iter().filter_map(|stack| stack.recent.ages);
        Some(ages.fold(Ages::default(), |sum, ages| sum + ages))
    }
}

/// Changes of a stack since the last report, and since the baseline if the user marked one; empty if nothing
/// changed.
pub(super) fn growth_lines(stack: StackRef<'_>, report: &Report) -> Vec<String> {
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
                Sampling::Calls(_) | Sampling::Bytes(_) | Sampling::Governed(_) | Sampling::Provider(_) => {
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

/// Suspicion of a site by its growth over all reports, with the parts of the score; `None` if there were too
/// few reports.
pub(super) fn suspicion_line(suspicion: &Suspicion) -> Option<String> {
    if !suspicion.is_known() {
        return None;
    }
    let percent = |part: f64| format!("{:.0}%", 100.0 * part.clamp(0.0, 1.0));
    let known = |part: Option<f64>| part.map_or_else(|| "unknown".to_owned(), percent);
    Some(format!(
        "suspicion {} of {}: {} over {} reports; certainty {}, steadiness {}, old blocks kept {}, age spread {}",
        suspicion.score(),
        Suspicion::MAX_SCORE,
        per_second(suspicion.growth),
        suspicion.reports,
        percent(suspicion.certainty),
        percent(suspicion.steadiness),
        known(suspicion.kept),
        known(suspicion.age_spread)
    ))
}

/// Growth rate of a site over all reports, or since the attach in the first report.
pub(super) fn growth_per_second(stack: StackRef<'_>, report: &Report) -> String {
    let recent = &stack.recent;
    per_second(match recent.suspicion {
        Some(suspicion) if suspicion.reports > 1 => suspicion.growth,
        _ => slope(recent.since_last.net_bytes(), report.compared.since_last),
    })
}

fn per_second(bytes: f64) -> String {
    if bytes.abs() < 0.05 {
        return "0".to_owned();
    }
    format!("{}/s", signed(bytes))
}

/// Median age of the outstanding blocks, as the bound of its class; `?` if unknown.
pub(super) fn typical_age(stack: StackRef<'_>) -> String {
    let Some(ages) = stack.recent.ages else {
        return "?".to_owned();
    };
    let classes = || ages.classes().map(|(upper, class)| (upper, class.amount.blocks));
    let half = classes().map(|(_, blocks)| blocks).sum::<u64>().div_ceil(2);
    let (mut younger, mut lower) = (0_u64, None);
    for (upper, blocks) in classes() {
        younger = younger.saturating_add(blocks);
        if half > 0 && younger >= half {
            let bound = |sign: char, bound| format!("{sign}{}", in_whole_units(bound).replace(' ', ""));
            return lower.map_or_else(
                || bound('<', upper.unwrap_or_default()),
                |lower| bound('>', lower),
            );
        }
        lower = upper;
    }
    "?".to_owned()
}

/// Formats a signed amount per second in the largest binary unit in which it is at least 1.
pub fn rate(net: i64, time: Duration) -> String {
    format!("{}/s", signed(slope(net, time)))
}

/// Bytes per second; 0 if `time` is 0.
fn slope(net: i64, time: Duration) -> f64 {
    match time.as_secs_f64() {
        0.0 => 0.0,
        // Exact to 15 digits, of which three are shown.
        seconds => net as f64 / seconds,
    }
}

/// Formats bytes with their sign in the largest binary unit in which they are at least 1.
pub fn signed(bytes: f64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let (mut amount, mut unit) = (bytes, 0);
    while amount.abs() >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    format!("{amount:+.1} {}", UNITS[unit])
}

/// Amount hidden as young, in one line; `None` if there is none.
pub(super) fn young_line(report: &Report) -> Option<String> {
    let older = report.compared.older?;
    let young = young(report);
    (young.blocks > 0).then(|| {
        format!(
            "not shown: {} in {} younger than {} (-o 0 shows them)",
            size(young.bytes),
            counted(young.blocks, "block"),
            in_whole_units(older)
        )
    })
}

fn young(report: &Report) -> Amount {
    let young = report.stacks().filter_map(|stack| stack.recent.young);
    young.sum::<Estimate>().amount
}

/// Lines of the closing block: the amount hidden as young, and the ages of blocks.
pub(super) fn age_lines(report: &Report) -> Vec<(&'static str, String)> {
    let Some(older) = report.compared.older else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    let young = young(report);
    if young.blocks > 0 {
        let text = format!(
            "{}, {}, younger than {}: hidden above (-o 0 shows all)",
            counted(young.blocks, "block"),
            size(young.bytes),
            in_whole_units(older)
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
        (Some(bound), _) => format!("<{}", in_whole_units(bound)),
        (None, last) => format!("older than {}", in_whole_units(last.copied().unwrap_or_default())),
    };
    let size = short_size(amount.bytes);
    format!("{class} {} ({size})", counted(amount.blocks, "block"))
}

/// Formats a time in the largest unit in which it is an integer.
pub(super) fn in_whole_units(time: Duration) -> String {
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

    /// Rates have a sign, a unit and one decimal; without time the rate is 0.
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

    /// Times are integers in their unit.
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
            assert_eq!(in_whole_units(Duration::from_millis(milliseconds)), expected);
        }
    }
}
