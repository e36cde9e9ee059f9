//! Text for people: which site is the leak, then the stacks. One writer for all reports of a trace, as it leaves out what it
//! has written before.
//!
//! Each report is a header, a table of the first sites, the stacks of those that are new, and a closing block. Sites have an
//! id, so that a row of the table leads to a stack further up. The first and the last report have all stacks, as
//! have all with `-v`, whose closing block is `health`'s. Scripts written for bcc's output read `--format bcc`.

mod closing;
mod table;

use std::collections::HashSet;
use std::io::{self, Write};

use super::cells::wrap;
use super::health::{self, counted, percent, short_size, size};
use super::paths::Paths;
use super::text::{FrameStyle, via};
use super::{blocks, estimates, recent};
use crate::model::printable::Printable;
use crate::model::{Amount, Estimate, InstanceEnd, Sampling, SiteKey, StackRef};
use crate::model::{Report, Stack};

/// Lines of a site's stack begin here.
pub const INDENT: &str = "    ";

/// The place that reports are written for, and how much is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Screen {
    /// Columns of a terminal; `None` where lines can have any length.
    pub width: Option<usize>,
    /// Everything is written, in each report.
    pub is_verbose: bool,
}

/// A writer of reports for people.
#[derive(Debug, Default)]
pub struct People {
    screen: Screen,
    /// Sites whose stack was written.
    written: HashSet<SiteKey>,
    /// The closing block of the last report.
    closing: Vec<String>,
}

impl People {
    /// A writer that has written nothing yet.
    pub fn new(screen: Screen) -> Self {
        Self {
            screen,
            ..Self::default()
        }
    }

    /// Writes the next report, whole if it `is_last`.
    ///
    /// # Errors
    ///
    /// `out` cannot be written.
    pub fn write(&mut self, report: &Report, is_last: bool, out: &mut dyn Write) -> io::Result<()> {
        let ranked = report.ranked();
        let total: Estimate = ranked.iter().map(|stack| stack.shown_estimate()).sum();
        self.line(&header(report, total, ranked.len()), "", out)?;
        let shown = ranked.get(..report.top).unwrap_or(&ranked);
        table::write(shown, report, self.screen, out)?;
        if let Some(left_out) = ranked.get(shown.len()..).filter(|rest| !rest.is_empty()) {
            self.line(&left_out_line(left_out, ranked.len()), "", out)?;
        }
        let page = Page {
            report,
            total: total.amount,
            style: FrameStyle::new(report, self.screen).shortening(Paths::of(shown)),
            screen: self.screen,
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

    /// Lines that the last report ended with are not repeated.
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
                "(-v: calls, resident memory, ages, and what memleak takes)",
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

/// Writes `report` alone, with nothing left out.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    People::default().write(report, true, out)
}

/// Writes a text in lines that fit the screen, those behind the first further in.
pub(super) fn write_wrapped(text: &str, indent: &str, screen: Screen, out: &mut dyn Write) -> io::Result<()> {
    let Some(width) = screen.width else {
        return writeln!(out, "{indent}{text}");
    };
    let deeper = "  ";
    let columns = width.saturating_sub(indent.len() + deeper.len()).max(1);
    for (at, line) in wrap(text, columns).into_iter().enumerate() {
        let hang = if at == 0 { "" } else { deeper };
        writeln!(out, "{indent}{hang}{}", line.trim_end())?;
    }
    Ok(())
}

/// When, whose memory, and how much.
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

/// Time since the attach, and since the mark if the user made one.
fn duration(report: &Report) -> String {
    let since_attach = format!("{:.1} s", report.elapsed.as_secs_f64());
    match report.compared.marked {
        None => since_attach,
        Some(time) => format!("{since_attach}, marked at {time}"),
    }
}

/// Whose memory it is.
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

/// Facts that the stacks of a report have in common.
struct Page<'a> {
    report: &'a Report,
    /// All that is outstanding.
    total: Amount,
    style: FrameStyle,
    screen: Screen,
}

impl Page<'_> {
    fn write_site(&self, stack: StackRef<'_>, out: &mut dyn Write) -> io::Result<()> {
        let report = self.report;
        writeln!(out)?;
        let heading = format!(
            "{} {}: {}",
            short_id(stack),
            self.style.title(stack),
            self.amount(stack)
        );
        write_wrapped(&heading, "", self.screen, out)?;
        let mut facts = Vec::new();
        if report.sampling != Sampling::All {
            facts.push(estimates::error(stack.shown_estimate().spread));
        }
        facts.extend(recent::growth_lines(stack, report));
        facts.extend(stack.recent.suspicion.as_ref().and_then(recent::suspicion_line));
        if stack.lost.blocks > 0 {
            let lost = stack.lost;
            facts.push(format!(
                "lost besides: {}, {}",
                counted(lost.blocks, "block"),
                size(lost.bytes)
            ));
        }
        facts.extend(blocks::lines(stack, report));
        facts
            .iter()
            .try_for_each(|fact| write_wrapped(fact, "   ", self.screen, out))?;
        self.style.write_frames(stack, INDENT, out)
    }

    /// How much that is, and whose.
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

/// The first digits of a site's id, as metrics and JSON have it whole.
fn short_id(stack: StackRef<'_>) -> String {
    stack.site().short()
}

/// The process that a stack belongs to, among several.
fn process(stack: StackRef<'_>) -> String {
    let Stack { pid, ended, .. } = *stack;
    if pid == 0 {
        return "several processes".to_owned();
    }
    match ended {
        None => format!("process {pid}"),
        Some(InstanceEnd::Exited) => format!("process {pid}, held when it exited"),
        Some(InstanceEnd::Execed) => format!("process {pid}, held when its program was replaced by exec"),
    }
}
