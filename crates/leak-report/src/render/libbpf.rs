//! The output format of libbpf-tools' `memleak` built without blazesym. Facts that it cannot express go to
//! standard error: see `dialect`.
//!
//! It differs from bcc's in everything but wording: no tab before entries, largest first, frames with numbers
//! and full paths, a header that counts the stacks shown and pads no digits. Names are demangled, as the same
//! tool does with blazesym.

use std::fmt;
use std::io::{self, Write};

use unwind_tables::addr::Avma;

use super::bcc::printed_address;
use super::dialect::{Dialect, Stage, attached};
use super::flame::left_out_marker;
use crate::model::printable::Printable;
use crate::model::{FrameRef, Report, StackPart, StackRef, TimeOfDay};

pub(super) const DIALECT: Dialect = Dialect {
    stage_lines,
    stderr_line: missing_stacks,
};

/// Lines printed between reports. (The original terminates a program that it has started, and prints that.
/// This one does not terminate it, so the line is missing.)
fn stage_lines(stage: &Stage<'_>) -> Vec<String> {
    match stage {
        Stage::Started { pid, .. } => vec![format!("child created with pid: {pid}")],
        Stage::Attached { pids } => attached(pids),
        Stage::Released => vec!["received go event. executing child command".to_owned()],
        Stage::Ended => vec!["reaped child process".to_owned()],
    }
}

/// Writes `report` as libbpf-tools' memleak does: largest stack first.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let known = report.outstanding_suspects().filter(|stack| stack.path.is_some());
    let shown: Vec<StackRef<'_>> = known.take(report.top).collect();
    let TimeOfDay { hour, minute, second } = report.time;
    writeln!(
        out,
        "[{hour}:{minute}:{second}] Top {} stacks with outstanding allocations:",
        shown.len()
    )?;
    for stack in shown {
        let amount = stack.shown();
        writeln!(
            out,
            "{} bytes in {} allocations from stack",
            amount.bytes, amount.blocks
        )?;
        for block in stack.blocks.iter().flat_map(|list| &list.listed) {
            writeln!(out, "\taddr = {:#x} size = {}", block.address, block.size)?;
        }
        for (number, part) in stack.parts().enumerate() {
            let (pc, name) = match part {
                StackPart::Frame(frame) => {
                    let is_kernel = report.kernel.is_some();
                    (printed_address(frame), Name { frame, is_kernel }.to_string())
                }
                StackPart::LeftOut(frames) => (Avma::new(0), format!(" {}", left_out_marker(frames))),
            };
            writeln!(out, "\t{number} [<{pc:016x}>]{name}")?;
        }
    }
    Ok(())
}

/// The original's warning about blocks whose stack is unknown; these are not in its reports.
fn missing_stacks(report: &Report) -> Option<String> {
    let unknown = report.outstanding_suspects().filter(|stack| stack.path.is_none());
    let blocks = unknown
        .map(|stack| stack.shown().blocks)
        .fold(0, u64::saturating_add);
    // Stacks here have no hash collisions.
    (blocks > 0).then(|| {
        format!(
            "WARNING: {blocks} stack traces could not be displayed due to memory shortage, including 0 caused by hash \
             collisions. Consider increasing --stack-storage-size."
        )
    })
}

/// Displays ` function+0xoffset [/path/of/module]`, as far as known; functions of the kernel without module.
struct Name<'a> {
    frame: FrameRef<'a>,
    is_kernel: bool,
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let module = self.frame.module();
        let module = module.filter(|_| !self.is_kernel);
        let symbol = self.frame.symbol();
        if module.is_none() && symbol.is_none() {
            return f.write_str(" <null sym>");
        }
        if let Some(symbol) = symbol {
            write!(f, " {}", Printable(symbol.name))?;
            symbol.offset.map_or(Ok(()), |offset| write!(f, "+{offset:#x}"))?;
        }
        match module {
            Some(module) => write!(f, " [{}]", Printable(module.path())),
            None if self.frame.is_python() => f.write_str(" [python]"),
            None => Ok(()),
        }
    }
}
