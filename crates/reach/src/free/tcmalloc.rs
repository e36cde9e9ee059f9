//! Unused memory of gperftools' tcmalloc 2.8 to 2.18 (read in 2.10, 2.16 and 2.18.1), in 64-bit programs.
//!
//! tcmalloc's memory consists of spans: large blocks, spans of blocks of one size, and free pages.
//! [`statics`] finds the table of sizes and the central lists in the data of an object, [`map`] the map from
//! pages to records of spans, [`spans`] reads the records, [`lists`] the free blocks of each span, and
//! [`caches`] those that threads keep, which look used.
//!
//! Nothing is found by symbols, which libraries rarely have. Instead, each structure has to agree with what
//! leads to it, in both directions. Other versions, and other sizes of tables, do not: all of their memory
//! stays a root. In programs with the debug variant, blocks have headers and are not freed at once: nothing
//! is found, either.

mod caches;
mod in_use;
mod lists;
mod map;
mod pieces;
mod spans;
mod statics;

use std::ops::Range;

use unwind_tables::addr::Avma;

use self::caches::{Round, Threads};
pub(super) use self::in_use::in_use;
use self::lists::Free;
use self::map::Map;
pub(super) use self::pieces::layouts;
use self::spans::{Kind, Span, Spans};
use self::statics::Statics;
use super::records::{self, data};
use super::{Allocator, Facts, Unused, agreement};
use crate::Memory;
use crate::heap::Heap;
use crate::ranges::{common, has, joined};
use memleak_process::maps::MapsEntry;

/// Bytes of the header of the debug variant's blocks, the index of a word in it that is the same in all, and
/// that word (`MallocBlock`, `src/debugallocation.cc`).
const HEADER: u64 = 32;
const MARK: usize = 2;
const MARKED: u64 = 0xdead_beef;
/// Maximum number of blocks that are looked at for such headers.
const SAMPLE: usize = 1 << 10;

/// Structures of one tcmalloc.
struct Found {
    statics: Statics,
    map: Map,
    threads: Threads,
    spans: Spans,
    free: Free,
    /// Caches before the lists of free blocks were read, and after.
    rounds: [Round; 2],
}

/// Reads the structures of all tcmallocs of a process.
fn search(memory: &dyn Memory, maps: &[MapsEntry]) -> Vec<Found> {
    let own = maps
        .iter()
        .filter(|entry| entry.readable && entry.writable && !entry.shared);
    let writable = joined(own.map(|entry| entry.range.clone()).collect());
    let is_writable = |address: u64| has(&writable, Avma::new(address));
    let found = data(maps).into_iter().filter_map(|data| {
        let statics = statics::find(memory, &data, &is_writable)?;
        Found::read(memory, &data, statics)
    });
    found.collect()
}

/// Finds the unused memory; nothing and no allocator if there is no tcmalloc.
pub(super) fn find(memory: &dyn Memory, maps: &[MapsEntry], heap: &Heap) -> Unused {
    let mut unused = Unused::default();
    for found in search(memory, maps) {
        unused.join(found.find(maps, heap));
    }
    unused
}

impl Found {
    fn read(memory: &dyn Memory, data: &Range<u64>, statics: Statics) -> Option<Self> {
        let map = Map::find(memory, data, &statics)?;
        let threads = caches::find(memory, &statics);
        let mut spans = Spans::read(memory, map, &statics.sizes);
        let before = threads.read(memory, &statics, &spans);
        let free = lists::read(memory, &mut spans);
        let after = threads.read(memory, &statics, &spans);
        let found = Self {
            statics,
            map,
            threads,
            spans,
            free,
            rounds: [before, after],
        };
        (!found.is_debugged(memory)).then_some(found)
    }

    /// Returns true if the blocks begin with headers of the debug variant, which the program does not have.
    fn is_debugged(&self, memory: &dyn Memory) -> bool {
        let mut places = Vec::new();
        let large = |span: &&Span| {
            span.block_at(span.start)
                .is_some_and(|block| block.end - block.start >= HEADER)
        };
        for span in self.spans.iter().filter(large) {
            let used = span.blocks().filter(|block| self.is_used(block.start));
            places.extend(used.map(|block| block.start).take(SAMPLE - places.len()));
        }
        let (mut read, mut marked) = (0, 0);
        records::visit(memory, &places, &mut |_, words: &[u64; MARK + 1]| {
            read += 1;
            marked += u64::from(words.get(MARK) == Some(&MARKED));
        });
        marked * 2 > read
    }

    /// Returns true if a block was in no list when all of these were read.
    fn is_used(&self, address: u64) -> bool {
        let cached = self.rounds.iter().map(|round| &round.cached);
        let mut lists = cached.chain([&self.free]);
        lists.all(|list| list.binary_search(&address).is_err())
    }

    fn find(&self, maps: &[MapsEntry], heap: &Heap) -> Unused {
        let unknown = self.rounds.iter().map(|round| round.unknown.len() as u64);
        let mut facts = Facts {
            allocator: Some(Allocator::Tcmalloc),
            arenas: 1,
            unknown_caches: unknown.max().unwrap_or(0) + u64::from(!self.threads.are_found()),
            ..Facts::default()
        };
        self.spans.add_ends(&mut facts.ends);
        let Some(usable) = agreement::usable(heap, &mut facts, |at| self.block_from(at)) else {
            return Unused {
                facts,
                ..Unused::default()
            };
        };
        let ranges = self.unused(&mut facts);
        let mut unused = Unused::new(ranges, usable, facts);
        unused.ranges = common(&unused.ranges, &super::seen::anonymous(maps));
        let own = self.own().map(|own| Avma::new(own.start)..Avma::new(own.end));
        unused.ranges = joined(own.chain(unused.ranges).collect());
        unused.cut_out(heap);
        unused
    }

    /// Memory of the allocator's own records.
    fn own(&self) -> impl Iterator<Item = Range<u64>> {
        let statics = [self.statics.central_memory(), self.map.memory()];
        let records = self.spans.records().into_iter();
        statics.into_iter().chain(self.threads.memory()).chain(records)
    }

    /// Memory of the block that begins at an address.
    fn block_from(&self, address: u64) -> agreement::Found {
        match self.spans.of(address) {
            Some(span) => span
                .block_at(address)
                .filter(|block| block.start == address)
                .into(),
            None => agreement::Found::Elsewhere,
        }
    }

    /// Memory that holds no block.
    fn unused(&self, facts: &mut Facts) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        for span in self.spans.iter() {
            facts.chunks += span.count().max(1);
            match span.kind {
                Kind::Large => {}
                Kind::Free | Kind::Returned => ranges.push(span.start..span.end),
                Kind::Blocks { bytes, .. } => ranges.push(span.start + span.count() * bytes..span.end),
            }
        }
        let [before, after] = &self.rounds;
        let cached: Vec<u64> = before.common(after).collect();
        facts.cached += cached.len() as u64;
        let blocks = self.free.iter().copied().chain(cached);
        ranges.extend(blocks.filter_map(|at| self.spans.of(at)?.block_at(at)));
        ranges
    }
}
