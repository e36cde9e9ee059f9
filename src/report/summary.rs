//! A report in a few lines: what is outstanding in all, and the sources of most of it.

use std::io::{self, Write};

use super::health::{counted, percent};
use super::text::Printable;
use super::{Frame, Report, Stack, estimates};
use crate::bpf::Sampling;
use crate::collect::{Amount, Estimate};

/// Sources that are shown.
const SOURCES: usize = 5;
/// Functions that are shown of each, the innermost.
const FUNCTIONS: usize = 3;

/// Writes the summary of `report`.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut held: Vec<_> = report
        .suspects()
        .filter(|stack| stack.shown().blocks > 0)
        .collect();
    let all: Estimate = held.iter().map(|stack| stack.shown_estimate()).sum();
    writeln!(out, "[{}] {}", report.time, subject(report))?;
    let Amount { bytes, blocks } = all.amount;
    for (label, value) in [
        ("Outstanding", bytes_of(bytes)),
        ("Leak sites", grouped(held.len() as u64)),
        ("Blocks", grouped(blocks)),
        ("Average block", format!("{} bytes", grouped(average(all.amount)))),
    ] {
        writeln!(out, "  {:<15} {value}", format!("{label}:"))?;
    }
    for (label, value) in doubts(report, all) {
        writeln!(out, "  {label:<15} {value}")?;
    }
    held.sort_by_key(|stack| std::cmp::Reverse((stack.shown().bytes, stack.shown().blocks)));
    if !held.is_empty() {
        writeln!(out, "\nTop {} leak sources:", held.len().min(SOURCES))?;
    }
    for (stack, number) in held.into_iter().take(SOURCES).zip(1..) {
        source(stack, number, out)?;
    }
    writeln!(out)
}

/// Whose memory it is, and when.
fn subject(report: &Report) -> String {
    let seconds = report.elapsed.as_secs_f64();
    let whose = match (&report.kernel, &report.targets[..]) {
        (Some(kernel), _) => format!("Linux {}", Printable(&kernel.release)),
        (None, [target]) => format!("process {} {}", target.pid, Printable(&target.comm)),
        (None, targets) => format!("{} processes", targets.len()),
    };
    format!("Summary of {whose} after {seconds:.1} s")
}

/// What makes the numbers less than certain.
fn doubts(report: &Report, all: Estimate) -> Vec<(&'static str, String)> {
    let mut doubts = Vec::new();
    if report.sampling != Sampling::All {
        doubts.push(("Estimated:", estimates::error(all.spread)));
    }
    let completeness = &report.completeness.allocations;
    let walks = completeness.values().copied().fold(0, u64::saturating_add);
    let complete = completeness.get(&unwind_tables::walk::End::Complete).copied();
    let complete = complete.unwrap_or(0);
    if complete < walks {
        let share = percent(complete, walks);
        doubts.push(("Stacks:", format!("{share} of allocations have complete ones")));
    }
    let losses = &report.losses;
    if losses.blocks > 0 {
        let blocks = grouped(losses.blocks);
        doubts.push(("Lost:", format!("{blocks} blocks, {}", bytes_of(losses.bytes))));
    }
    if losses.frees > 0 {
        doubts.push(("Lost:", format!("{} not seen", counted(losses.frees, "free"))));
    }
    doubts
}

fn source(stack: &Stack, number: usize, out: &mut dyn Write) -> io::Result<()> {
    let amount = stack.shown();
    writeln!(
        out,
        "{number}. {} in {} {}, average {} bytes",
        bytes_of(amount.bytes),
        grouped(amount.blocks),
        if amount.blocks == 1 { "block" } else { "blocks" },
        grouped(average(amount))
    )?;
    let functions = stack.frames.iter().flat_map(functions);
    for function in functions.take(FUNCTIONS) {
        writeln!(out, "   {function}")?;
    }
    if stack.frames.is_empty() {
        writeln!(out, "   (no stack: {})", stack.end.name())?;
    }
    Ok(())
}

/// What was inlined, innermost first, and the function itself, each with its module and line.
fn functions(frame: &Frame) -> impl Iterator<Item = String> {
    let module = frame.at.place.as_ref();
    let module = module.map_or_else(String::new, |(module, _)| {
        format!(" [{}]", Printable(&module.basename()))
    });
    let names = &frame.names;
    let inlined = names.inlined.iter();
    let inlined = inlined.map(|inlined| (inlined.symbol.as_deref(), &inlined.file, inlined.line));
    let own = names.symbol.as_ref().map(|symbol| symbol.name.as_str());
    let all = inlined.chain([(own, &names.file, names.line)]);
    all.map(move |(name, file, line)| {
        let line = line.map_or_else(String::new, |line| format!(":{line}"));
        let place = file
            .as_ref()
            .map_or_else(String::new, |file| format!(" {}{line}", Printable(file)));
        format!("{}{module}{place}", Printable(name.unwrap_or("[unknown]")))
    })
}

fn average(amount: Amount) -> u64 {
    let half = amount.blocks / 2;
    amount
        .bytes
        .saturating_add(half)
        .checked_div(amount.blocks)
        .unwrap_or(0)
}

/// `1,234,567 bytes (1.23 MB)`.
fn bytes_of(bytes: u64) -> String {
    const HUNDREDTH: u64 = 10_000;
    let hundredths = bytes / HUNDREDTH + u64::from(bytes % HUNDREDTH >= HUNDREDTH / 2);
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    format!("{} bytes ({}.{rest:02} MB)", grouped(bytes), grouped(whole))
}

/// With a comma before each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers have commas, megabytes are millions.
    #[test]
    fn numbers() {
        for (bytes, expected) in [
            (0, "0 bytes (0.00 MB)"),
            (999, "999 bytes (0.00 MB)"),
            (1000, "1,000 bytes (0.00 MB)"),
            (1_234_567, "1,234,567 bytes (1.23 MB)"),
            (1_235_000, "1,235,000 bytes (1.24 MB)"),
            (
                u64::MAX,
                "18,446,744,073,709,551,615 bytes (18,446,744,073,709.55 MB)",
            ),
        ] {
            assert_eq!(bytes_of(bytes), expected);
        }
        assert_eq!(average(Amount { bytes: 7, blocks: 2 }), 4);
        assert_eq!(average(Amount { bytes: 7, blocks: 0 }), 0);
    }
}
