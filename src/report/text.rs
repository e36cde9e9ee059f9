//! Text for people and for scripts written for bcc's `memleak.py`.
//!
//! Header, entry and frame lines are bcc's, biggest entry last. Added to it, each in a line of its own or
//! behind what bcc prints: what share it has, the allocator function, inlined functions, source lines, how a frame was
//! found if not by CFI, and how each stack ended. Such scripts take the last line with the word "byte" for the biggest
//! entry, so nothing else may hold it: sizes elsewhere are in `B`, `KiB` and so on.

use std::fmt;
use std::io::{self, Write};

use unwind_tables::addr::Svma;
use unwind_tables::walk::{End, FoundBy, Unwind};

use super::ends::explain;
use super::health::{counted, percent, short_size, size};
use super::paths::Paths;
use super::{Frame, Location, ModuleFacts, Report, Stack, bcc, blocks, estimates, health, recent};
use crate::bpf::{InstanceEnd, Sampling};
use crate::collect::Amount;
use crate::symbolize::frame::{InlinedFrame, Symbolized};

/// The address column of lines that have no address.
const NO_ADDRESS: &str = "                  ";

/// What the lines of a report have in common.
struct Page<'a> {
    report: &'a Report,
    /// All that is outstanding.
    total: Amount,
    style: FrameStyle,
}

/// How frames are written, and ends of stacks.
#[derive(Debug)]
pub(crate) struct FrameStyle {
    unwind: Unwind,
    /// The most frames of a stack, if there was a limit.
    depth: Option<usize>,
    paths: Paths,
}

/// Writes `report`.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut shown: Vec<&Stack> = report.holders().take(report.top).collect();
    shown.reverse();
    let page = Page {
        report,
        total: report.holders().map(Stack::shown).sum(),
        style: FrameStyle {
            paths: Paths::of(&shown),
            ..FrameStyle::of(report)
        },
    };
    bcc::write_header(report, out)?;
    for stack in &shown {
        page.render_stack(stack, out)?;
    }
    health::render(report, page.style.paths.line(), out)
}

impl Page<'_> {
    fn render_stack(&self, stack: &Stack, out: &mut dyn Write) -> io::Result<()> {
        let report = self.report;
        bcc::write_entry(stack, out)?;
        self.render_summary(stack, out)?;
        if report.sampling != Sampling::All {
            writeln!(out, "\t\t{}", estimates::error(stack.shown_estimate().spread))?;
        }
        for line in recent::growth_lines(stack, report) {
            writeln!(out, "\t\t{line}")?;
        }
        if stack.lost.blocks > 0 {
            let lost = stack.lost;
            let (blocks, bytes) = (counted(lost.blocks, "block"), size(lost.bytes));
            writeln!(out, "\t\tlost besides: {blocks}, {bytes}")?;
        }
        for line in blocks::lines(stack, report) {
            writeln!(out, "\t\t{line}")?;
        }
        self.style.write_frames(stack, out)
    }

    /// How much that is, and whose.
    fn render_summary(&self, stack: &Stack, out: &mut dyn Write) -> io::Result<()> {
        let bytes = stack.shown().bytes;
        let (short, share) = (short_size(bytes), percent(bytes, self.total.bytes));
        write!(
            out,
            "\t\t{short}, {share} of all outstanding, via {}",
            Printable(&stack.allocator)
        )?;
        if let Some(kind) = stack.kind {
            write!(out, " ({})", kind.name())?;
        }
        if self.report.targets.len() > 1 {
            write!(out, " in {}", Owner(stack))?;
        }
        writeln!(out)
    }
}

impl FrameStyle {
    /// That of `report`'s frames, with whole paths.
    pub(crate) fn of(report: &Report) -> Self {
        Self {
            unwind: report.unwind,
            depth: report.depth,
            paths: Paths::default(),
        }
    }

    /// The frames of a stack, and how it ended.
    pub(crate) fn write_frames(&self, stack: &Stack, out: &mut dyn Write) -> io::Result<()> {
        for frame in &stack.frames {
            self.render_frame(frame, out)?;
        }
        let is_cut = stack.is_cut(self.depth);
        writeln!(out, "\t\tend: {}", EndLine { stack, is_cut })
    }

    fn render_frame(&self, frame: &Frame, out: &mut dyn Write) -> io::Result<()> {
        let module = frame.at.place.as_ref().map(|(module, _)| module.as_ref());
        let source = |file, line| InModule {
            module,
            file,
            line,
            paths: &self.paths,
        };
        for inlined in &frame.names.inlined {
            let place = source(inlined.file.as_deref(), inlined.line);
            writeln!(out, "\t\t{NO_ADDRESS}\t{}{place}", Inlined(inlined))?;
        }
        let Symbolized { file, line, .. } = frame.names.as_ref();
        // Where the user asked for frame pointers, the mark would be on each frame.
        let mark = match (frame.found_by, self.unwind) {
            (FoundBy::Fp, Unwind::Dwarf) => " (by frame pointer)",
            (FoundBy::Fp, Unwind::Fp) | (FoundBy::Probe | FoundBy::Cfi | FoundBy::Kernel, _) => "",
        };
        let (pc, place) = (frame.at.pc, source(file.as_deref(), *line));
        writeln!(out, "\t\t{pc:#018x}\t{}{place}{mark}", FrameName(frame))
    }
}

/// A frame in one line, without its source.
pub(super) fn named(frame: &Frame) -> String {
    let place = InModule {
        module: frame.at.place.as_ref().map(|(module, _)| module.as_ref()),
        file: None,
        line: None,
        paths: &Paths::default(),
    };
    format!("{}{place}", FrameName(frame))
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
struct InModule<'a> {
    module: Option<&'a ModuleFacts>,
    file: Option<&'a str>,
    line: Option<u32>,
    paths: &'a Paths,
}

impl fmt::Display for InModule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(module) = self.module {
            write!(f, " [{}]", Printable(&module.basename()))?;
        }
        if let Some(file) = self.file {
            let (mark, rest) = self.paths.shorten(file);
            write!(f, " {mark}{}", Printable(rest))?;
            self.line.map_or(Ok(()), |line| write!(f, ":{line}"))?;
        }
        Ok(())
    }
}

/// How a stack ended, where there was a limit of `depth` frames.
pub(crate) fn end_of(stack: &Stack, depth: Option<usize>) -> String {
    let is_cut = stack.is_cut(depth);
    EndLine { stack, is_cut }.to_string()
}

/// How a stack ended, and for incomplete ones where and why.
struct EndLine<'a> {
    stack: &'a Stack,
    is_cut: bool,
}

impl fmt::Display for EndLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stack { end, end_at, .. } = self.stack;
        f.write_str(end.name())?;
        if *end == End::Complete {
            return Ok(());
        }
        match end_at {
            Some(at @ Location { place: Some(_), .. }) => write!(f, " at {}", Place(at))?,
            Some(Location { pc, place: None }) => write!(f, " at {pc:#x}")?,
            None => {}
        }
        match self.is_cut {
            true => f.write_str(" (the stack goes on: --perf-max-stack-depth keeps no more of it)"),
            false => write!(f, " ({})", explain(*end).meaning),
        }
    }
}

/// Text from the process or its files, with control characters escaped, and those that cannot be seen: it must not move the
/// terminal's cursor or end a line, nor look like another.
pub(super) struct Printable<'a>(pub(super) &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character.is_control() || is_format(character) {
                true => write!(f, "{}", character.escape_default())?,
                false => write!(f, "{character}")?,
            }
        }
        Ok(())
    }
}

/// Of Unicode's category Cf, and separators of lines: <https://www.unicode.org/reports/tr9/> and
/// <https://www.unicode.org/reports/tr36/> say what can be done with them.
pub(super) fn is_format(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}
