//! Comparison of the chunks that walks find with the listed blocks.

use std::collections::BTreeSet;
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::super::granules::Granules;
use super::super::{End, Facts, agreement};
use super::walk::{Chunk, HEADER, Kind};
use crate::heap::{Block, Heap};

#[derive(Debug)]
pub(super) struct Collector<'a> {
    heap: &'a Heap,
    pub ranges: Vec<Range<u64>>,
    pub usable: Vec<(u32, Avma)>,
    /// Chunks that look used and are of no listed block: of blocks from before the trace, of the allocator
    /// itself, or cached.
    pub unlisted: Granules,
    /// Unlisted chunks that are as large as a thread's cache.
    pub caches: Vec<Chunk>,
    /// Second words of chunks in caches, which mark them as free there.
    pub keys: BTreeSet<u64>,
    /// Memory of the arenas, ascending within each arena. `walked` has the parts of it that trusted walks
    /// went through.
    pub memories: Vec<OfArena>,
    pub walked: Vec<Range<Avma>>,
    /// Memory before the first chunk of a heap: its header, and the state of the arena.
    pub heads: Vec<OfArena>,
    /// Index of the arena whose memory is walked through.
    pub arena: usize,
    /// All chunks, if they are wanted, instead of `ranges`. There are no listed blocks then.
    pub all: Option<AllChunks>,
    pub facts: Facts,
    cache_sizes: &'a [u64],
}

/// Memory of an arena, which is given by its index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OfArena {
    pub arena: usize,
    pub range: Range<u64>,
}

/// Free chunks, and the walks that have met these and the unlisted ones.
#[derive(Debug, Default)]
pub(super) struct AllChunks {
    pub free: Granules,
    pub walked: Vec<Walked>,
}

/// Consecutive chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Walked {
    pub chunks: OfArena,
    /// The last chunk, if it is the top.
    pub top: Option<u64>,
    /// End of the marks behind the last chunk.
    pub marks_end: u64,
}

/// Lengths and facts from before a walk.
struct Mark {
    ranges: usize,
    usable: usize,
    caches: usize,
    facts: Facts,
}

/// One walk.
pub(super) struct Stretch<'c, 'a> {
    collector: &'c mut Collector<'a>,
    /// Number of the next block that was not compared with a chunk yet.
    next: usize,
    first: u64,
    /// True if there is known to be a chunk at `first`.
    is_certain: bool,
    before: Mark,
    /// Chunks that were noted as some of all.
    noted: Noted,
}

/// Consecutive chunks from the first one of a walk on.
#[derive(Debug)]
struct Noted {
    end: u64,
    top: Option<u64>,
    /// True if there was no room for further ones.
    is_cut: bool,
}

/// Maximum number of threads' caches. Further ones are ignored.
const MAX_CACHES: usize = 1 << 16;

impl<'a> Collector<'a> {
    /// Starts without chunks. `cache_sizes` are the sizes that a chunk with a thread's cache can have.
    pub(super) fn new(heap: &'a Heap, cache_sizes: &'a [u64]) -> Self {
        Self {
            heap,
            ranges: Vec::new(),
            usable: Vec::new(),
            unlisted: Granules::default(),
            caches: Vec::new(),
            keys: BTreeSet::new(),
            memories: Vec::new(),
            walked: Vec::new(),
            heads: Vec::new(),
            arena: 0,
            all: None,
            facts: Facts::default(),
            cache_sizes,
        }
    }

    /// Starts without chunks and without listed blocks, to note all chunks.
    pub(super) fn of_all(nothing: &'a Heap, cache_sizes: &'a [u64]) -> Self {
        Self {
            all: Some(AllChunks::default()),
            ..Self::new(nothing, cache_sizes)
        }
    }

    pub(super) fn heap(&self) -> &'a Heap {
        self.heap
    }

    /// Memory of the current arena.
    pub(super) fn of_arena(&self, range: Range<u64>) -> OfArena {
        OfArena {
            arena: self.arena,
            range,
        }
    }

    /// Begins a walk at the chunk `first`. `is_certain` is false if that only looks like a chunk.
    pub(super) fn begin<'c>(&'c mut self, first: u64, is_certain: bool) -> Stretch<'c, 'a> {
        let before = Mark {
            ranges: self.ranges.len(),
            usable: self.usable.len(),
            caches: self.caches.len(),
            facts: self.facts.clone(),
        };
        let blocks = self.heap.blocks();
        Stretch {
            next: blocks.partition_point(|block| block.address.get() < first.saturating_add(HEADER)),
            first,
            is_certain,
            before,
            noted: Noted {
                end: first,
                top: None,
                is_cut: false,
            },
            collector: self,
        }
    }
}

impl Stretch<'_, '_> {
    pub(super) fn see(&mut self, chunk: Chunk) {
        if self.collector.all.is_some() {
            self.note(chunk);
            return;
        }
        let contents = chunk.at.saturating_add(HEADER);
        // The first word of the next chunk's header belongs to this chunk.
        let end = chunk.at.saturating_add(chunk.size).saturating_add(8);
        let blocks = self.collector.heap.blocks().get(self.next..).unwrap_or_default();
        // An address in the next chunk's header belongs to no chunk, and counts here.
        let count = blocks.partition_point(|block| block.address.get() < end.saturating_add(8));
        let blocks = blocks.get(..count).unwrap_or_default();
        self.collector.facts.chunks += 1;
        match (chunk.kind, blocks) {
            (Kind::Used, []) => _ = self.unlisted(chunk),
            (Kind::Free, []) => self.collector.ranges.push(chunk.at + 8..end),
            (Kind::Top, []) => self.collector.ranges.push(chunk.at + 8..end - 8),
            (Kind::Used, blocks) => self.used(contents, end, blocks),
            // A block at the chunk's address was freed since it was listed; others were too, before this
            // memory was divided anew.
            (Kind::Free | Kind::Top, blocks) => {
                for block in blocks {
                    let facts = &mut self.collector.facts;
                    let is_same = block.address.get() == contents;
                    *(if is_same {
                        &mut facts.agreeing
                    } else {
                        &mut facts.disagreeing
                    }) += 1;
                }
            }
        }
        self.next += count;
    }

    /// Notes a chunk by its usage, as long as there is room.
    fn note(&mut self, chunk: Chunk) {
        self.collector.facts.chunks += 1;
        if self.noted.is_cut {
            return;
        }
        let has_room = match (chunk.kind, &mut self.collector.all) {
            (Kind::Used, _) => self.unlisted(chunk),
            (Kind::Free, all) => all.as_mut().is_some_and(|all| all.free.insert(chunk.at)),
            (Kind::Top, _) => {
                self.noted.top = Some(chunk.at);
                true
            }
        };
        match has_room {
            true => self.noted.end = chunk.at.saturating_add(chunk.size),
            false => self.noted.is_cut = true,
        }
    }

    /// Adds a chunk of no listed block. Returns false if there is no room.
    fn unlisted(&mut self, chunk: Chunk) -> bool {
        let has_room = self.collector.unlisted.insert(chunk.at);
        if self.collector.cache_sizes.contains(&chunk.size) && self.collector.caches.len() < MAX_CACHES {
            self.collector.caches.push(chunk);
        }
        has_room
    }

    /// Compares a used chunk with the blocks in it: one for all of it, or parts of it, if the program divides
    /// it by an allocator that is traced, too.
    fn used(&mut self, contents: u64, end: u64, blocks: &[Block]) {
        let facts = &mut self.collector.facts;
        for (block, number) in blocks.iter().zip(self.next..) {
            let block = block.range();
            if block.end.get() > end {
                facts.disagreeing += 1;
            } else if block.start.get() == contents {
                facts.agreeing += 1;
                let has_more = end - block.end.get() >= 8;
                if let (1, true, Ok(number)) = (blocks.len(), has_more, u32::try_from(number)) {
                    self.collector.usable.push((number, Avma::new(end)));
                }
            }
        }
    }

    /// Ends the walk at `at`. Returns the reason, which can be [`End::Distrusted`]: then its findings are
    /// dropped.
    pub(super) fn end(self, end: End, at: u64) -> End {
        let collector = self.collector;
        let agreeing = collector.facts.agreeing - self.before.facts.agreeing;
        let disagreeing = collector.facts.disagreeing - self.before.facts.disagreeing;
        // If no listed block could confirm it, a walk from a known chunk is valid up to the place where the
        // running program has changed memory.
        let is_certain = self.is_certain && collector.heap.blocks().is_empty();
        let is_confirmed = agreeing > 0 || is_certain || matches!(end, End::Top | End::Fence);
        let end = match is_confirmed && agreement::is_enough(agreeing, disagreeing) {
            true => end,
            false => End::Distrusted,
        };
        if end == End::Distrusted {
            collector.ranges.truncate(self.before.ranges);
            collector.usable.truncate(self.before.usable);
            collector.caches.truncate(self.before.caches);
            collector.unlisted.take_all(self.first..at);
            if let Some(all) = &mut collector.all {
                all.free.take_all(self.first..at);
            }
            collector.facts = self.before.facts;
            collector.facts.disagreeing += disagreeing;
        } else {
            collector.walked.push(Avma::new(self.first)..Avma::new(at));
            let has_marks = end == End::Fence && !self.noted.is_cut;
            let walked = Walked {
                chunks: collector.of_arena(self.first..self.noted.end),
                top: self.noted.top,
                marks_end: if has_marks { at } else { self.noted.end },
            };
            collector
                .all
                .iter_mut()
                .for_each(|all| all.walked.push(walked.clone()));
        }
        *collector.facts.ends.entry(end).or_default() += 1;
        end
    }
}
