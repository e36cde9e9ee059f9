//! The stack of a site as lines of text.

use std::time::Duration;

use unwind_tables::walk::{End, FoundBy, LeftOut, Unwind};

use super::sample::{Sample, Site};
use super::text::{amount, printable, width};
use leak_report::model::FrameRef;
use leak_report::model::owner::function;
use leak_report::model::{InstanceEnd, NameStyle};
use leak_report::render::{counted, short_size};

/// Subject of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Facts about the site besides its stack.
    Facts,
    Frame,
    Inlined,
    /// End of a complete stack.
    Complete,
    /// End of an incomplete stack, and what can be done about it.
    Incomplete,
}

/// Printable lines.
#[derive(Clone, Debug, Default)]
pub(super) struct StackText {
    pub(super) lines: Vec<(Kind, String)>,
}

impl StackText {
    /// Lines for a site of `sample`.
    pub(super) fn of(site: &Site, sample: Option<&Sample>) -> Self {
        let mut lines = vec![(Kind::Facts, facts(site, sample))];
        lines.extend(site.holders.iter().map(|line| (Kind::Facts, line.clone())));
        let unwind = sample.map_or(Unwind::Dwarf, |sample| sample.unwind);
        let names = sample.map_or_else(NameStyle::default, |sample| sample.names);
        let frames = sample.map(|sample| sample.dictionary.frames(site.path));
        let mut left_out = site.left_out;
        for (at, frame) in frames.into_iter().flatten().enumerate() {
            let here = left_out.take_if(|left_out| left_out.after as usize <= at);
            lines.extend(here.map(left_out_line));
            lines.extend(inlined_lines(frame, names));
            lines.push((Kind::Frame, frame_line(frame, unwind, names)));
        }
        lines.extend(left_out.map(left_out_line));
        let kind = match (site.end == End::Complete, site.is_cut) {
            (true, _) => Kind::Complete,
            (false, true) => Kind::Facts,
            (false, false) => Kind::Incomplete,
        };
        lines.extend(site.end_lines.iter().map(|line| (kind, line.clone())));
        Self { lines }
    }

    /// Columns of the longest line.
    pub(super) fn width(&self) -> usize {
        let widths = self.lines.iter().map(|(_, line)| width(line));
        widths.max().unwrap_or_default()
    }
}

fn facts(site: &Site, sample: Option<&Sample>) -> String {
    let mut facts: Vec<_> = site.verdict_words.iter().cloned().collect();
    facts.push(format!("allocated {}", amount(site.allocated)));
    if let Some(error) = site.error {
        facts.push(format!("± {} (standard error)", short_size(error)));
    }
    if site.young.blocks > 0 {
        let older = sample.and_then(|sample| sample.older).unwrap_or(Duration::ZERO);
        let milliseconds = older.as_millis();
        facts.push(format!(
            "besides {} under {milliseconds} ms old",
            amount(site.young)
        ));
    }
    if site.lost.blocks > 0 {
        facts.push(format!("lost {}", amount(site.lost)));
    }
    match site.ended {
        None => {}
        Some(InstanceEnd::Exited) => facts.push(format!("outstanding when process {} exited", site.pid)),
        Some(InstanceEnd::Left) => {
            facts.push(format!("outstanding when process {} was last traced", site.pid))
        }
        Some(InstanceEnd::OutOfMemory) => {
            facts.push(format!(
                "outstanding when process {} was killed for lack of memory",
                site.pid
            ));
        }
        Some(InstanceEnd::Execed) => facts.push(format!(
            "outstanding when exec replaced the program of process {}",
            site.pid
        )),
    }
    facts.join(", ")
}

fn left_out_line(left_out: LeftOut) -> (Kind, String) {
    let frames = counted(left_out.frames.into(), "frame");
    (Kind::Facts, format!("… {frames} left out …"))
}

fn frame_line(frame: FrameRef<'_>, unwind: Unwind, names: NameStyle) -> String {
    // Where the user chose frame pointers, every frame would be marked.
    let mark = match (frame.found_by, unwind) {
        (FoundBy::Fp, Unwind::Dwarf) => " (by frame pointer)",
        (FoundBy::FpGenerated, _) => " (by frame pointer of generated code)",
        (FoundBy::FpUncertain, _) => " (by frame pointer; callers may be missing before it)",
        (FoundBy::Fp, Unwind::Fp)
        | (FoundBy::Probe | FoundBy::Cfi | FoundBy::Kernel | FoundBy::Python, _) => "",
    };
    let source = source(frame.file(), frame.line());
    let name = function(frame);
    let name = names.show(&name);
    printable(&format!("{name}{}{source}{mark}", module(frame)))
}

/// Lines of inlined functions, innermost first.
fn inlined_lines(frame: FrameRef<'_>, names: NameStyle) -> impl Iterator<Item = (Kind, String)> {
    frame.inlined().map(move |inlined| {
        let name = names.show(inlined.symbol.unwrap_or("[unknown]"));
        let source = source(inlined.file, inlined.line);
        (
            Kind::Inlined,
            printable(&format!("{name} (inlined){}{source}", module(frame))),
        )
    })
}

fn module(frame: FrameRef<'_>) -> String {
    let module = frame.module_name();
    module.map_or_else(String::new, |module| format!(" [{module}]"))
}

fn source(file: Option<&str>, line: Option<u32>) -> String {
    match (file, line) {
        (None, _) => String::new(),
        (Some(file), None) => format!(" {file}"),
        (Some(file), Some(line)) => format!(" {file}:{line}"),
    }
}
