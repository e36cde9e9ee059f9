//! Uses of all memory of glibc's malloc.
//!
//! The chunks that walks have met are kept as bits, three for each 16 bytes: chunks that look used, those of
//! them that are in caches and lists, and free ones. A chunk ends where the next one begins.
//!
//! Blocks with mappings of their own are not linked with each other. They are searched for at the start of
//! each mapping and, if glibc has more of them by its own sum, at each page of its mappings; what is still
//! missing counts as unknown.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::collector::{Collector, OfArena, Walked};
use super::in_use::mapped;
use super::lists::CACHE_SIZES;
use super::mapped::Mapped;
use super::walk::{HEADER, PAGE};
use super::{Allocator, Area, Arena, Listed, areas, search};
use crate::Memory;
use crate::free::granules::Granules;
use crate::heap::Heap;
use crate::layout::{self, Division, Layout, Piece, Pieces, Usage};
use crate::ranges::{joined, without};
use memleak_process::maps::MapsEntry;

/// Maximum number of pages that are searched for blocks with their own mappings: 16 GiB.
const MAX_PAGES: u64 = 1 << 22;
/// Default of the maximum number of blocks with their own mappings (`n_mmaps_max`), and maximum size of
/// pages.
const MAX_MAPPINGS: u64 = 65536;
const MAX_HUGE: u64 = 1 << 30;
/// Maximum number of such blocks: the kernel allows a process 65,530 mappings, unless it is told otherwise.
const MAX_MAPPED: usize = 1 << 20;

/// Reads the layout; `None` if there is no arena.
pub(in super::super) fn layout(memory: &dyn Memory, maps: &[MapsEntry]) -> Option<Layout> {
    let nothing = Heap::default();
    let (arenas, finder) = search(memory, maps, Collector::of_all(&nothing, &CACHE_SIZES));
    let main = arenas.first()?;
    let areas = areas(maps);
    let listed = finder.listed;
    let collector = finder.collector;
    let all = collector.all.unwrap_or_default();
    let spans = spans(&all.walked, collector.heads, collector.memories);
    let base = spans.first().map_or(0, |first| first.of.range.start);
    let parameters = Parameters::read(memory, main, base);
    let describe = |(arena, index)| describe(arena, index, &spans, &areas, parameters.top_unit);
    let named: Vec<_> = arenas.iter().zip(0..).map(describe).collect();
    let sum = parameters.mapped;
    let mapped = find_mapped(memory, &areas, &spans, sum);
    let found: u64 = mapped.iter().map(|mapped| mapped.end - mapped.start).sum();
    let bytes = |is: &dyn Fn(&&Span) -> bool| -> u64 {
        let ranges = spans.iter().filter(is).map(|span| &span.of.range);
        ranges.map(|range| range.end - range.start).sum()
    };
    // Mappings of the main arena that nothing leads to.
    let of_main = main.system_memory(memory).unwrap_or(0);
    let missing = of_main.saturating_sub(bytes(&|span| span.of.arena == 0));
    let unknown = missing + bytes(&|span| span.part == Part::Unknown);
    Some(Layout {
        allocator: Allocator::Glibc,
        division: Division::Chunks,
        arenas: named,
        unknown: unknown + sum.map_or(0, |sum| sum.saturating_sub(found)),
        refused: 0,
        pieces: Box::new(Chunked {
            spans,
            used: collector.unlisted,
            free: all.free,
            listed,
            mapped,
        }),
    })
}

/// Consecutive memory of an arena.
#[derive(Debug)]
struct Span {
    of: OfArena,
    part: Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Chunks, of which the last is the top, if that is set.
    Chunks {
        top: Option<u64>,
    },
    Own,
    Unknown,
}

/// Divides the memory of all arenas, ascending within each.
fn spans(walked: &[Walked], heads: Vec<OfArena>, memories: Vec<OfArena>) -> Vec<Span> {
    let own = |of| Span { of, part: Part::Own };
    let mut spans: Vec<Span> = heads.into_iter().map(own).collect();
    for Walked {
        chunks,
        top,
        marks_end,
    } in walked
    {
        spans.push(Span {
            of: chunks.clone(),
            part: Part::Chunks { top: *top },
        });
        let marks = chunks.range.end..*marks_end;
        spans.push(own(OfArena {
            arena: chunks.arena,
            range: marks,
        }));
    }
    spans.retain(|span| !span.of.range.is_empty());
    // If two arenas seem to have the same memory, it is that of the one that was met first.
    spans.sort_by_key(|span| span.of.range.start);
    spans.dedup_by(|next, last| next.of.range.start < last.of.range.end);
    let known: Vec<_> = spans.iter().map(|span| avmas(&span.of.range)).collect();
    let mut unknown = Vec::new();
    let mut memories = memories;
    memories.sort_by_key(|memory| memory.range.start);
    let mut behind = 0;
    for OfArena { arena, range } in memories {
        let rest = range.start.max(behind)..range.end;
        behind = behind.max(range.end);
        let left = without([avmas(&rest)], known.iter().cloned());
        unknown.extend(left.map(|range| Span {
            of: OfArena {
                arena,
                range: range.start.get()..range.end.get(),
            },
            part: Part::Unknown,
        }));
    }
    spans.extend(unknown);
    spans.sort_by_key(|span| (span.of.arena, span.of.range.start));
    spans
}

fn avmas(range: &Range<u64>) -> Range<Avma> {
    Avma::new(range.start)..Avma::new(range.end)
}

fn describe(arena: &Arena, index: usize, spans: &[Span], areas: &[Area], top_unit: u64) -> layout::Arena {
    let own = spans.iter().filter(|span| span.of.arena == index);
    let ranges = joined(own.clone().map(|span| avmas(&span.of.range)).collect());
    let end_of_heap = areas.iter().find(|area| area.is_brk).map(|area| area.range.end);
    let has_top = |span: &&Span| matches!(span.part, Part::Chunks { top: Some(_) });
    let end = own.clone().find(has_top).map(|span| span.of.range.end);
    let end = end.and_then(|end| end.checked_next_multiple_of(PAGE));
    layout::Arena {
        // As malloc_info(3) numbers them.
        name: match (arena.is_main, index) {
            (true, 0) => "main arena".to_owned(),
            (true, _) => format!("main arena {index}"),
            (false, _) => format!("arena {index}"),
        },
        ranges: ranges
            .iter()
            .map(|range| range.start.get()..range.end.get())
            .collect(),
        gives_top: (arena.is_main && index == 0 && end.is_some() && end == end_of_heap).then_some(top_unit),
    }
}

/// The allocator's parameters (`struct malloc_par`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parameters {
    /// Bytes of all mappings of blocks (`mmapped_mem`), if they are known.
    mapped: Option<u64>,
    /// Bytes of which the top is given back in whole multiples: a page, or a huge page, if the allocator asks
    /// for such (`thp_pagesize`, since 2.35, by `glibc.malloc.hugetlb=1`).
    top_unit: u64,
}

impl Parameters {
    /// Words up to the address of the first chunk in the heap segment (`sbrk_base`), the last one: the size
    /// of huge pages for the top, two numbers of other huge pages and of mappings, the maximum number of
    /// mappings in half a word, a flag, and the bytes of mappings, now and at most.
    const WORDS: usize = 8;

    /// Reads the parameters of the arena whose first chunk in the heap segment is `base`.
    fn read(memory: &dyn Memory, main: &Arena, base: u64) -> Self {
        let words = main.parameters(memory);
        let found = words
            .windows(Self::WORDS)
            .find_map(|words| Self::parse(words, base));
        found.unwrap_or(Self {
            mapped: None,
            top_unit: PAGE,
        })
    }

    fn parse(words: &[u64], base: u64) -> Option<Self> {
        let &[huge, _, _, limit, _, now, most, first] = words else {
            return None;
        };
        let are_pages = now.is_multiple_of(PAGE) && most.is_multiple_of(PAGE);
        if first != base || now > most || !are_pages {
            return None;
        }
        // Before 2.35, the limit is in the other half, and the size is another parameter.
        let has_huge = limit & 0xffff_ffff == MAX_MAPPINGS && huge.is_power_of_two() && huge <= MAX_HUGE;
        Some(Self {
            mapped: Some(now),
            top_unit: if has_huge { huge.max(PAGE) } else { PAGE },
        })
    }
}

/// Finds chunks with mappings of their own, ascending: no more than `sum` bytes of them, if that is known.
fn find_mapped(memory: &dyn Memory, areas: &[Area], spans: &[Span], sum: Option<u64>) -> Vec<Mapped> {
    let areas = areas.iter().filter(|area| !area.is_brk);
    let taken = joined(spans.iter().map(|span| avmas(&span.of.range)).collect());
    let free: Vec<_> = without(areas.map(|area| avmas(&area.range)), taken).collect();
    let mut found: Vec<Mapped> = Vec::new();
    for area in &free {
        found.extend(mapped(memory, &(area.start.get()..area.end.get())).take(MAX_MAPPED - found.len()));
    }
    let bytes = |found: &[Mapped]| found.iter().map(|mapped| mapped.end - mapped.start).sum::<u64>();
    let missing = sum.unwrap_or(0).saturating_sub(bytes(&found));
    if missing == 0 {
        return found;
    }
    let known: Vec<_> = found
        .iter()
        .map(|mapped| Avma::new(mapped.start)..Avma::new(mapped.end))
        .collect();
    let rest: Vec<_> = without(free, known).collect();
    let more = search_pages(memory, &rest);
    // Pages of the program can look like such chunks: then nothing tells which ones are.
    if bytes(&more) <= missing {
        found.extend(more);
        found.sort_unstable_by_key(|mapped| mapped.start);
    }
    found
}

/// Finds chunks that begin at any page.
fn search_pages(memory: &dyn Memory, areas: &[Range<Avma>]) -> Vec<Mapped> {
    let mut left = MAX_PAGES;
    let mut heads = Vec::new();
    for area in areas {
        let pages = (area.end.offset_from(area.start) / PAGE).min(left);
        left -= pages;
        heads.extend((0..pages).map(|page| {
            let at = area.start.wrapping_add(page * PAGE);
            at..at.wrapping_add(HEADER)
        }));
    }
    let mut found: Vec<Mapped> = Vec::new();
    memory.visit(&heads, &mut |at, words| {
        let at = at.get();
        let is_inside = found.last().is_some_and(|last| at < last.end);
        let &[before, size] = words else {
            return;
        };
        if is_inside || found.len() == MAX_MAPPED {
            return;
        }
        let mapped = Mapped::read(at, [before, size]).filter(|mapped| mapped.start == at);
        let area = areas.partition_point(|area| area.end.get() <= at);
        let is_mapped = |mapped: &Mapped| areas.get(area).is_some_and(|area| mapped.end <= area.end.get());
        found.extend(mapped.filter(is_mapped));
    });
    found
}

/// All chunks.
struct Chunked {
    spans: Vec<Span>,
    /// Chunks that look used, and are in no list.
    used: Granules,
    free: Granules,
    listed: Listed,
    mapped: Vec<Mapped>,
}

impl Pieces for Chunked {
    fn visit(&self, see: &mut dyn FnMut(&Piece)) {
        for Span { of, part } in &self.spans {
            let mut see = |range: Range<u64>, usage| {
                see(&Piece {
                    range,
                    usage,
                    arena: Some(of.arena),
                    slab: None,
                });
            };
            match part {
                Part::Chunks { top } => self.visit_chunks(&of.range, *top, &mut see),
                Part::Own => see(of.range.clone(), Usage::Own),
                Part::Unknown => see(of.range.clone(), Usage::Unknown),
            }
        }
        for mapped in &self.mapped {
            see(&Piece {
                range: mapped.start..mapped.end,
                usage: Usage::Block {
                    address: mapped.start + HEADER,
                },
                arena: None,
                slab: None,
            });
        }
    }
}

impl Chunked {
    fn visit_chunks(&self, range: &Range<u64>, top: Option<u64>, see: &mut dyn FnMut(Range<u64>, Usage)) {
        let sets = [&self.listed.unjoined, &self.listed.cached, &self.free, &self.used];
        let end = top.unwrap_or(range.end);
        // The last chunk, whose end is not known yet.
        let mut last: Option<(u64, usize)> = None;
        let mut end_last = |last: Option<(u64, usize)>, end: u64| {
            if let Some((start, set)) = last {
                see(start..end, self.usage(start..end, set));
            }
        };
        Granules::visit_all(&sets, range.start..end, &mut |at, set| {
            end_last(last.replace((at, set)), at);
        });
        end_last(last, end);
        if let Some(top) = top {
            see(top..range.end, Usage::Top);
        }
    }

    /// Usage of a chunk by the set that it is in.
    fn usage(&self, chunk: Range<u64>, set: usize) -> Usage {
        let is_cache = || {
            let size = chunk.end - chunk.start;
            CACHE_SIZES.contains(&size) && self.listed.caches.binary_search(&chunk.start).is_ok()
        };
        match set {
            0 => Usage::Unjoined,
            1 => Usage::Cached,
            2 => Usage::Free,
            _ if is_cache() => Usage::Own,
            _ => Usage::Block {
                address: chunk.start + HEADER,
            },
        }
    }
}
