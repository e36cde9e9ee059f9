//! Unused memory of glibc's malloc, 2.26 to 2.43, in 64-bit programs.
//!
//! [`arenas`] finds the arenas and their memory, [`walk`] goes from chunk to chunk through it, [`collector`]
//! compares the chunks with the listed blocks, [`lists`] finds free chunks that look used. A walk begins at
//! the start of an arena. Where that is not known, and behind memory that the program took by `sbrk` itself,
//! it begins at the next listed block or binned chunk. Memory before that stays a root.

mod arenas;
mod collector;
mod in_use;
mod layout;
mod lists;
mod mapped;
mod walk;

use std::collections::BTreeSet;
use std::ops::Range;

use unwind_tables::addr::Avma;

use self::arenas::{Arena, word};
use self::collector::Collector;
pub(super) use self::in_use::in_use;
pub(super) use self::layout::layout;
use self::lists::{CACHE_SIZES, Lists};
use self::mapped::Mapped;
use self::walk::{HEADER, PAGE, PREV_INUSE, is_header};
use super::granules::Granules;
use super::{Allocator, End, Unused};
use crate::Memory;
use crate::heap::{Block, Heap};
use crate::ranges::{joined, without};
use memleak_process::maps::{MapsEntry, MapsName};

/// Maximum number of walks in one mapping or heap, and of those among them that end early.
const MAX_WALKS: usize = 1 << 12;
const MAX_BROKEN: usize = 64;
/// Maximum shift of the 16 bytes that are skipped: at most 16 MiB at once.
const MAX_SHIFT: usize = 20;
/// Words at the start of the main arena's memory that are searched for its first thread's cache: in a static
/// program, data of the thread itself comes before it.
const SEARCHED_WORDS: usize = 1 << 13;
/// Minimum size in bytes of blocks that may have their own mapping, and maximum number of such blocks that
/// are checked.
const MIN_MAPPED: u64 = 64 << 10;
const MAX_MAPPED: usize = 1 << 16;

/// Finds the unused memory.
pub(super) fn find(memory: &dyn Memory, maps: &[MapsEntry], heap: &Heap) -> Unused {
    let (arenas, mut finder) = search(memory, maps, Collector::new(heap, &CACHE_SIZES));
    finder.add_mapped();
    let Collector {
        ranges,
        mut usable,
        mut facts,
        ..
    } = finder.collector;
    facts.allocator = (!arenas.is_empty()).then_some(Allocator::Glibc);
    facts.arenas = arenas.len();
    usable.sort_unstable();
    usable.dedup_by_key(|(number, _)| *number);
    let mut unused = Unused::new(ranges, usable, facts);
    unused.cut_out(heap);
    unused
}

/// Goes through the memory of all arenas.
fn search<'a>(
    memory: &'a dyn Memory,
    maps: &[MapsEntry],
    collector: Collector<'a>,
) -> (Vec<Arena>, Finder<'a>) {
    let arenas = arenas::find(memory, maps);
    let mut finder = Finder {
        memory,
        heap: collector.heap(),
        collector,
        listed: Listed::default(),
    };
    let areas = areas(maps);
    for (arena, index) in arenas.iter().zip(0..) {
        finder.collector.arena = index;
        if arena.is_main {
            let is_first = Some(arena) == arenas.first();
            finder.walk_main(arena, &areas, is_first);
            if is_first {
                finder.walk_unlinked(arena, &areas);
            }
        } else {
            finder.walk_other(arena);
        }
        finder.collector.ranges.push(arena.range());
    }
    finder.add_lists(&arenas);
    (arenas, finder)
}

/// Adjacent mappings that can be memory of the main arena.
struct Area {
    range: Range<u64>,
    is_brk: bool,
}

fn areas(maps: &[MapsEntry]) -> Vec<Area> {
    let mut areas: Vec<Area> = Vec::new();
    for entry in maps {
        let is_brk = match &entry.name {
            MapsName::Special(name) if name == "[heap]" => true,
            MapsName::Special(name) if name.starts_with("[anon") => false,
            MapsName::Anonymous => false,
            MapsName::Special(_) | MapsName::File { .. } => continue,
        };
        if !entry.readable || !entry.writable || entry.shared {
            continue;
        }
        let range = entry.range.start.get()..entry.range.end.get();
        match areas.last_mut() {
            Some(last) if last.range.end == range.start && last.is_brk == is_brk => {
                last.range.end = range.end
            }
            _ => areas.push(Area { range, is_brk }),
        }
    }
    areas
}

struct Finder<'a> {
    memory: &'a dyn Memory,
    heap: &'a Heap,
    collector: Collector<'a>,
    listed: Listed,
}

/// Chunks that look used and are free or the allocator's own.
#[derive(Default)]
struct Listed {
    cached: Granules,
    unjoined: Granules,
    /// Threads' caches, ascending.
    caches: Vec<u64>,
}

/// Memory of an arena.
struct Memories<'a> {
    arena: &'a Arena,
    range: Range<u64>,
    /// Addresses that are known to be chunks.
    known: &'a BTreeSet<u64>,
}

impl Finder<'_> {
    /// Walks through all memory of a main arena. The heap segment (`brk`) belongs to the first one.
    fn walk_main(&mut self, arena: &Arena, areas: &[Area], is_first: bool) {
        let mut known = arena.binned(self.memory);
        known.extend(arena.top(self.memory));
        let parameters = arena.parameters(self.memory);
        for Area { range, is_brk } in areas {
            if is_first && *is_brk || known.range(range.clone()).next().is_some() {
                let memories = Memories {
                    arena,
                    range: range.clone(),
                    known: &known,
                };
                let begins = self.begins(&parameters, range);
                // Not for memory that the arena took by `mmap`: another mapping can be adjacent to that.
                if *is_brk {
                    let begin = begins.first().map_or(range.start, |begin| *begin);
                    let memory = self.collector.of_arena(begin..range.end);
                    self.collector.memories.push(memory);
                }
                self.walk_from_each(&memories, &begins);
            }
        }
    }

    /// Walks through parts of mappings that no bin leads to, if all chunks are wanted and the main arena has
    /// more memory than was found: from their starts, or behind the blocks with their own mappings there.
    fn walk_unlinked(&mut self, arena: &Arena, areas: &[Area]) {
        let Some(all) = &self.collector.all else {
            return;
        };
        let found = all.walked.iter().map(|walked| &walked.chunks.range);
        let found: u64 = found.map(|range| range.end - range.start).sum();
        if arena
            .system_memory(self.memory)
            .is_none_or(|bytes| bytes <= found)
        {
            return;
        }
        let avmas = |start: u64, end: u64| Avma::new(start)..Avma::new(end);
        let walked = all.walked.iter();
        let walked = walked.map(|walked| avmas(walked.chunks.range.start, walked.marks_end));
        let areas = areas.iter().filter(|area| !area.is_brk);
        let areas = areas.map(|area| avmas(area.range.start, area.range.end));
        let new: Vec<_> = without(areas, joined(walked.collect())).collect();
        for range in new.into_iter().take(MAX_WALKS) {
            let range = range.start.get()..range.end.get();
            let begin = in_use::mapped(self.memory, &range)
                .last()
                .map_or(range.start, |last| last.end);
            let header = word(self.memory, begin.saturating_add(8));
            if header.is_some_and(|word| is_header(word, true) && word & PREV_INUSE != 0) {
                let memories = Memories {
                    arena,
                    range,
                    known: &BTreeSet::new(),
                };
                self.walk_from_each(&memories, &[begin]);
            }
        }
    }

    /// Walks through all heaps of another arena.
    fn walk_other(&mut self, arena: &Arena) {
        let mut known = arena.binned(self.memory);
        known.extend(arena.top(self.memory));
        for heap in arena.heaps(self.memory) {
            let (start, end) = heap.range;
            let memories = Memories {
                arena,
                range: heap.first_chunk..end,
                known: &known,
            };
            let memory = self.collector.of_arena(heap.first_chunk..end);
            self.collector.memories.push(memory);
            let head = self.collector.of_arena(start..heap.first_chunk);
            self.collector.heads.push(head);
            self.walk_from_each(&memories, &[heap.first_chunk]);
            self.collector.ranges.push(start..heap.first_chunk);
            self.collector.ranges.push(end..heap.touched);
        }
    }

    /// Finds addresses where the main arena's memory can begin, ascending.
    fn begins(&self, parameters: &[u64], range: &Range<u64>) -> Vec<u64> {
        let start = range.start.saturating_add(15) & !15;
        let bytes = range.end.saturating_sub(start);
        let count = usize::try_from(bytes / 8).map_or(SEARCHED_WORDS, |count| count.min(SEARCHED_WORDS));
        let mut words = vec![0; count];
        if !self.memory.read(Avma::new(start), &mut words) {
            return Vec::new();
        }
        let sizes = words.chunks_exact(2).map(|header| header[1]);
        let headers = (start..).step_by(16).zip(sizes);
        let is_begin = |at: u64, word: u64| {
            is_header(word, true) && word & PREV_INUSE != 0 && (at == start || parameters.contains(&at))
        };
        let is_cache = |word: u64| CACHE_SIZES.contains(&(word ^ PREV_INUSE));
        let cache = headers.clone().find(|(_, word)| is_cache(*word));
        let begins = headers.filter(|&(at, word)| is_begin(at, word) || cache == Some((at, word)));
        begins.map(|(at, _)| at).collect()
    }

    /// Walks from the addresses where the memory can begin, and again behind the end of each walk.
    fn walk_from_each(&mut self, memories: &Memories<'_>, begins: &[u64]) {
        let mut behind = memories.range.start;
        for &begin in begins {
            if begin >= behind {
                behind = self.walk_from(memories, begin, behind).1;
            }
        }
        let mut broken = 0;
        for _ in 0..MAX_WALKS {
            let Some(next) = self.next_known(memories, behind) else {
                return;
            };
            // The more walks fail, the larger are the parts that are skipped and stay roots.
            let skipped = HEADER << broken.min(MAX_SHIFT);
            let ended = self.walk_from(memories, next, next.saturating_add(skipped));
            behind = ended.1;
            broken += usize::from(!matches!(ended.0, End::Top | End::Fence));
            if broken == MAX_BROKEN {
                return;
            }
        }
    }

    /// Walks from `first`. Returns the reason for the end, and where to go on: at the end, or at `behind` if
    /// the walk is distrusted.
    fn walk_from(&mut self, memories: &Memories<'_>, first: u64, behind: u64) -> (End, u64) {
        let stretch = walk::Stretch {
            first,
            end: memories.range.end,
            is_main: memories.arena.is_main,
            top_at: memories.arena.top_at(),
        };
        let is_first = !memories.arena.is_main && first == memories.range.start;
        let is_certain = is_first || memories.known.contains(&first);
        let mut collected = self.collector.begin(first, is_certain);
        let (end, at) = walk::walk(self.memory, &stretch, &mut |chunk| collected.see(chunk));
        let end = collected.end(end, at);
        let is_trusted = end != End::Distrusted;
        (end, if is_trusted { at.max(behind) } else { behind })
    }

    /// Finds the next chunk at or beyond `behind`: one that is known to be a chunk, or one with a listed
    /// block and a valid header. If `behind` is the start of a page, a valid header there is enough: memory
    /// that the arena takes by `mmap` is often adjacent to what it had.
    fn next_known(&self, memories: &Memories<'_>, behind: u64) -> Option<u64> {
        let range = behind..memories.range.end.max(behind);
        let known = memories.known.range(range.clone()).next().copied();
        let blocks = self.heap.blocks();
        let first = blocks.partition_point(|block| block.address.get() < behind.saturating_add(HEADER));
        let listed = blocks
            .get(first..)?
            .iter()
            .map(|block| block.address.get() - HEADER);
        let header = |at: u64| {
            let word = word(self.memory, at.checked_add(8)?);
            word.filter(|word| at.is_multiple_of(16) && is_header(*word, memories.arena.is_main))
        };
        let begins =
            |at: &u64| at.is_multiple_of(PAGE) && header(*at).is_some_and(|word| word & PREV_INUSE != 0);
        if range.contains(&behind) && begins(&behind) {
            return Some(behind);
        }
        let listed = listed
            .take(MAX_BROKEN)
            .take_while(|at| range.contains(at))
            .find(|at| header(*at).is_some());
        known.into_iter().chain(listed).min()
    }

    /// Adds the chunks in the lists of caches and arenas.
    fn add_lists(&mut self, arenas: &[Arena]) {
        let collector = &mut self.collector;
        let mut lists = Lists::new(self.memory, &mut collector.unlisted);
        lists.goes_on = self.heap.blocks().is_empty();
        lists.has_starts = collector.all.is_some();
        for cache in &collector.caches {
            if let Some(range) = lists.add_cache(*cache) {
                collector.ranges.push(range);
                self.listed.caches.push(cache.at);
            }
        }
        self.listed.caches.sort_unstable();
        for arena in arenas {
            lists.add_arena(arena);
        }
        collector.facts.cached = lists.count;
        collector.keys = std::mem::take(&mut lists.keys);
        let ranges = &mut collector.ranges;
        lists
            .cached
            .runs(&mut |run| ranges.push(run.start + 8..run.end.saturating_add(8)));
        self.listed.cached = std::mem::take(&mut lists.starts);
        self.listed.unjoined = std::mem::take(&mut lists.unjoined);
    }

    /// Adds the usable memory of blocks that have their own mapping.
    fn add_mapped(&mut self) {
        let blocks = self.heap.blocks().iter().zip(0..);
        let large = blocks
            .filter(|(block, _)| block.size >= MIN_MAPPED)
            .take(MAX_MAPPED);
        for (block, number) in large {
            let end = mapped_end(self.memory, block);
            if let Some(end) = end.filter(|end| end.saturating_sub(block.range().end.get()) >= 8) {
                self.collector.usable.push((number, Avma::new(end)));
            }
        }
    }
}

/// Returns the end of a block's usable memory, if the block has its own mapping.
fn mapped_end(memory: &dyn Memory, block: &Block) -> Option<u64> {
    let chunk = block.address.get().checked_sub(HEADER)?;
    let mut header = [0; 2];
    if !chunk.is_multiple_of(16) || !memory.read(Avma::new(chunk), &mut header) {
        return None;
    }
    let end = Mapped::read(chunk, header)?.usable_end;
    (end - block.range().end.get().min(end) < 1 << 21).then_some(end)
}
