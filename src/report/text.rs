//! Text for people and for scripts written for bcc's `memleak.py`.
//!
//! Header, entry and frame lines are bcc's, biggest entry last. Added to it, each in a line of its own or
//! behind what bcc prints: the allocator function, inlined functions, source lines, how a frame was found if
//! not by CFI, and how each stack ended. Such scripts take the last line with the word "byte" for the biggest
//! entry, so nothing else may hold it: sizes elsewhere are in `B`, `KiB` and so on.

use std::fmt;
use std::io::{self, Write};

use unwind_tables::addr::Svma;
use unwind_tables::walk::{End, FoundBy, Unwind};

use super::ends::explain;
use super::health::{counted, size};
use super::{Frame, Location, ModuleFacts, Report, Stack, estimates, health, recent};
use crate::bpf::{InstanceEnd, Sampling};
use crate::symbolize::frame::{InlinedFrame, Symbolized};

/// The address column of lines that have no address.
const NO_ADDRESS: &str = "                  ";

/// Writes `report`.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "[{}] Top {} stacks with outstanding allocations:",
        report.time, report.top
    )?;
    let outstanding = report.suspects().filter(|stack| stack.shown().blocks > 0);
    let mut shown: Vec<&Stack> = outstanding.take(report.top).collect();
    shown.reverse();
    for stack in shown {
        render_stack(stack, report, out)?;
    }
    health::render(report, out)
}

fn render_stack(stack: &Stack, report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let amount = stack.shown();
    writeln!(
        out,
        "\t{} bytes in {} allocations from stack",
        amount.bytes, amount.blocks
    )?;
    let kind = stack
        .kind
        .map_or_else(String::new, |kind| format!(" ({})", kind.name()));
    if report.sampling != Sampling::All {
        writeln!(out, "\t\t{}", estimates::error(stack.shown_estimate().spread))?;
    }
    match report.targets.len() > 1 {
        true => writeln!(out, "\t\tvia {}{kind} in {}", stack.allocator, Owner(stack))?,
        false => writeln!(out, "\t\tvia {}{kind}", stack.allocator)?,
    }
    for line in recent::growth_lines(stack, report) {
        writeln!(out, "\t\t{line}")?;
    }
    if stack.lost.blocks > 0 {
        let lost = stack.lost;
        let (blocks, bytes) = (counted(lost.blocks, "block"), size(lost.bytes));
        writeln!(out, "\t\tlost besides: {blocks}, {bytes}")?;
    }
    for frame in &stack.frames {
        render_frame(frame, report.unwind, out)?;
    }
    writeln!(out, "\t\tend: {}", EndLine(stack))
}

fn render_frame(frame: &Frame, unwind: Unwind, out: &mut dyn Write) -> io::Result<()> {
    let module = frame.at.place.as_ref().map(|(module, _)| module.as_ref());
    for inlined in &frame.names.inlined {
        writeln!(
            out,
            "\t\t{NO_ADDRESS}\t{}{}",
            Inlined(inlined),
            InModule(module, &inlined.file, inlined.line)
        )?;
    }
    let Symbolized { file, line, .. } = frame.names.as_ref();
    // Where the user asked for frame pointers, the mark would be on each frame.
    let mark = match (frame.found_by, unwind) {
        (FoundBy::Fp, Unwind::Dwarf) => " (by frame pointer)",
        (FoundBy::Fp, Unwind::Fp) | (FoundBy::Probe | FoundBy::Cfi | FoundBy::Kernel, _) => "",
    };
    let pc = frame.at.pc;
    writeln!(
        out,
        "\t\t{pc:#018x}\t{}{}{mark}",
        FrameName(frame),
        InModule(module, file, *line)
    )
}

/// The process that a stack belongs to, among several.
struct Owner<'a>(&'a Stack);

impl fmt::Display for Owner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stack { pid, ended, .. } = self.0;
        if *pid == 0 {
            return f.write_str("several processes");
        }
        write!(f, "process {pid}")?;
        match ended {
            None => Ok(()),
            Some(InstanceEnd::Exited) => f.write_str(", held when it exited"),
            Some(InstanceEnd::Execed) => f.write_str(", held when its program was replaced by exec"),
        }
    }
}

/// `function+0xoffset`, or the place where there is no name.
struct FrameName<'a>(&'a Frame);

impl fmt::Display for FrameName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.names.symbol {
            None => Place(&self.0.at).fmt(f),
            Some(symbol) => {
                Printable(&symbol.name).fmt(f)?;
                symbol.offset.map_or(Ok(()), |offset| write!(f, "+{offset:#x}"))
            }
        }
    }
}

/// `module+0xaddress`, in the module's own space.
struct Place<'a>(&'a Location);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.place {
            None => f.write_str("[unknown]"),
            Some((module, svma)) => place_in(module, *svma, f),
        }
    }
}

fn place_in(module: &ModuleFacts, svma: Svma, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}+{svma:#x}", Printable(&module.basename()))
}

/// `function (inlined)`.
struct Inlined<'a>(&'a InlinedFrame);

impl fmt::Display for Inlined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.symbol.as_deref().unwrap_or("[unknown]");
        write!(f, "{} (inlined)", Printable(name))
    }
}

/// ` [module] file:line`, as far as known.
struct InModule<'a>(Option<&'a ModuleFacts>, &'a Option<String>, Option<u32>);

impl fmt::Display for InModule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(module) = self.0 {
            write!(f, " [{}]", Printable(&module.basename()))?;
        }
        if let Some(file) = self.1 {
            write!(f, " {}", Printable(file))?;
            self.2.map_or(Ok(()), |line| write!(f, ":{line}"))?;
        }
        Ok(())
    }
}

/// How a stack ended, and for incomplete ones where and why.
struct EndLine<'a>(&'a Stack);

impl fmt::Display for EndLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stack { end, end_at, .. } = self.0;
        f.write_str(end.name())?;
        if *end == End::Complete {
            return Ok(());
        }
        match end_at {
            Some(at @ Location { place: Some(_), .. }) => write!(f, " at {}", Place(at))?,
            Some(Location { pc, place: None }) => write!(f, " at {pc:#x}")?,
            None => {}
        }
        write!(f, " ({})", explain(*end).meaning)
    }
}

/// Text from the process or its files, with control characters escaped: it must not move the terminal's cursor
/// or end a line.
pub(super) struct Printable<'a>(pub(super) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character.is_control() {
                true => write!(f, "{}", character.escape_default())?,
                false => write!(f, "{character}")?,
            }
        }
        Ok(())
    }
}
