//! Unused memory of glibc's malloc, 2.26 to 2.43, of programs of 64 bits.
//!
//! [`arenas`] finds the arenas and their memory, [`walk`] goes from chunk to chunk through it, [`collector`] holds the chunks against
//! the listed blocks, [`lists`] finds those that are free and look used. A walk begins where an arena begins; where that is not known,
//! and behind memory that the program took by `sbrk` itself, at the next listed block or binned chunk. What is before it stays roots.

mod arenas;
mod collector;
mod in_use;
mod lists;
mod walk;

use std::collections::BTreeSet;
use std::ops::Range;

use unwind_tables::addr::Avma;

use self::arenas::{Arena, word};
use self::collector::Collector;
pub(super) use self::in_use::in_use;
use self::lists::{CACHE_SIZES, Lists};
use self::walk::{HEADER, IS_MMAPPED, PREV_INUSE, is_header, size};
use super::{Allocator, End, Unused};
use crate::process::maps::{MapsEntry, MapsName};
use crate::reach::Memory;
use crate::reach::heap::{Block, Heap};

/// Walks in one mapping or heap, and those of them that may end too early.
const MAX_WALKS: usize = 1 << 12;
const MAX_BROKEN: usize = 64;
/// At most 16 MiB are skipped at once.
const MAX_SHIFT: usize = 20;
/// Words at the start of the main arena's memory among which its first thread's cache is searched: of a static program, data of the
/// thread itself are before it.
const SEARCHED_WORDS: usize = 1 << 13;
/// Blocks that can be mappings of their own are at least so large, and so many are looked at.
const MIN_MAPPED: u64 = 64 << 10;
const MAX_MAPPED: usize = 1 << 16;

/// Finds the unused memory.
pub(super) fn find(memory: &dyn Memory, maps: &[MapsEntry], heap: &Heap) -> Unused {
    let (arenas, mut finder) = search(memory, maps, heap);
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
fn search<'a>(memory: &'a dyn Memory, maps: &[MapsEntry], heap: &'a Heap) -> (Vec<Arena>, Finder<'a>) {
    let arenas = arenas::find(memory, maps);
    let mut finder = Finder {
        memory,
        heap,
        collector: Collector::new(heap, &CACHE_SIZES),
    };
    let areas = areas(maps);
    for arena in &arenas {
        if arena.is_main {
            let is_first = Some(arena) == arenas.first();
            finder.walk_main(arena, &areas, is_first);
        } else {
            finder.walk_other(arena);
        }
        finder.collector.ranges.push(arena.range());
    }
    finder.add_lists(&arenas);
    (arenas, finder)
}

/// Memory that the main arena can have, of mappings that are next to each other.
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
}

/// Memory of an arena.
struct Memories<'a> {
    arena: &'a Arena,
    range: Range<u64>,
    /// Chunks for sure.
    known: &'a BTreeSet<u64>,
}

impl Finder<'_> {
    /// Walks through all memory of a main arena. That of the heap segment (`brk`) is the first one's.
    fn walk_main(&mut self, arena: &Arena, areas: &[Area], is_first: bool) {
        let mut known = arena.binned(self.memory);
        known.extend(arena.top(self.memory));
        for Area { range, is_brk } in areas {
            if is_first && *is_brk || known.range(range.clone()).next().is_some() {
                let memories = Memories {
                    arena,
                    range: range.clone(),
                    known: &known,
                };
                let begins = self.begins(range);
                // Another mapping can be next to memory that the arena took by `mmap`.
                if *is_brk {
                    let begin = begins.first().map_or(range.start, |begin| *begin);
                    let memory = Avma::new(begin)..Avma::new(range.end);
                    self.collector.memories.push(memory);
                }
                self.walk_from_each(&memories, &begins);
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
            let memory = Avma::new(heap.first_chunk)..Avma::new(end);
            self.collector.memories.push(memory);
            self.walk_from_each(&memories, &[heap.first_chunk]);
            self.collector.ranges.push(start..heap.first_chunk);
            self.collector.ranges.push(end..heap.touched);
        }
    }

    /// Finds where the main arena's memory can begin.
    fn begins(&self, range: &Range<u64>) -> Vec<u64> {
        let start = range.start.saturating_add(15) & !15;
        let bytes = range.end.saturating_sub(start);
        let count = usize::try_from(bytes / 8).map_or(SEARCHED_WORDS, |count| count.min(SEARCHED_WORDS));
        let mut words = vec![0; count];
        if !self.memory.read(Avma::new(start), &mut words) {
            return Vec::new();
        }
        let sizes = words.chunks_exact(2).map(|header| header[1]);
        let mut headers = (start..).step_by(16).zip(sizes);
        let first = headers.clone().next();
        let first = first.filter(|(_, word)| is_header(*word, true) && word & PREV_INUSE != 0);
        let cache = headers.find(|(_, word)| CACHE_SIZES.contains(&(word ^ PREV_INUSE)));
        first.into_iter().chain(cache).map(|(at, _)| at).collect()
    }

    /// Walks from where the memory can begin, and again from behind where each walk ended.
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
            // Where walks fail again and again, larger and larger parts are left roots.
            let skipped = HEADER << broken.min(MAX_SHIFT);
            let ended = self.walk_from(memories, next, next.saturating_add(skipped));
            behind = ended.1;
            broken += usize::from(!matches!(ended.0, End::Top | End::Fence));
            if broken == MAX_BROKEN {
                return;
            }
        }
    }

    /// Returns why the walk ended, and where to go on: `behind` if it is not to be trusted.
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

    /// The next chunk at `behind` or beyond that is one for sure, or that has a listed block and a header that makes sense. At a page's
    /// start, what has such a header can be one, too: memory that the arena takes by `mmap` is often next to what it had.
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
            |at: &u64| at.is_multiple_of(4096) && header(*at).is_some_and(|word| word & PREV_INUSE != 0);
        if range.contains(&behind) && begins(&behind) {
            return Some(behind);
        }
        let listed = listed
            .take(MAX_BROKEN)
            .take_while(|at| range.contains(at))
            .find(|at| header(*at).is_some());
        known.into_iter().chain(listed).min()
    }

    /// Adds the chunks that caches and arenas have in their lists.
    fn add_lists(&mut self, arenas: &[Arena]) {
        let collector = &mut self.collector;
        let mut lists = Lists::new(self.memory, &mut collector.unlisted);
        lists.goes_on = self.heap.blocks().is_empty();
        let caches = collector
            .caches
            .iter()
            .filter_map(|cache| lists.add_cache(*cache));
        collector.ranges.extend(caches);
        for arena in arenas {
            lists.add_arena(arena);
        }
        collector.facts.cached = lists.count;
        collector.keys = std::mem::take(&mut lists.keys);
        let ranges = &mut collector.ranges;
        lists
            .cached
            .runs(&mut |run| ranges.push(run.start + 8..run.end.saturating_add(8)));
    }

    /// Adds what can be used of blocks that are mappings of their own.
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

/// The end of a block's mapping, if it has one of its own. Its chunk says how much is before it, too.
fn mapped_end(memory: &dyn Memory, block: &Block) -> Option<u64> {
    let chunk = block.address.get().checked_sub(HEADER)?;
    let mut header = [0; 2];
    if !chunk.is_multiple_of(16) || !memory.read(Avma::new(chunk), &mut header) {
        return None;
    }
    let [before, word] = header;
    let end = chunk.checked_add(size(word))?;
    let is_page = |address: u64| address.is_multiple_of(4096);
    let is_mapped = word & IS_MMAPPED != 0 && is_page(end) && is_page(chunk.checked_sub(before)?);
    (is_mapped && end - block.range().end.get().min(end) < 1 << 21).then_some(end)
}
