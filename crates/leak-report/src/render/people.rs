//! Text reports for people: the most suspicious sites, then their stacks. One writer serves all reports of a
//! trace, since it omits text that it has written before.
//!
//! Each report is a header, a table of the first sites, the stacks of new sites, and a closing block. Sites
//! have an ID that leads from a row of the table to a stack further up. The first and the last report have
//! all stacks, as do all with `-v`, whose closing block is that of `health`. Scripts written for bcc's output
//! read `--format bcc`.

mod closing;
mod table;

use std::collections::HashSet;
use std::io::{self, Write};

use super::diagnosis::DiagnosisText;
use super::health;
use super::holders::holder_lines;
use super::paths::Paths;
use super::screen::{Screen, write_wrapped};
use super::text::{FrameStyle, via};
use super::words::{counted, percent, short_size, size};
use super::{blocks, estimates, makeup, occasion, peak, pinned, recent, verdict};
use crate::model::printable::Printable;
use crate::model::{Amount, Estimate, InstanceEnd, Sampling, SiteKey, StackRef, StepStacks};
use crate::model::{Report, Stack};

/// Indentation of the lines of a site's stack.
pub const INDENT: &str = "    ";

/// A writer of reports for people.
#[derive(Debug, Default)]
pub struct People {
    screen: Screen,
    /// Sites whose stack was written.
    written: HashSet<SiteKey>,
    /// Closing block of the last report.
    closing: Vec<String>,
}

impl People {
    /// A writer for the first report of a trace.
    pub fn new(screen: Screen) -> Self {
        Self {
            screen,
            ..Self::default()
        }
    }

    /// Writes the next report, with all stacks if it `is_last`.
    ///
    /// # Errors
    ///
    /// Fails if `out` cannot be written.
    pub fn write(&mut self, report: &Report, is_last: bool, out: &mut dyn Write) -> io::Result<()> {
        let ranked = report.ranked();
        let total: Estimate = ranked.iter().map(|stack| stack.shown_estimate()).sum();
        self.line(&header(report, total, ranked.len()), "", out)?;
        for line in occasion::lines(report) {
            self.line(&line, "  ", out)?;
        }
        let shown = ranked.get(..report.top).unwrap_or(&ranked);
        self.diagnosis(report, out)?;
        table::write(shown, report, self.screen, out)?;
        if let Some(left_out) = ranked.get(shown.len()..).filter(|rest| !rest.is_empty()) {
            self.line(&left_out_line(left_out, ranked.len()), "", out)?;
        }
        let page = Page {
            report,
            total: total.amount,
            style: FrameStyle::new(report, self.screen).shortening(Paths::of(shown)),
            screen: self.screen,
            stacks: StepStacks::of(report),
        };
        let is_whole = is_last || self.screen.is_verbose;
        for stack in shown {
            if self.written.insert(stack.key()) || is_whole {
                page.write_site(*stack, out)?;
            }
        }
        match self.screen.is_verbose {
            true => health::render(report, page.style.paths.line(), out),
            false => self.close(closing::lines(report, page.style.paths.line()), is_last, out),
        }
    }

    /// Writes why the memory grows, if the report says so.
    fn diagnosis(&self, report: &Report, out: &mut dyn Write) -> io::Result<()> {
        let Some(diagnosis) = &report.diagnosis else {
            return Ok(());
        };
        writeln!(out)?;
        for line in DiagnosisText::from(&**diagnosis).lines() {
            let text = line.trim_start();
            self.line(text, &line[..line.len() - text.len()], out)?;
        }
        writeln!(out)
    }

    /// Writes the closing block without the lines that the last report ended with, except in the last report.
    fn close(&mut self, lines: Vec<String>, is_last: bool, out: &mut dyn Write) -> io::Result<()> {
        let hint = self.closing.is_empty();
        writeln!(out)?;
        for line in &lines {
            if is_last || !self.closing.contains(line) {
                self.line(line, "  ", out)?;
            }
        }
        if hint {
            self.line(
                "(-v: calls, resident memory, ages, and memleak's own cost)",
                "  ",
                out,
            )?;
        }
        self.closing = lines;
        writeln!(out)
    }

    fn line(&self, text: &str, indent: &str, out: &mut dyn Write) -> io::Result<()> {
        write_wrapped(text, indent, self.screen, out)
    }
}

/// Writes a single report in full.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    People::default().write(report, true, out)
}

/// Time, target, and outstanding amount.
fn header(report: &Report, total: Estimate, sites: usize) -> String {
    let Amount { bytes, blocks } = total.amount;
    let about = if report.sampling == Sampling::All {
        ""
    } else {
        "about "
    };
    format!(
        "[{}] {}, {}: {about}{} outstanding in {} at {}",
        report.time,
        subject(report),
        duration(report),
        short_size(bytes),
        counted(blocks, "block"),
        counted(sites as u64, "site")
    )
}

/// Time since the attach, and the time of the mark if the user set one.
fn duration(report: &Report) -> String {
    let since_attach = format!("{:.1} s", report.elapsed.as_secs_f64());
    match report.compared.marked {
        None => since_attach,
        Some(time) => format!("{since_attach}, marked at {time}"),
    }
}

/// Name of the target: kernel, process, or number of processes.
pub(super) fn subject(report: &Report) -> String {
    let ended = report
        .targets
        .iter()
        .filter(|target| target.ended.is_some())
        .count();
    match (&report.kernel, &report.targets[..]) {
        (Some(kernel), _) => format!("Linux {}", Printable(&kernel.release)),
        (None, [target]) => {
            let end = match target.ended {
                None => "",
                Some(InstanceEnd::Exited) => ", exited",
                Some(InstanceEnd::Execed) => ", replaced by exec",
                Some(InstanceEnd::Left) => ", no longer traced",
                Some(InstanceEnd::OutOfMemory) => ", killed for lack of memory",
            };
            format!("{} ({}{end})", Printable(&target.comm), target.pid)
        }
        (None, targets) if ended == 0 => format!("{} processes", targets.len()),
        (None, targets) => format!("{} processes, {ended} ended", targets.len()),
    }
}

fn left_out_line(left_out: &[StackRef<'_>], all: usize) -> String {
    let Amount { bytes, blocks } = left_out.iter().map(|stack| stack.shown()).sum();
    format!(
        "     and {} with {} in {} (-T {all} shows all)",
        counted(left_out.len() as u64, "more site"),
        short_size(bytes),
        counted(blocks, "block")
    )
}

/// Context in which the stacks of a report are written.
struct Page<'a> {
    report: &'a Report,
    /// Outstanding amount of all ranked stacks, shown or not.
    total: Amount,
    style: FrameStyle,
    screen: Screen,
    stacks: StepStacks<'a>,
}

impl Page<'_> {
    fn write_site(&self, stack: StackRef<'_>, out: &mut dyn Write) -> io::Result<()> {
        let report = self.report;
        writeln!(out)?;
        let heading = format!(
            "{} {}: {}",
            table::short_id(stack),
            self.style.title(stack),
            self.amount(stack)
        );
        write_wrapped(&heading, "", self.screen, out)?;
        let mut facts: Vec<_> = verdict::of_stack(stack).into_iter().collect();
        facts.extend(holder_lines(stack, &self.stacks, self.screen.is_verbose));
        if report.sampling != Sampling::All {
            facts.push(estimates::error(stack.shown_estimate().spread));
        }
        facts.extend(peak::of_stack(stack));
        facts.extend(pinned::of_stack(stack));
        facts.extend(recent::growth_lines(stack, report));
        facts.extend(stack.recent.suspicion.as_ref().and_then(recent::suspicion_line));
        if stack.lost.blocks > 0 {
            let lost = stack.lost;
            facts.push(format!(
                "not recorded: {}, {}",
                counted(lost.blocks, "block"),
                size(lost.bytes)
            ));
        }
        facts.extend(makeup::lines(stack));
        facts.extend(blocks::lines(stack, report));
        facts
            .iter()
            .try_for_each(|fact| write_wrapped(fact, "   ", self.screen, out))?;
        self.style.write_frames(stack, INDENT, out)
    }

    /// Amount of a stack, its allocator function, and its process if there are several.
    fn amount(&self, stack: StackRef<'_>) -> String {
        let Amount { bytes, blocks } = stack.shown();
        let share = percent(bytes, self.total.bytes);
        let owner = match self.report.targets.len() {
            0 | 1 => String::new(),
            _ => format!(" in {}", process(stack)),
        };
        format!(
            "{} in {}, {share} of all, via {}{owner}",
            size(bytes),
            counted(blocks, "block"),
            via(stack)
        )
    }
}

/// Describes the process of a stack, where there are several.
fn process(stack: StackRef<'_>) -> String {
    let Stack { pid, ended, .. } = *stack;
    if pid == 0 {
        return "several processes".to_owned();
    }
    match ended {
        None => format!("process {pid}"),
        Some(InstanceEnd::Exited) => format!("process {pid}, outstanding when it exited"),
        Some(InstanceEnd::Execed) => format!("process {pid}, outstanding when exec replaced its program"),
        Some(InstanceEnd::Left) => format!("process {pid}, outstanding when it was last traced"),
        Some(InstanceEnd::OutOfMemory) => {
            format!("process {pid}, outstanding when it was killed for lack of memory")
        }
    }
}
