//! Places of an object's code in its image.
//!
//! An image's index has an entry for each 256 bytes from the first row to the last. If a linker was told to
//! put some code far from the rest, or all code at high addresses, nearly all entries would be for addresses
//! without code. So the image has code closer together than the file. The mapping list gives mappings of
//! moved code another bias than they have in the process.

use std::ops::Range;

use crate::addr::{Bias, Svma};
use crate::elf::Segment;
use crate::ranges;
use crate::table::Row;

/// Maximum number of bytes without code between two segments that keep their distance.
const MAX_GAP: u64 = 4 << 20;
/// Highest address at which an image can begin: its header has 32 bits for the number of a block.
const MAX_START: u64 = 1 << 39;
/// Bytes without code on each side of moved code: mappings consist of whole pages, which have up to 64 KiB.
const MARGIN: u64 = 64 << 10;

/// Code that follows a long gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moved {
    /// Its start, including its margin.
    start: Svma,
    /// Number of bytes by which it is lower in the image.
    by: u64,
    /// End of the code before it, including its margin.
    before: Svma,
}

/// Places of an object's code in its image: those of the file, except for code that follows a long gap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(Vec<Moved>);

impl Places {
    /// The places of code in these segments.
    pub fn of(segments: &[Segment]) -> Self {
        let executable = segments.iter().filter(|segment| segment.executable);
        let code = ranges::merge(executable.map(Segment::file_backed));
        let (mut places, mut by, mut end) = (Vec::new(), 0, None);
        for range in code {
            let start = range.start.get();
            let (before, longest) = end.map_or((0, MAX_START), |end: Svma| (end.get(), MAX_GAP));
            let gap = start - before;
            if gap > longest {
                by += (gap - 2 * MARGIN) / MARGIN * MARGIN;
                places.push(Moved {
                    start: Svma::new(start - MARGIN),
                    by,
                    before: Svma::new(before + MARGIN),
                });
            }
            end = Some(range.end);
        }
        Self(places)
    }

    /// Returns true if all code has the file's addresses in the image.
    pub fn are_of_file(&self) -> bool {
        self.0.is_empty()
    }

    /// Bias between the addresses of the file and the image, at an address of the file.
    pub fn bias(&self, svma: Svma) -> Bias {
        Bias::from_raw(self.moved_before(svma).map_or(0, |moved| moved.by))
    }

    /// The parts of a range that have one bias each.
    pub fn parts(&self, range: &Range<Svma>) -> Vec<Range<Svma>> {
        let inside = self.0.iter().map(|moved| moved.start);
        let inside = inside.filter(|&start| range.start < start && start < range.end);
        let bounds: Vec<_> = [range.start]
            .into_iter()
            .chain(inside)
            .chain([range.end])
            .collect();
        bounds.windows(2).map(|two| two[0]..two[1]).collect()
    }

    /// The address in the image; `None` in a long gap.
    pub(crate) fn in_image(&self, svma: Svma) -> Option<Svma> {
        let next = self.0.get(self.count_to(svma));
        let is_near = next.is_none_or(|next| svma < next.before);
        is_near.then(|| self.bias(svma).to_svma(crate::addr::Avma::new(svma.get())))
    }

    /// Moves rows of the object, which begin where its code begins or ends.
    pub(crate) fn place<R: Copy>(&self, rows: &[Row<R>]) -> Vec<Row<R>> {
        let place = |row: &Row<R>| Row {
            start: self.in_image(row.start).unwrap_or(row.start),
            rule: row.rule,
        };
        rows.iter().map(place).collect()
    }

    fn moved_before(&self, svma: Svma) -> Option<&Moved> {
        self.0.get(self.count_to(svma).checked_sub(1)?)
    }

    fn count_to(&self, svma: Svma) -> usize {
        self.0.partition_point(|moved| moved.start <= svma)
    }
}
