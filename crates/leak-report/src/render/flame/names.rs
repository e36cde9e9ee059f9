//! Names of frames in flame graphs: the function alone, without offset, so that all addresses in a function
//! are one frame.
//!
//! Names come from a process and its files, and end up between the separators of folded lines, in XML and on
//! terminals.

use std::collections::HashMap;

use unwind_tables::walk::End;

use crate::model::owner::with_file;
use crate::model::printable::is_format;
use crate::model::{Direction, FrameRef, NameStyle, Report, StackPart, StackRef, TargetFacts};
use crate::render::words::counted;

/// A frame of a flame graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FlameFrame {
    /// Name of the function or marker; not empty, and safe in folded lines.
    pub(crate) name: String,
    /// Source file; `None` if unknown.
    pub(crate) file: Option<String>,
}

impl FlameFrame {
    /// A frame that stands for something other than code.
    fn marker(name: &str) -> Self {
        Self {
            name: readable(name),
            file: None,
        }
    }
}

/// Style of the names of frames in one report.
pub(crate) struct Naming {
    /// Root frames by instance; `None` if there is only one process.
    processes: Option<HashMap<u32, String>>,
    names: NameStyle,
    direction: Direction,
}

impl Naming {
    /// Names in the report's style, with a root for each process if there are several.
    pub(crate) fn of(report: &Report) -> Self {
        let root = |target: &TargetFacts| (target.instance, format!("{}-{}", target.comm, target.pid));
        let are_several = report.targets.len() > 1;
        Self {
            processes: are_several.then(|| report.targets.iter().map(root).collect()),
            names: report.names,
            direction: report.direction,
        }
    }

    /// Names in full, for other programs, with a root for each process if there are several; callers first.
    pub(crate) fn exact(report: &Report) -> Self {
        Self {
            names: NameStyle::Verbatim,
            direction: Direction::Callers,
            ..Self::of(report)
        }
    }

    /// Names in the report's style, without roots for processes; callers first.
    pub(crate) fn of_one_process(report: &Report) -> Self {
        Self {
            processes: None,
            names: report.names,
            direction: Direction::Callers,
        }
    }

    /// Frames of a stack from the root on, or in the other direction to the root; at least one.
    pub(crate) fn frames(&self, stack: StackRef<'_>) -> Vec<FlameFrame> {
        let mut frames = self.roots(stack);
        let outermost = frames.len();
        for part in stack.parts() {
            match part {
                StackPart::Frame(frame) => push_functions(frame, self.names, &mut frames),
                StackPart::LeftOut(count) => frames.push(FlameFrame::marker(&left_out_marker(count))),
            }
        }
        frames[outermost..].reverse();
        if frames.is_empty() {
            frames.push(FlameFrame::marker(NAMELESS));
        }
        if self.direction == Direction::Allocating {
            frames.reverse();
        }
        frames
    }

    /// Frames of a stack that are not code, from the root on: its process if there are several, and the
    /// reason why it is incomplete.
    pub(crate) fn roots(&self, stack: StackRef<'_>) -> Vec<FlameFrame> {
        let mut frames = Vec::with_capacity(stack.frames().len() + 2);
        if let Some(processes) = &self.processes {
            let process = processes.get(&stack.instance);
            let process = process.map_or("[several processes]", String::as_str);
            frames.push(FlameFrame::marker(process));
        }
        // Without a marker, the outermost frame found would look like the program's first.
        if stack.end != End::Complete {
            frames.push(FlameFrame::marker(&end_marker(stack)));
        }
        frames
    }
}

/// Name of code whose name and module are unknown.
const NAMELESS: &str = "[unknown]";

/// Appends the functions at an address, innermost first.
fn push_functions(frame: FrameRef<'_>, style: NameStyle, frames: &mut Vec<FlameFrame>) {
    let inlined = frame.inlined().map(|inlined| (inlined.symbol, inlined.file));
    let functions = inlined.chain([(frame.function(), frame.file())]);
    frames.extend(functions.map(|(name, file)| FlameFrame {
        name: match name {
            Some(name) if frame.is_python() => readable(&with_file(name, file)),
            Some(name) => readable(&style.show(name)),
            None => readable(&module_name(frame)),
        },
        file: file.map(str::to_owned),
    }));
}

/// Name for code without a symbol: its module.
fn module_name(frame: FrameRef<'_>) -> String {
    match frame.module() {
        None => NAMELESS.to_owned(),
        Some(module) => format!("[{}]", module.basename()),
    }
}

/// Marker for the missing root of an incomplete stack: the cause, and the module where the walk ended. It has
/// no address, since each address would make a separate root.
fn end_marker(stack: StackRef<'_>) -> String {
    let cause = stack.end.name();
    match stack.end_at().and_then(|at| at.place) {
        None => format!("[{cause}]"),
        Some(place) => format!("[{cause} in {}]", place.module.basename()),
    }
}

/// Marker for frames that were left out: the frames on its two sides are not caller and callee.
pub(crate) fn left_out_marker(frames: u32) -> String {
    format!("[{} left out]", counted(frames.into(), "frame"))
}

/// Makes a name safe in a folded line: replaces the separator of frames, and joins a trailing number, which
/// readers would take for the first of two amounts.
fn readable(name: &str) -> String {
    let mut readable = one_line(name.trim()).replace(';', ":");
    let last_space = readable
        .char_indices()
        .rfind(|(_, character)| character.is_whitespace());
    if let Some((at, space)) = last_space {
        let after = at + space.len_utf8();
        let is_digit = |character: char| character.is_ascii_digit() || character == '.';
        if readable[after..].chars().all(is_digit) {
            readable.replace_range(at..after, "_");
        }
    }
    match readable.is_empty() {
        true => NAMELESS.to_owned(),
        false => readable,
    }
}

/// Escapes control characters, invisible characters, those at which some readers end lines, and those that
/// XML cannot contain.
pub(super) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        let is_foreign = is_format(character) || matches!(character, '\u{fffe}' | '\u{ffff}');
        match character.is_control() || is_foreign {
            true => line.extend(character.escape_default()),
            false => line.push(character),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are unchanged, except for what a folded line cannot contain.
    #[test]
    fn names_are_readable() {
        for (name, expected) in [
            ("main", "main"),
            (
                "std::map<int, char>::at(int const&)",
                "std::map<int, char>::at(int const&)",
            ),
            (
                "operator delete[](void*, unsigned long)",
                "operator delete[](void*, unsigned long)",
            ),
            ("a;b", "a:b"),
            (";", ":"),
            ("evil\u{1b}[2J\n480", "evil\\u{1b}[2J\\n480"),
            ("a\u{2028}b\u{ffff}\u{85}c", "a\\u{2028}b\\u{ffff}\\u{85}c"),
            ("", "[unknown]"),
            (" \t\n", "[unknown]"),
            (" padded ", "padded"),
            ("LazyCompile: f 12", "LazyCompile: f_12"),
            ("f 1 2.5", "f 1_2.5"),
            ("f\u{a0}7", "f_7"),
            ("größe 4x", "größe 4x"),
        ] {
            assert_eq!(readable(name), expected, "{name:?}");
        }
    }
}
