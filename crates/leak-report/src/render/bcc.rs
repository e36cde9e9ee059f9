//! The output format of bcc's `memleak.py`. Facts that it cannot express go to standard error: see `dialect`.
//!
//! It has two variants, as the original does: from the block table, frames have their addresses; from totals
//! alone (`-C`), they have none. bcc drops stacks that could not be stored from the first variant and prints
//! "stack information lost" in the second; here both print it, so that no report silently omits what may be
//! its largest stack.

use std::fmt;
use std::io::{self, Write};

use unwind_tables::addr::Avma;

use super::dialect::{Dialect, Stage, attached};
use super::flame::left_out_marker;
use crate::model::Report;
use crate::model::printable::Printable;
use crate::model::{FrameRef, ListedBlock, StackPart, StackRef};

/// Stands for the frames of a stack that was not stored.
const LOST: &str = "stack information lost";

pub(super) const DIALECT: Dialect = Dialect {
    stage_lines,
    stderr_line: |_| None,
};

/// Lines printed between reports.
fn stage_lines(stage: &Stage<'_>) -> Vec<String> {
    match stage {
        Stage::Started { command, .. } => {
            vec![format!(
                "Executing '{command}' and tracing the resulting process."
            )]
        }
        Stage::Attached { pids } => attached(pids),
        Stage::Released | Stage::Ended => Vec::new(),
    }
}

/// Writes `report` as bcc does: smallest stack first.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let has_addresses = report.compared.older.is_some();
    write_header(report, out)?;
    for block in blocks(report) {
        writeln!(out, "\taddr = {:x} size = {}", block.address, block.size)?;
    }
    let mut shown: Vec<StackRef<'_>> = report.outstanding_suspects().take(report.top).collect();
    shown.reverse();
    if shown.is_empty() && !has_addresses {
        // bcc prints all entries as one text, so no entries give an empty line.
        return writeln!(out);
    }
    for stack in shown {
        write_entry(stack, out)?;
        if stack.path.is_none() {
            writeln!(out, "\t\t{LOST}")?;
        }
        for part in stack.parts() {
            let (pc, name) = match part {
                StackPart::Frame(frame) => {
                    let pid = stack.pid;
                    (printed_address(frame), Name { frame, pid }.to_string())
                }
                StackPart::LeftOut(frames) => (Avma::new(0), left_out_marker(frames)),
            };
            match has_addresses {
                true => writeln!(out, "\t\t{pc:#018x}\t{name}")?,
                false => writeln!(out, "\t\t{name}")?,
            }
        }
    }
    Ok(())
}

/// Address that the dialects print with a frame: that of machine code, or 0.
pub(super) fn printed_address(frame: FrameRef<'_>) -> Avma {
    match frame.is_python() {
        true => Avma::new(0),
        false => frame.pc(),
    }
}

/// Writes the first line of a report; its number is the requested one (`-T`), not that of the stacks shown.
pub(super) fn write_header(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "[{}] Top {} stacks with outstanding allocations:",
        report.time, report.top
    )
}

/// Writes the line that introduces a stack.
pub(super) fn write_entry(stack: StackRef<'_>, out: &mut dyn Write) -> io::Result<()> {
    let amount = stack.shown();
    writeln!(
        out,
        "\t{} bytes in {} allocations from stack",
        amount.bytes, amount.blocks
    )
}

/// Listed blocks of all stacks, smallest first, including those of stacks beyond the top.
fn blocks(report: &Report) -> Vec<&ListedBlock> {
    let lists = report
        .outstanding_suspects()
        .filter_map(|stack| stack.get().blocks.as_ref());
    let mut blocks: Vec<_> = lists.flat_map(|list| &list.listed).collect();
    blocks.sort_by_key(|block| (block.size, block.address));
    blocks
}

/// Displays `function+0xoffset [module]`, as far as known.
struct Name<'a> {
    frame: FrameRef<'a>,
    pid: u32,
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let symbol = self.frame.symbol();
        match symbol {
            None => f.write_str("[unknown]")?,
            Some(symbol) => {
                Printable(symbol.name).fmt(f)?;
                symbol.offset.map_or(Ok(()), |offset| write!(f, "+{offset:#x}"))?;
            }
        }
        match (self.frame.module_name(), symbol) {
            (Some(module), _) => write!(f, " [{}]", Printable(module)),
            // bcc shows the perf map file as the module of generated code.
            (None, Some(_)) => write!(f, " [perf-{}.map]", self.pid),
            (None, None) => Ok(()),
        }
    }
}
