//! Frames, ends of stacks and names as text for people.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use unwind_tables::walk::{End, FoundBy, Unwind};

use super::cells::{fit, width};
use super::ends::explain;
use super::paths::Paths;
use super::screen::{Screen, write_wrapped};
use super::titles::title;
use super::words::counted;
use crate::model::owner::{is_inlined_plumbing, is_nameless_runtime, owner};
use crate::model::printable::Printable;
use crate::model::{
    Excerpts, FrameRef, InlinedFrame, Location, ModuleRef, NameStyle, Place, Report, StackPart, StackRef,
};

/// Marks the responsible frame of a stack.
const MARK: &str = "> ";
const NO_MARK: &str = "  ";
/// Minimum number of inlined functions that are folded into one line.
const MIN_FOLDED: usize = 2;
/// Minimum columns for a function's name, however long its file's name is.
const MIN_NAME: usize = 16;

/// Style of frames and ends of stacks.
#[derive(Debug)]
pub struct FrameStyle {
    unwind: Unwind,
    names: NameStyle,
    pub(super) paths: Paths,
    screen: Screen,
    excerpts: Option<Arc<Excerpts>>,
}

impl FrameStyle {
    /// The style for `report`'s frames, with full paths.
    pub fn new(report: &Report, screen: Screen) -> Self {
        Self {
            unwind: report.unwind,
            names: report.names,
            paths: Paths::default(),
            screen,
            excerpts: report.excerpts.clone(),
        }
    }

    /// This style with abbreviated paths.
    pub(super) fn shortening(self, paths: Paths) -> Self {
        Self { paths, ..self }
    }

    /// Title of a stack, with names in this style.
    pub fn title(&self, stack: StackRef<'_>) -> String {
        title(stack, self.names)
    }

    /// Writes the frames of a stack, with the responsible one marked, and its end.
    ///
    /// # Errors
    ///
    /// Fails if `out` cannot be written.
    pub fn write_frames(&self, stack: StackRef<'_>, indent: &str, out: &mut dyn Write) -> io::Result<()> {
        let responsible = owner(stack).map(|owner| owner.at);
        let mut parts = stack.parts().peekable();
        let mut at = 0;
        while let Some(part) = parts.next() {
            let frame = match part {
                StackPart::Frame(frame) => frame,
                StackPart::LeftOut(frames) => {
                    let left_out = format!("… {} left out …", counted(frames.into(), "frame"));
                    self.write_line(&[indent, NO_MARK].concat(), &left_out, "", out)?;
                    continue;
                }
            };
            let mut nameless = 0;
            while !self.screen.is_verbose
                && is_nameless_runtime(frame)
                && parts.next_if(|&next| is_nameless_beside(next, frame)).is_some()
            {
                nameless += 1;
            }
            match nameless {
                0 => self.write_frame(frame, responsible.filter(|(of, _)| *of == at), indent, out)?,
                more => {
                    let module = InModule::of(frame, &self.paths);
                    let name = format!("({} frames without names", more + 1);
                    self.write_line(&[indent, NO_MARK].concat(), &name, &format!("{module})"), out)?;
                }
            }
            at += 1 + nameless;
        }
        let end = format!("end: {}", EndLine(stack));
        write_wrapped(&end, &[indent, NO_MARK].concat(), self.screen, out)
    }

    /// Writes a frame and its inlined functions. `responsible.1` is the index of the responsible inlined
    /// function, or their number for the frame's own.
    fn write_frame(
        &self,
        frame: FrameRef<'_>,
        responsible: Option<(usize, usize)>,
        indent: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let inlined: Vec<_> = frame.inlined().collect();
        let module = InModule::of(frame, &self.paths);
        let mark = |number| match responsible {
            Some((_, responsible)) if responsible == number => MARK,
            _ => NO_MARK,
        };
        let mut number = 0;
        while let Some(&function) = inlined.get(number) {
            let folded = self.foldable(&inlined[number..]);
            if folded > 0 {
                let name = format!("({folded} inlined functions of the standard library)");
                self.write_line(&[indent, NO_MARK].concat(), &name, "", out)?;
                number += folded;
                continue;
            }
            let place = module.at(function.file, function.line);
            let name = Inlined(function, self.names).to_string();
            self.write_line(&[indent, mark(number)].concat(), &name, &place.to_string(), out)?;
            if mark(number) == MARK {
                self.write_excerpt(function.file, function.line, indent, out)?;
            }
            number += 1;
        }
        // If the user chose frame pointers, each frame would be marked.
        let found_by = match (frame.found_by, self.unwind) {
            (FoundBy::Fp, Unwind::Dwarf) => " (by frame pointer)",
            (FoundBy::FpGenerated, _) => " (by frame pointer of generated code)",
            (FoundBy::FpUncertain, _) => " (by frame pointer; callers may be missing before it)",
            (FoundBy::Fp, Unwind::Fp)
            | (FoundBy::Probe | FoundBy::Cfi | FoundBy::Kernel | FoundBy::Python, _) => "",
        };
        let place = format!("{}{found_by}", module.at(frame.file(), frame.line()));
        let pc = match self.screen.is_verbose {
            true if frame.is_python() => " ".repeat(19),
            true => format!("{:#018x} ", frame.pc()),
            false => String::new(),
        };
        let name = FrameName {
            frame,
            names: self.names,
            has_offset: self.screen.is_verbose || frame.line().is_none(),
        };
        let before = [indent, mark(inlined.len()), &pc].concat();
        self.write_line(&before, &name.to_string(), &place, out)?;
        match mark(inlined.len()) == MARK {
            true => self.write_excerpt(frame.file(), frame.line(), indent, out),
            false => Ok(()),
        }
    }

    /// Writes the lines of source around one, if they are known.
    fn write_excerpt(
        &self,
        file: Option<&str>,
        line: Option<u32>,
        indent: &str,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let excerpt = self
            .excerpts
            .as_ref()
            .and_then(|excerpts| excerpts.get(file, line));
        let Some(excerpt) = excerpt else {
            return Ok(());
        };
        if excerpt.is_newer {
            self.write_line(
                &[indent, NO_MARK].concat(),
                "(the file is newer than the code)",
                "",
                out,
            )?;
        }
        for (number, text) in (excerpt.first..).zip(&excerpt.lines) {
            let mark = if Some(number) == line { MARK } else { NO_MARK };
            let text = format!("{number:>6} {mark}{}", Printable(text));
            self.write_line(&[indent, NO_MARK].concat(), text.trim_end(), "", out)?;
        }
        Ok(())
    }

    /// Number of leading functions to fold into one line: those of the standard library except the outermost,
    /// which the user's code calls.
    fn foldable(&self, inlined: &[InlinedFrame<&str>]) -> usize {
        let plumbing = inlined
            .iter()
            .take_while(|&&function| is_inlined_plumbing(function))
            .count();
        let folded = plumbing.saturating_sub(1);
        if self.screen.is_verbose || folded < MIN_FOLDED {
            0
        } else {
            folded
        }
    }

    /// Writes a line that fits the screen; the name is cut first.
    fn write_line(&self, before: &str, name: &str, place: &str, out: &mut dyn Write) -> io::Result<()> {
        let line = match self.screen.width {
            None => format!("{before}{name}{place}"),
            Some(available) => {
                let room = available
                    .saturating_sub(width(before) + width(place))
                    .max(MIN_NAME);
                fit(&format!("{before}{}{place}", fit(name, room)), available)
            }
        };
        writeln!(out, "{line}")
    }
}

/// Returns true if the next part of a stack is a nameless frame of the same module.
fn is_nameless_beside(next: StackPart<'_>, frame: FrameRef<'_>) -> bool {
    match next {
        StackPart::Frame(next) => is_nameless_runtime(next) && is_same_module(frame, next),
        StackPart::LeftOut(_) => false,
    }
}

fn is_same_module(one: FrameRef<'_>, other: FrameRef<'_>) -> bool {
    let [one, other] = [one, other].map(|frame| frame.module().map(ModuleRef::path));
    one == other
}

/// The allocator function of a stack, with the kind if it allocates mappings.
pub fn via(stack: StackRef<'_>) -> String {
    let kind = stack
        .kind
        .map_or_else(String::new, |kind| format!(" ({})", kind.name()));
    format!("{}{kind}", Printable(stack.allocator()))
}

/// A frame in one line, without its source.
pub(super) fn named(frame: FrameRef<'_>) -> String {
    let name = FrameName {
        frame,
        names: NameStyle::Verbatim,
        has_offset: true,
    };
    format!("{name}{}", InModule::of(frame, &Paths::default()))
}

/// Displays `function+0xoffset`, or the module and address if there is no symbol.
struct FrameName<'a> {
    frame: FrameRef<'a>,
    names: NameStyle,
    has_offset: bool,
}

impl fmt::Display for FrameName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.frame.symbol() {
            None => InPlace(self.frame.location()).fmt(f),
            Some(symbol) => {
                Printable(&self.names.show(symbol.name)).fmt(f)?;
                if let Some(offset) = symbol.offset.filter(|_| self.has_offset) {
                    write!(f, "+{offset:#x}")?;
                }
                f.write_str(&self.frame.folded_mark().unwrap_or_default())
            }
        }
    }
}

/// Displays `module+0xaddress`, where the address is an SVMA.
struct InPlace<'a>(Location<ModuleRef<'a>>);

impl fmt::Display for InPlace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.place {
            None => f.write_str("[unknown]"),
            Some(Place { module, svma }) => write!(f, "{}+{svma:#x}", Printable(module.basename())),
        }
    }
}

/// Displays `function (inlined)`.
struct Inlined<'a>(InlinedFrame<&'a str>, NameStyle);

impl fmt::Display for Inlined<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.symbol.unwrap_or("[unknown]");
        write!(f, "{} (inlined)", Printable(&self.1.show(name)))
    }
}

/// Displays ` [module] file:line`, as far as known.
#[derive(Clone, Copy)]
struct InModule<'a> {
    module: Option<&'a str>,
    file: Option<&'a str>,
    line: Option<u32>,
    paths: &'a Paths,
}

impl<'a> InModule<'a> {
    fn of(frame: FrameRef<'a>, paths: &'a Paths) -> Self {
        Self {
            module: frame.module_name(),
            file: None,
            line: None,
            paths,
        }
    }

    fn at(self, file: Option<&'a str>, line: Option<u32>) -> Self {
        Self { file, line, ..self }
    }
}

impl fmt::Display for InModule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(module) = self.module {
            write!(f, " [{}]", Printable(module))?;
        }
        if let Some(file) = self.file {
            let (mark, rest) = self.paths.shorten(file);
            write!(f, " {mark}{}", Printable(rest))?;
            self.line.map_or(Ok(()), |line| write!(f, ":{line}"))?;
        }
        Ok(())
    }
}

/// Describes the end of a stack.
pub fn end_of(stack: StackRef<'_>) -> String {
    EndLine(stack).to_string()
}

/// Displays the end of a stack, with place and cause if the stack is incomplete.
struct EndLine<'a>(StackRef<'a>);

impl fmt::Display for EndLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.end;
        f.write_str(end.name())?;
        if end == End::Complete {
            return Ok(());
        }
        match self.0.end_at() {
            Some(at @ Location { place: Some(_), .. }) => write!(f, " at {}", InPlace(at))?,
            Some(Location { pc, place: None }) => write!(f, " at {pc:#x}")?,
            None => {}
        }
        match self.0.is_cut() {
            true => f.write_str(" (cut by --perf-max-stack-depth)"),
            false => write!(f, " ({})", explain(end).meaning),
        }
    }
}
