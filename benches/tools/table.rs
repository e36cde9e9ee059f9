//! Table of the results, printed.

use std::io::Write;

use crate::common::Spread;
use crate::measure::Measured;
use crate::subject::{Subject, Work};
use crate::tool::{FAULTS, TOOLS, Tool, UNTRACED};

/// A tool with its results by round, or with the obstacle to measuring it.
pub(crate) struct Row {
    pub(crate) tool: &'static Tool,
    pub(crate) obstacle: Option<String>,
    pub(crate) rounds: Vec<(usize, Measured)>,
    /// Reasons of failures, one for each round that failed.
    pub(crate) failures: Vec<String>,
}

impl Row {
    pub(crate) fn new(tool: &'static Tool) -> Self {
        Self {
            tool,
            obstacle: None,
            rounds: Vec::new(),
            failures: Vec::new(),
        }
    }

    fn spread(&self, value: impl Fn(&Measured) -> f64) -> Spread {
        Spread::of(self.rounds.iter().map(|(_, measured)| value(measured)))
    }

    /// Ratio to the untraced program in the same round.
    fn ratio(&self, untraced: &Self, value: impl Fn(&Measured) -> f64) -> Spread {
        Spread::of(self.ratios(untraced, value))
    }

    /// Quartiles of the ratios, the median in the middle.
    fn quartiles(&self, untraced: &Self, value: impl Fn(&Measured) -> f64) -> [f64; 3] {
        let mut ratios = self.ratios(untraced, value);
        ratios.sort_by(f64::total_cmp);
        let at = |quarter: usize| ratios.get(ratios.len() * quarter / 4).copied();
        [1, 2, 3].map(|quarter| at(quarter).unwrap_or(f64::NAN))
    }

    fn ratios(&self, untraced: &Self, value: impl Fn(&Measured) -> f64) -> Vec<f64> {
        let of_round = |wanted: usize| untraced.rounds.iter().find(|&&(round, _)| round == wanted);
        let ratio = |(round, measured): &(usize, Measured)| {
            of_round(*round).map(|(_, alone)| value(measured) / value(alone))
        };
        self.rounds.iter().filter_map(ratio).collect()
    }
}

/// Prints a line for each tool.
pub(crate) fn print(subject: &Subject, rows: &[Row], out: &mut dyn Write) -> std::io::Result<()> {
    let unit = subject.work.unit();
    let untraced = &rows[UNTRACED];
    for row in rows {
        let name = row.tool.name;
        if let Some(obstacle) = &row.obstacle {
            writeln!(out, "  {name:<28} {obstacle}")?;
            continue;
        }
        if let Some(failure) = row.failures.last() {
            writeln!(out, "  {name:<28} failed {} times: {failure}", row.failures.len())?;
        }
        if row.rounds.is_empty() {
            continue;
        }
        let cpu = row.ratio(untraced, |measured| measured.cpu);
        let wall = row.ratio(untraced, |measured| measured.wall);
        let time = row.spread(|measured| measured.cpu).median;
        writeln!(
            out,
            "  {name:<28} cpu {cpu:7.2}{}  {} per {unit}{}",
            match subject.work {
                // The program waits for commands most of the time.
                Work::Pairs { .. } => String::new(),
                Work::Redis { .. } | Work::Clang => format!(" wall {wall:6.2}"),
            },
            duration(time),
            rest(subject, row)
        )?;
        if subject.part == FAULTS {
            let [low, median, high] = row.quartiles(untraced, |measured| 1.0 / measured.wall);
            writeln!(
                out,
                "  {:<28} throughput {median:.3}, quartiles {low:.3} and {high:.3}",
                ""
            )?;
        }
    }
    Ok(())
}

/// Formats the figures that only some tools or programs have.
fn rest(subject: &Subject, row: &Row) -> String {
    let Some((_, last)) = row.rounds.last() else {
        return String::new();
    };
    let unit = subject.work.unit();
    let mut parts = Vec::new();
    if matches!(subject.work, Work::Redis { .. }) {
        let rate = row.spread(|measured| 1e9 / measured.wall).median;
        parts.push(format!("{rate:.0} requests/s"));
    }
    if row.tool.name == TOOLS[UNTRACED].name {
        return parts.iter().map(|part| format!(", {part}")).collect();
    }
    let tool = row.spread(|measured| measured.tool_cpu).median;
    if tool > 0.0 {
        parts.push(format!("tool {}", duration(tool)));
    }
    let seen = &last.observed;
    if let Some(allocations) = seen.allocations {
        parts.push(format!(
            "{:.2} allocations per {unit} {}",
            allocations / last.units,
            if row.tool.samples { "by estimate" } else { "seen" }
        ));
    }
    if let Some(lost) = seen.lost.filter(|&lost| lost > 0.0) {
        parts.push(format!(
            "{:.0} % LOST",
            100.0 * lost / (lost + seen.allocations.unwrap_or(0.0))
        ));
    }
    if let Some(frames) = seen.frames {
        let of = subject
            .depth
            .map(|depth| format!(" of {depth}"))
            .unwrap_or_default();
        parts.push(format!("{frames:.1}{of} frames"));
    }
    if let Some(complete) = seen.complete {
        parts.push(format!("{:.1} % complete", 100.0 * complete));
    }
    if let Some(written) = seen.written {
        parts.push(format!("{:.0} bytes to disk per {unit}", written / last.units));
    }
    if !row.tool.sees_frees {
        parts.push("no frees".to_owned());
    }
    parts.iter().map(|part| format!(", {part}")).collect()
}

fn duration(nanoseconds: f64) -> String {
    match nanoseconds {
        n if n < 10_000.0 => format!("{n:.0} ns"),
        n if n < 10_000_000.0 => format!("{:.1} us", n / 1e3),
        n => format!("{:.0} ms", n / 1e6),
    }
}
