//! Mappings of modules in a process: pprof finds functions by them, and distinguishes code of different
//! modules.

use std::cmp::Reverse;

use indexmap::IndexSet;
use unwind_tables::addr::{Avma, Bias, Svma};

use super::proto::{Mapping, id};
use crate::model::{CodeSegment, FrameRef, Place};

/// Alignment of mappings, or a divisor of it.
const PAGE: u64 = 4096;

/// A segment of a module in a process.
#[derive(PartialEq, Eq, Hash)]
struct Key<'a> {
    path: &'a str,
    build_id: Option<&'a str>,
    bias: Bias,
    /// `None` if the segments of the module's code are not known.
    segment: Option<&'a CodeSegment>,
}

/// Mappings that contain code of samples.
pub(super) struct Mappings<'a> {
    keys: IndexSet<Key<'a>>,
    /// Lowest and highest address seen in each mapping.
    seen: Vec<(Avma, Avma)>,
}

/// Facts known about any location in a mapping. (pprof sets these flags for mappings that it symbolizes
/// itself, and tries to symbolize only mappings that have none.)
#[derive(Clone, Copy, Default)]
pub(super) struct Resolved {
    pub(super) functions: bool,
    pub(super) filenames: bool,
    pub(super) line_numbers: bool,
    pub(super) inline_frames: bool,
}

impl<'a> Mappings<'a> {
    pub(super) fn new() -> Self {
        Self {
            keys: IndexSet::new(),
            seen: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.seen.len()
    }

    /// Number of the mapping that contains `address`, which is code of `frame`; `None` for code outside
    /// modules.
    pub(super) fn number(&mut self, frame: FrameRef<'a>, address: Avma) -> Option<usize> {
        let Place { module, svma } = frame.place()?;
        let bias = Bias::between(frame.pc(), svma);
        let at = bias.to_svma(address);
        let mut code = module.get().code.iter();
        let key = Key {
            path: module.path(),
            build_id: module.build_id(),
            bias,
            segment: code.find(|segment| segment.svma.contains(&at)),
        };
        let number = self.keys.insert_full(key).0;
        if number == self.seen.len() {
            self.seen.push((address, address));
        }
        let (lowest, highest) = &mut self.seen[number];
        *lowest = address.min(*lowest);
        *highest = address.max(*highest);
        Some(number)
    }

    /// The mapping messages, those of `program` first, and their IDs by mapping number.
    pub(super) fn messages(
        self,
        program: Option<&str>,
        resolved: &[Resolved],
        mut string: impl FnMut(&str) -> i64,
    ) -> (Vec<Mapping>, Vec<u64>) {
        let keys = self.keys;
        let mut order: Vec<_> = (0..keys.len()).collect();
        order.sort_by_key(|&number| Reverse(Some(keys[number].path) == program));
        let mut ids = vec![0; keys.len()];
        let message = |(place, &number): (usize, &usize)| {
            ids[number] = id(place);
            let (start, limit, file_offset) = bounds(&keys[number], self.seen[number]);
            let resolved = resolved[number];
            Mapping {
                id: id(place),
                memory_start: start.get(),
                memory_limit: limit.get(),
                file_offset,
                filename: string(keys[number].path),
                build_id: string(keys[number].build_id.unwrap_or_default()),
                has_functions: resolved.functions,
                has_filenames: resolved.filenames,
                has_line_numbers: resolved.line_numbers,
                has_inline_frames: resolved.inline_frames,
            }
        };
        let messages = order.iter().enumerate().map(message).collect();
        (messages, ids)
    }
}

/// Start and end in the process, and the start's file offset: as the kernel maps the segment, or, if that is
/// unknown, the pages around the addresses seen.
fn bounds(key: &Key<'_>, (lowest, highest): (Avma, Avma)) -> (Avma, Avma, u64) {
    let down = |address: u64| address & !(PAGE - 1);
    let up = |address: u64| address.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
    match key.segment {
        None => (
            Avma::new(down(lowest.get())),
            Avma::new(up(highest.get().saturating_add(1))),
            0,
        ),
        Some(CodeSegment { svma, offset }) => (
            key.bias.to_avma(Svma::new(down(svma.start.get()))),
            key.bias.to_avma(Svma::new(up(svma.end.get()))),
            down(offset.get()),
        ),
    }
}
