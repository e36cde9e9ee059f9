//! Events in the format of heaptrack's interpreter, compressed: for heaptrack_gui and heaptrack_print.
//!
//! heaptrack records single allocations and frees in order of time. A report only has amounts by stack, so
//! each call becomes an event with the mean size of its stack: first the blocks that were freed, then the
//! outstanding ones. Leaked memory, the number of calls, and the peak that outstanding blocks reach are
//! therefore those of the report. The curve over time, temporary allocations, single sizes, and the peak
//! before the report are unknown. As in all flame graphs, only stacks that can be leaks are included.
//!
//! Lines are as of heaptrack 1.4, version 3 of its file format: numbers are hexadecimal, strings are preceded
//! by their length, and an entry comes before the lines that refer to it. Entries are numbered from 1,
//! allocations from 0.

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::{Compression, GzBuilder};
use indexmap::IndexSet;

use super::flame::{Naming, left_out_marker};
use super::printable;
use crate::model::{Amount, FrameId, FrameRef, Report, StackPart, StackRef};

/// Maximum number of events in a file: some hundred megabytes before compression, and half a minute for its
/// reader.
const MAX_EVENTS: u64 = 20_000_000;
/// Version of heaptrack that such a file would come from, and of the file format.
const VERSION: &str = "v 10400 3";
/// Bytes of a page, the unit of resident memory.
const PAGE: u64 = 4096;

/// Writes `report` as one file.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut compressed = GzBuilder::new().mtime(0).write(out, Compression::fast());
    write(report, MAX_EVENTS, &mut compressed)?;
    compressed.finish().map(drop)
}

/// Calls of one stack.
struct Calls {
    trace: usize,
    /// Blocks that are outstanding.
    kept: Amount,
    /// Blocks that were freed.
    freed: Amount,
}

fn write(report: &Report, max: u64, out: &mut dyn Write) -> io::Result<()> {
    let mut tables = Tables::new(report);
    let mut all = Vec::new();
    let mut definitions = Vec::new();
    for stack in report.suspects() {
        let (kept, allocated) = (stack.shown(), stack.allocated.amount);
        let freed = Amount {
            bytes: allocated.bytes.saturating_sub(kept.bytes),
            blocks: allocated.blocks.saturating_sub(kept.blocks),
        };
        if kept.blocks > 0 || freed.blocks > 0 {
            let trace = tables.trace(stack, &mut definitions)?;
            all.push(Calls { trace, kept, freed });
        }
    }
    let left_out = limit(&mut all, max);
    writeln!(out, "{VERSION}")?;
    writeln!(out, "X {}", subject(report, left_out))?;
    writeln!(out, "I {PAGE:x} 0")?;
    out.write_all(&definitions)?;
    let milliseconds = u64::try_from(report.elapsed.as_millis()).unwrap_or(u64::MAX);
    writeln!(out, "c 0\nc {milliseconds:x}")?;
    write_events(&all, out)?;
    let resident = report.targets.iter().filter_map(|target| target.memory.as_ref());
    let resident = resident.map(|memory| memory.rss).fold(0, u64::saturating_add);
    writeln!(out, "R {:x}\nc {milliseconds:x}", resident / PAGE)
}

/// Reduces the number of events to about `max`. Leaves out some of the freed blocks of each stack; if that is
/// not enough, merges outstanding blocks, which keeps their bytes and at least one block of each stack.
/// Returns the number of calls that are left out.
fn limit(all: &mut [Calls], max: u64) -> u64 {
    let sum = |of: fn(&Calls) -> u64, all: &[Calls]| all.iter().map(of).fold(0, u64::saturating_add);
    let before = sum(|calls| calls.kept.blocks.saturating_add(calls.freed.blocks), all);
    let part = |number: u64, room: u64, of: u64| {
        let part = u128::from(number) * u128::from(room) / u128::from(of.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    };
    let kept = sum(|calls| calls.kept.blocks, all);
    if kept > max {
        for calls in all.iter_mut().filter(|calls| calls.kept.blocks > 0) {
            calls.kept.blocks = part(calls.kept.blocks, max, kept).max(1);
        }
    }
    // A freed block takes two events.
    let room = max.saturating_sub(kept) / 2;
    let freed = sum(|calls| calls.freed.blocks, all);
    if freed > room {
        for calls in all.iter_mut().filter(|calls| calls.freed.blocks > 0) {
            let blocks = part(calls.freed.blocks, room, freed);
            calls.freed.bytes = part(calls.freed.bytes, blocks, calls.freed.blocks);
            calls.freed.blocks = blocks;
        }
    }
    before - sum(|calls| calls.kept.blocks.saturating_add(calls.freed.blocks), all)
}

/// Name of the traced program or kernel, as heaptrack shows it, and the number of missing calls.
fn subject(report: &Report, left_out: u64) -> String {
    let subject = match (&report.kernel, &report.targets[..]) {
        (Some(kernel), _) => format!("Linux {}", kernel.release),
        (None, []) => String::new(),
        (None, [target]) => format!("{} ({})", target.comm, target.pid),
        (None, [first, rest @ ..]) => format!("{} ({}) and {} more", first.comm, first.pid, rest.len()),
    };
    let left_out = match left_out {
        0 => String::new(),
        calls => format!(", without {calls} of its calls"),
    };
    printable(&format!("{subject}, by memleak{left_out}"))
}

/// Writes an event for each call.
fn write_events(all: &[Calls], out: &mut dyn Write) -> io::Result<()> {
    let mut number = 0_u64;
    let mut define = |size: u64, trace: usize, out: &mut dyn Write| {
        writeln!(out, "a {size:x} {trace:x}")?;
        number += 1;
        io::Result::Ok(number - 1)
    };
    // heaptrack calls a block temporary if the event after its allocation frees it. The report does not know
    // which blocks were, so none should look temporary: another allocation comes in between, under the second
    // number for the same size and stack.
    let mut waiting: Option<u64> = None;
    for Calls { trace, freed, .. } in all.iter().filter(|calls| calls.freed.blocks > 0) {
        let size = freed.bytes / freed.blocks;
        let numbers = [define(size, *trace, out)?, define(size, *trace, out)?];
        for (_, &number) in (0..freed.blocks).zip(numbers.iter().cycle()) {
            writeln!(out, "+ {number:x}")?;
            if let Some(earlier) = waiting.replace(number) {
                writeln!(out, "- {earlier:x}")?;
            }
        }
    }
    for Calls { trace, kept, .. } in all.iter().filter(|calls| calls.kept.blocks > 0) {
        let (size, larger) = (kept.bytes / kept.blocks, kept.bytes % kept.blocks);
        for (size, blocks) in [(size, kept.blocks - larger), (size + 1, larger)] {
            if blocks == 0 {
                continue;
            }
            let number = define(size, *trace, out)?;
            for _ in 0..blocks {
                writeln!(out, "+ {number:x}")?;
                if let Some(earlier) = waiting.take() {
                    writeln!(out, "- {earlier:x}")?;
                }
            }
        }
    }
    waiting.map_or(Ok(()), |last| writeln!(out, "- {last:x}"))
}

/// Strings, code and traces, each numbered from 1 where it is first used.
struct Tables {
    naming: Naming,
    strings: IndexSet<String>,
    /// Number of the code entry of each frame.
    frames: HashMap<FrameId, usize>,
    /// Number of the code entry that stands for each text.
    markers: HashMap<String, usize>,
    /// Number of code entries.
    codes: usize,
    /// Code entry, and the trace of its caller.
    traces: IndexSet<(usize, usize)>,
}

impl Tables {
    fn new(report: &Report) -> Self {
        Self {
            naming: Naming::exact(report),
            strings: IndexSet::new(),
            frames: HashMap::new(),
            markers: HashMap::new(),
            codes: 0,
            traces: IndexSet::new(),
        }
    }

    /// Number of a stack's trace; at least one frame.
    fn trace(&mut self, stack: StackRef<'_>, out: &mut dyn Write) -> io::Result<usize> {
        let mut codes = Vec::new();
        for part in stack.parts() {
            codes.push(match part {
                StackPart::Frame(frame) => self.frame(frame, out)?,
                StackPart::LeftOut(frames) => self.marker(&left_out_marker(frames), out)?,
            });
        }
        for root in self.naming.roots(stack).into_iter().rev() {
            codes.push(self.marker(&root.name, out)?);
        }
        if codes.is_empty() {
            codes.push(self.marker(stack.end.name(), out)?);
        }
        let mut trace = 0;
        for &code in codes.iter().rev() {
            let (at, is_new) = self.traces.insert_full((code, trace));
            if is_new {
                writeln!(out, "t {code:x} {trace:x}")?;
            }
            trace = at + 1;
        }
        Ok(trace)
    }

    fn frame(&mut self, frame: FrameRef<'_>, out: &mut dyn Write) -> io::Result<usize> {
        if let Some(&known) = self.frames.get(&frame.id()) {
            return Ok(known);
        }
        let module = frame.module().map(|module| module.basename());
        let module = self.string(module.unwrap_or_default(), out)?;
        let inlined = frame
            .inlined()
            .map(|inlined| (inlined.symbol, inlined.file, inlined.line));
        let own = (frame.function(), frame.file(), frame.line());
        // Functions of Python have no address.
        let address = match frame.is_python() {
            true => 0,
            false => frame.pc().get(),
        };
        let mut line = format!("i {address:x} {module:x}");
        for (function, file, number) in inlined.chain([own]) {
            // Without a name, its address is shown.
            if function.is_none() && file.is_none() {
                continue;
            }
            let function = self.string(function.unwrap_or("[unknown]"), out)?;
            let file = self.string(file.unwrap_or_default(), out)?;
            line += &format!(" {function:x} {file:x} {:x}", number.unwrap_or(0));
        }
        let code = self.code(&line, out)?;
        self.frames.insert(frame.id(), code);
        Ok(code)
    }

    /// Number of an entry that stands for something other than code.
    fn marker(&mut self, name: &str, out: &mut dyn Write) -> io::Result<usize> {
        if let Some(&known) = self.markers.get(name) {
            return Ok(known);
        }
        let function = self.string(name, out)?;
        let code = self.code(&format!("i 0 0 {function:x} 0 0"), out)?;
        self.markers.insert(name.to_owned(), code);
        Ok(code)
    }

    fn code(&mut self, line: &str, out: &mut dyn Write) -> io::Result<usize> {
        writeln!(out, "{line}")?;
        self.codes += 1;
        Ok(self.codes)
    }

    /// Number of a text; 0 for none.
    fn string(&mut self, text: &str, out: &mut dyn Write) -> io::Result<usize> {
        if text.is_empty() {
            return Ok(0);
        }
        let (at, is_new) = self.strings.insert_full(printable(text));
        if is_new {
            let text = &self.strings[at];
            writeln!(out, "s {:x} {text}", text.len())?;
        }
        Ok(at + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::full;

    fn text(report: &Report, max: u64) -> String {
        let mut text = Vec::new();
        write(report, max, &mut text).expect("memory");
        String::from_utf8(text).expect("UTF-8")
    }

    /// Sums over the events and the allocations that they refer to: outstanding bytes, outstanding calls, all
    /// calls.
    fn sums(text: &str) -> (u64, u64, u64) {
        let hex = |word: &str| u64::from_str_radix(word, 16).expect("a number");
        let (mut sizes, mut sums) = (Vec::new(), (0, 0, 0));
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            match words[0] {
                "a" => sizes.push(hex(words[1])),
                "+" => {
                    let size = sizes[usize::try_from(hex(words[1])).expect("an index")];
                    sums = (sums.0 + size, sums.1 + 1, sums.2 + 1);
                }
                "-" => {
                    let size = sizes[usize::try_from(hex(words[1])).expect("an index")];
                    sums = (sums.0 - size, sums.1 - 1, sums.2);
                }
                _ => {}
            }
        }
        sums
    }

    /// Outstanding bytes and blocks, and the number of calls, are those of the report. A limit on events
    /// leaves out calls, and says how many, but keeps all bytes.
    #[test]
    fn events_have_the_amounts() {
        let report = full::full();
        let amounts = |of: fn(StackRef<'_>) -> Amount| {
            report.suspects().map(of).fold((0, 0), |sum, amount| {
                (sum.0 + amount.bytes, sum.1 + amount.blocks)
            })
        };
        let kept = amounts(|stack| stack.shown());
        let allocated = amounts(|stack| stack.allocated.amount);
        let whole = text(&report, MAX_EVENTS);
        assert_eq!(sums(&whole), (kept.0, kept.1, allocated.1));
        assert!(!whole.contains("of its calls"), "{whole}");
        for max in [0, 1, kept.1, kept.1 + 10, kept.1 + 2 * (allocated.1 - kept.1)] {
            let less = text(&report, max);
            let (bytes, blocks, calls) = sums(&less);
            assert_eq!(bytes, kept.0, "{max}");
            assert!(
                calls + calls - blocks <= max.max(report.stacks.len() as u64),
                "{max}: {calls} {blocks}"
            );
            let left_out = format!("without {} of its calls", allocated.1 - calls);
            assert_eq!(less.contains(&left_out), calls < allocated.1, "{max}: {left_out}");
        }
    }

    /// Every string has its length, and text that a target chose does not begin a line.
    #[test]
    fn strings_are_delimited() {
        let mut report = full::full();
        report.targets[0].comm = "evil\n+ 0\n".to_owned();
        for line in text(&report, MAX_EVENTS).lines() {
            let words: Vec<_> = line.splitn(3, ' ').collect();
            assert!("vXIsitac+-R".contains(words[0]) && words[0].len() == 1, "{line}");
            if words[0] == "s" {
                assert_eq!(format!("{:x}", words[2].len()), words[1], "{line}");
            }
        }
    }
}
