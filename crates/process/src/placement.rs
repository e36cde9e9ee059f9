//! Place of an object in a process: the bias of each of its mappings.
//!
//! A mapping states an offset in the file; the segment that contains the offset gives the bias. Loaders map
//! whole pages, so that a page can belong to two segments, even to two executable ones (of lld, and of linker
//! scripts that place code at a separate address). Then the file's other mappings decide: all mappings of one
//! copy of an object have one bias. If they do not decide, the mapping is refused, since a wrong bias gives
//! wrong tables and wrong names.

use std::collections::HashMap;
use std::ops::Range;

use unwind_tables::addr::{Avma, Bias, FileOffset};
use unwind_tables::elf::Segment;

use super::maps::MapsEntry;
use super::modules::{Module, Unreadable};
use memleak_base::pages;

/// Segments of an object, as its file has them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout<'a> {
    segments: &'a [Segment],
    /// True if it is mapped at the addresses that it states (`ET_EXEC`).
    is_fixed: bool,
    page: u64,
}

/// A part of a file, and where it is mapped.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) range: Range<Avma>,
    pub(super) offset: FileOffset,
    pub(super) executable: bool,
}

/// Other knowledge of where the file is mapped.
#[derive(Clone, Copy, Debug)]
pub(super) enum Others<'a> {
    /// Not looked at.
    Unseen,
    /// All mappings of the file, at one moment.
    Seen(&'a Seen),
    /// Not known. The mapping was just made by one call, so that its length is the one that its maker passed.
    Unknown,
}

/// Segments of an object that are mapped at each bias, as a set of bits by their numbers.
#[derive(Debug, Default)]
pub(super) struct Seen(HashMap<Bias, u64>);

/// Maximum number of biases kept of one object. Each copy has one, and a few wrong ones for pages of two
/// segments.
const MAX_BIASES: usize = 1 << 16;

impl From<&MapsEntry> for Part {
    fn from(entry: &MapsEntry) -> Self {
        Self {
            range: entry.range.clone(),
            offset: entry.offset,
            executable: entry.executable,
        }
    }
}

impl Seen {
    /// Looks at all mappings of the object's file.
    pub(super) fn of(layout: &Layout<'_>, parts: impl Iterator<Item = Part>) -> Self {
        let mut seen = Self::default();
        for part in parts {
            for (segment, number) in layout.segments.iter().zip(0..u64::BITS) {
                let Some(bias) = layout.bias_as(segment, &part) else {
                    continue;
                };
                if seen.0.len() < MAX_BIASES || seen.0.contains_key(&bias) {
                    *seen.0.entry(bias).or_default() |= 1 << number;
                }
            }
        }
        seen
    }

    fn segments(&self, bias: Bias) -> u32 {
        self.0.get(&bias).map_or(0, |segments| segments.count_ones())
    }
}

impl<'a> Layout<'a> {
    pub(super) fn of(module: &'a Module) -> Self {
        Self {
            segments: module.segments(),
            is_fixed: module.is_fixed(),
            page: pages::bytes(),
        }
    }

    /// The bias of a part of the file.
    ///
    /// # Errors
    ///
    /// [`Unreadable::NoSegment`] if no segment contains the part's start; [`Unreadable::Ambiguous`] if
    /// several do, with different biases, and nothing decides between them.
    pub(super) fn bias(&self, part: &Part, others: Others<'_>) -> Result<Bias, Unreadable> {
        let meant = self.candidates(part);
        let possible = biases(&meant);
        if let [bias] = possible[..] {
            return Ok(bias);
        }
        let stated = Bias::default();
        if self.is_fixed && possible.contains(&stated) {
            return Ok(stated);
        }
        // A part that extends beyond a segment belongs to another one, unless it spans several consecutive
        // segments.
        let fitting: Vec<_> = meant
            .iter()
            .copied()
            .filter(|(segment, _)| self.holds_end(segment, part))
            .collect();
        let meant = if fitting.is_empty() { meant } else { fitting };
        let decided = match others {
            Others::Unseen => biases(&meant),
            Others::Seen(seen) => with_most_segments(&meant, seen),
            Others::Unknown => self.of_that_length(&meant, part),
        };
        match decided[..] {
            [bias] => Ok(bias),
            _ if meant.is_empty() => Err(Unreadable::NoSegment),
            _ => Err(Unreadable::Ambiguous),
        }
    }

    /// Returns the segments that a part can belong to, each with the resulting bias: those that are
    /// executable as the part is, or the others if there are none, since a program may have changed the
    /// part's protection.
    fn candidates(&self, part: &Part) -> Vec<(&'a Segment, Bias)> {
        let of = |executable| -> Vec<_> {
            let segments = self.segments.iter().filter(|s| s.executable == executable);
            segments
                .filter_map(|segment| Some((segment, self.bias_as(segment, part)?)))
                .collect()
        };
        let own = of(part.executable);
        if own.is_empty() { of(!part.executable) } else { own }
    }

    /// Returns the bias of a part if it belongs to this segment; `None` if the segment does not contain its
    /// start.
    fn bias_as(&self, segment: &Segment, part: &Part) -> Option<Bias> {
        let (start, _) = self.pages_of(segment);
        let holds = (start..segment.offset.end.get()).contains(&part.offset.get());
        let into = part.offset.offset_from(segment.offset.start);
        holds.then(|| Bias::between(part.range.start, segment.svma.start.wrapping_add(into)))
    }

    /// Start and end of a segment's pages in the file.
    fn pages_of(&self, segment: &Segment) -> (u64, u64) {
        let (start, end) = (segment.offset.start.get(), segment.offset.end.get());
        (
            start - start % self.page,
            end.checked_next_multiple_of(self.page).unwrap_or(u64::MAX),
        )
    }

    fn holds_end(&self, segment: &Segment, part: &Part) -> bool {
        let length = part.range.end.offset_from(part.range.start);
        part.offset.get().saturating_add(length) <= self.pages_of(segment).1
    }

    /// Biases of the segments whose pages are exactly the part's; all biases if there is no such segment.
    fn of_that_length(&self, meant: &[(&'a Segment, Bias)], part: &Part) -> Vec<Bias> {
        let length = part.range.end.offset_from(part.range.start);
        let pages = (part.offset.get(), part.offset.get().saturating_add(length));
        let is_whole = |(segment, _): &&(&Segment, Bias)| self.pages_of(segment) == pages;
        let whole: Vec<_> = meant.iter().filter(is_whole).copied().collect();
        biases(if whole.is_empty() { meant } else { &whole })
    }
}

/// Biases at which the most segments of the object are mapped. At the true bias, these are all segments that
/// are still mapped; at a wrong one, hardly more than the segment in question, since no two copies of an
/// object overlap.
fn with_most_segments(meant: &[(&Segment, Bias)], seen: &Seen) -> Vec<Bias> {
    let biases = biases(meant);
    let most = biases.iter().map(|&bias| seen.segments(bias)).max();
    let has_most = |bias: &Bias| Some(seen.segments(*bias)) == most;
    biases.into_iter().filter(has_most).collect()
}

/// The biases of candidates, each once.
fn biases(candidates: &[(&Segment, Bias)]) -> Vec<Bias> {
    let mut biases: Vec<_> = candidates.iter().map(|&(_, bias)| bias).collect();
    biases.sort_unstable_by_key(|bias| bias.get());
    biases.dedup();
    biases
}

#[cfg(test)]
mod tests;
