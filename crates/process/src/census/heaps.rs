//! Heaps that are known by what is in them: structures of an allocator that agree with the mapping they are
//! in. Layouts are those of 64-bit programs:
//!
//! - glibc's `heap_info` and the header of a chunk with a mapping of its own (`malloc/arena.c`,
//!   `malloc/malloc.c`; measured with 2.36);
//! - the head of a group of musl's mallocng, and its record (`meta.h` of its `mallocng`, since 1.2.1);
//! - the head of a pool of CPython's obmalloc (`Include/internal/pycore_obmalloc.h`; pools of 16 KiB since
//!   3.10, of 4 KiB before);
//! - the head of a page of V8's heap (`memory-chunk-layout.h` of V8 11.3, in Node.js 20).
//!
//! Each check reads a bounded number of words. Mappings of one kind that touch each other are one line of
//! `smaps`, so that structures are followed from one to the next.

use std::ops::Range;

use super::contents::{Contents, words};
use super::kind::Kind;

/// Size and alignment of glibc's arenas other than the first.
const ARENA: u64 = 64 << 20;
/// Maximum number of structures that are followed in one range.
const MOST: usize = 4096;
const PAGE: u64 = 4096;

/// Allocators and runtimes whose structures are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) python: bool,
    pub(super) musl: bool,
    /// Set to look for structures also behind memory of no known purpose, page by page.
    pub(super) everywhere: bool,
}

/// Memory of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) range: Range<u64>,
    pub(super) kind: Kind,
}

/// Finds the structures in a range of memory that is mapped without gaps, ascending. `probes` is the number
/// of places in unknown memory that may still be looked at, in all ranges.
pub(super) fn find(
    contents: &dyn Contents,
    range: &Range<u64>,
    wanted: Wanted,
    probes: &mut usize,
) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    let mut at = range.start;
    // Behind unknown memory, a structure counts if the next one follows, or the end.
    let mut is_certain = true;
    while at < range.end && found.len() < MOST {
        let place = Place {
            contents,
            at,
            end: range.end,
        };
        let confirmed = |next: u64| {
            let place = Place { at: next, ..place };
            is_certain || next == range.end || place.structure(wanted).is_some()
        };
        match place.structure(wanted).filter(|&(_, next)| confirmed(next)) {
            Some((kind, next)) => {
                match found
                    .last_mut()
                    .filter(|last| last.kind == kind && last.range.end == at)
                {
                    Some(last) => last.range.end = next,
                    None => found.push(Found {
                        range: at..next,
                        kind,
                    }),
                }
                (at, is_certain) = (next, true);
            }
            None if wanted.everywhere && *probes > 0 => {
                *probes -= 1;
                (at, is_certain) = (at + PAGE, false);
            }
            None => break,
        }
    }
    found
}

/// Place at which a structure may begin.
#[derive(Clone, Copy)]
struct Place<'a> {
    contents: &'a dyn Contents,
    at: u64,
    end: u64,
}

impl Place<'_> {
    /// The structure that begins here, and where it ends.
    fn structure(&self, wanted: Wanted) -> Option<(Kind, u64)> {
        let python = || wanted.python.then(|| self.arena_of_python()).flatten();
        let musl = || wanted.musl.then(|| self.musl_group()).flatten();
        let ends = [
            (Kind::GlibcArena, self.arena()),
            (Kind::GlibcBlocks, self.mapped_chunk()),
            (Kind::PythonArenas, python()),
            (Kind::MuslGroups, musl()),
            (Kind::V8Heap, self.v8_page()),
        ];
        let found = ends.into_iter().find_map(|(kind, end)| Some((kind, end?)));
        found.filter(|&(_, end)| self.at < end && end <= self.end)
    }

    /// End of the writable part of an arena of glibc: it begins with a record of its size, which leads to the
    /// arena's state in its first part.
    fn arena(&self) -> Option<u64> {
        if !self.at.is_multiple_of(ARENA) {
            return None;
        }
        let [state, before, size, writable] = words::<4>(self.contents, self.at)?;
        let base = state - state % ARENA;
        let is_arena = before.is_multiple_of(ARENA)
            && base != 0
            && (before != 0 || base == self.at)
            && (1..=writable).contains(&size)
            && writable <= ARENA
            && writable.is_multiple_of(PAGE);
        self.at.checked_add(writable).filter(|_| is_arena)
    }

    /// End of a chunk of glibc with a mapping of its own, which begins with unused bytes if the block is
    /// aligned: the header states their number.
    fn mapped_chunk(&self) -> Option<u64> {
        const IS_MAPPED: u64 = 2;
        /// Bytes before the header for blocks aligned to 16, 32, 64, 128 and 4096 bytes.
        const BEFORE: [u64; 5] = [0, 16, 48, 112, 4080];
        BEFORE.into_iter().find_map(|unused| {
            let [before, size] = words::<2>(self.contents, self.at.checked_add(unused)?)?;
            let (size, flags) = (size & !7, size & 7);
            let whole = size.checked_add(unused)?;
            let is_chunk =
                flags == IS_MAPPED && before == unused && size >= PAGE && whole.is_multiple_of(PAGE);
            self.at.checked_add(whole).filter(|_| is_chunk)
        })
    }

    /// End of a group of musl with a mapping of its own.
    fn musl_group(&self) -> Option<u64> {
        let [record] = words::<1>(self.contents, self.at)?;
        let [_, _, group, _, fields] =
            words::<5>(self.contents, record).filter(|_| record.is_multiple_of(8))?;
        // Of the record's last word, the upper 52 bits count the pages of the group's mapping.
        let bytes = (fields >> 12).checked_mul(PAGE).filter(|&bytes| bytes != 0)?;
        self.at.checked_add(bytes).filter(|_| group == self.at)
    }

    /// End of a page of V8: of 256 KiB, or larger with one object.
    fn v8_page(&self) -> Option<u64> {
        const ALIGNED: u64 = 256 << 10;
        if !self.at.is_multiple_of(ALIGNED) {
            return None;
        }
        let [size, _, heap] = words::<3>(self.contents, self.at)?;
        let is_page = size > PAGE && heap.is_multiple_of(8) && heap > PAGE;
        self.at
            .checked_add(size)?
            .checked_next_multiple_of(PAGE)
            .filter(|_| is_page)
    }

    /// End of an arena of CPython's obmalloc, by its first pool.
    fn arena_of_python(&self) -> Option<u64> {
        /// Bytes of arenas and of their pools: since CPython 3.10, and before.
        const SIZES: [(u64, u64); 2] = [(1 << 20, 16 << 10), (256 << 10, 4 << 10)];
        let found = SIZES.into_iter().find(|&(_, pool)| {
            let first = self.at.checked_next_multiple_of(pool);
            first.is_some_and(|first| is_pool(self.contents, first, pool))
        });
        let (arena, _) = found?;
        // The rest of an arena may have other rights, or a name.
        Some(self.at.checked_add(arena)?.min(self.end))
    }
}

/// Returns whether a pool of `size` begins at `at`: the offset of its last block agrees with the size of its
/// blocks.
fn is_pool(contents: &dyn Contents, at: u64, size: u64) -> bool {
    const HEAD: u64 = 48;
    const UNIT: u64 = 16;
    let Some([_, _, _, _, class, offsets]) = words::<6>(contents, at) else {
        return false;
    };
    let (class, next, last) = (class >> 32, offsets & 0xffff_ffff, offsets >> 32);
    let block = (class + 1).saturating_mul(UNIT);
    class < 64
        && last == size - block
        && next >= HEAD
        && next <= size + block
        && (next - HEAD).is_multiple_of(block)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Words;
    use super::*;

    const AT: u64 = 0x7f00_0000_0000;

    /// Kinds and ends of what is found in a range, in pages from its start.
    fn found(words: &Words, pages: u64, wanted: Wanted) -> Vec<(Kind, u64, u64)> {
        let found = find(words, &(AT..AT + pages * PAGE), wanted, &mut 1000);
        let pages = |address: u64| (address - AT) / PAGE;
        let found = found.iter();
        found
            .map(|found| (found.kind, pages(found.range.start), pages(found.range.end)))
            .collect()
    }

    /// An arena ends where its record says, and what follows is looked at by itself.
    #[test]
    fn arenas() {
        let wanted = Wanted::default();
        let (second, pages) = (AT + ARENA, ARENA / PAGE);
        let mut words = Words::default();
        words.put(AT, &[AT + 0x30, 0, ARENA, ARENA]);
        assert_eq!(found(&words, pages + 1, wanted), [(Kind::GlibcArena, 0, pages)]);
        // A continued arena's state is in its first part.
        words.put(second, &[AT + 0x30, AT, 9, PAGE]);
        assert_eq!(
            found(&words, pages + 1, wanted),
            [(Kind::GlibcArena, 0, pages + 1)]
        );
        words.put(second, &[0, 2 * PAGE + 2]);
        let expected = [
            (Kind::GlibcArena, 0, pages),
            (Kind::GlibcBlocks, pages, pages + 2),
        ];
        assert_eq!(found(&words, pages + 2, wanted), expected);
        for wrong in [
            [second + 0x30, 0, PAGE, PAGE],
            [AT + 0x30, 0, 2 * PAGE, PAGE],
            [AT + 0x30, 0, PAGE, 2 * ARENA],
            [AT + 0x30, 0, PAGE, PAGE + 1],
            [0x30, AT + ARENA, PAGE, PAGE],
            [0x30, AT + 8, PAGE, PAGE],
            [0; 4],
        ] {
            words.put(AT, &wrong);
            assert_eq!(found(&words, pages, wanted), [], "{wrong:x?}");
        }
    }

    /// Chunks are followed to the first that is none; hostile sizes end the walk.
    #[test]
    fn chunks() {
        let wanted = Wanted::default();
        let mut words = Words::default();
        words.put(AT, &[0, 0x10_0002]);
        words.put(AT + 0x10_0000, &[0, 0x20_0002]);
        assert_eq!(found(&words, 768, wanted), [(Kind::GlibcBlocks, 0, 768)]);
        for wrong in [
            [0, 0x20_1002],
            [16, 0x20_0002],
            [0, 0x20_0001],
            [0, 2],
            [0, u64::MAX - 5],
        ] {
            words.put(AT + 0x10_0000, &wrong);
            let found = found(&words, 768, wanted);
            assert_eq!(found, [(Kind::GlibcBlocks, 0, 256)], "{wrong:x?}");
        }
        // An aligned block.
        words.put(AT + 0x10_0030, &[48, 0x20_0000 - 48 + 2]);
        assert_eq!(found(&words, 768, wanted), [(Kind::GlibcBlocks, 0, 768)]);
    }

    /// Behind unknown memory, a structure counts if what follows confirms it.
    #[test]
    fn behind_the_unknown() {
        let everywhere = Wanted {
            everywhere: true,
            ..Wanted::default()
        };
        let mut words = Words::default();
        words.put(AT + 3 * PAGE, &[0, 4 * PAGE + 2]);
        assert_eq!(found(&words, 7, everywhere), [(Kind::GlibcBlocks, 3, 7)]);
        assert_eq!(found(&words, 7, Wanted::default()), []);
        assert_eq!(found(&words, 9, everywhere), [], "nothing confirms it");
        words.put(AT + 7 * PAGE, &[0, PAGE + 2]);
        assert_eq!(found(&words, 9, everywhere), [(Kind::GlibcBlocks, 3, 8)]);
        assert_eq!(find(&words, &(AT..AT + 7 * PAGE), everywhere, &mut 2), []);
    }

    /// A group and its record lead to each other.
    #[test]
    fn groups() {
        let wanted = Wanted {
            musl: true,
            ..Wanted::default()
        };
        let record = 0x5500_0000_1000;
        let mut words = Words::default();
        words.put(AT, &[record]);
        words.put(record, &[1, 2, AT, 3, 2 << 12 | 0x7ff]);
        assert_eq!(found(&words, 2, wanted), [(Kind::MuslGroups, 0, 2)]);
        assert_eq!(found(&words, 2, Wanted::default()), []);
        words.put(record, &[1, 2, AT + 16, 3, 2 << 12]);
        assert_eq!(found(&words, 2, wanted), []);
        words.put(record, &[1, 2, AT, 3, u64::MAX]);
        assert_eq!(found(&words, 2, wanted), []);
    }

    /// Pages of V8 state their size.
    #[test]
    fn v8() {
        let mut words = Words::default();
        words.put(AT, &[0x4_0000, 5, 0x1234_5678]);
        words.put(AT + 0x4_0000, &[0x4_1800, 5, 0x1234_5678]);
        assert_eq!(found(&words, 0x82, Wanted::default()), [(Kind::V8Heap, 0, 0x82)]);
        words.put(AT, &[0x4_0000, 5, 3]);
        assert_eq!(found(&words, 0x40, Wanted::default()), []);
    }

    /// Arenas and large blocks that touch each other are told apart.
    #[test]
    fn arenas_of_python() {
        let python = Wanted {
            python: true,
            ..Wanted::default()
        };
        let pool = |class: u64| [3, 0, 0, 0, class << 32, (16384 - (class + 1) * 16) << 32 | 48];
        let mut words = Words::default();
        words.put(AT, &pool(3));
        words.put(AT + (1 << 20), &[0, PAGE + 2]);
        // The first pool of this one is at the next aligned address.
        words.put(AT + (1 << 20) + 4 * PAGE, &pool(30));
        let expected = [
            (Kind::PythonArenas, 0, 256),
            (Kind::GlibcBlocks, 256, 257),
            (Kind::PythonArenas, 257, 513),
        ];
        assert_eq!(found(&words, 513, python), expected);
        for wrong in [[0; 6], [7; 6], [u64::MAX; 6]] {
            words.put(AT, &wrong);
            assert_eq!(found(&words, 513, python), [], "{wrong:x?}");
        }
    }
}
