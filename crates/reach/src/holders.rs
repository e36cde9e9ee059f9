//! Holders of blocks, found by one more marking, which remembers for each block what led to it first.
//!
//! Roots are followed kind by kind, those with the best names first, and everything that one kind reaches
//! belongs to it: a block that a variable leads to is held by the variable, even if a stack, where a stale
//! pointer may be, leads there in fewer steps. Within a kind the search is breadth first, so that chains are
//! short.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Instant;

use leak_report::model::{Amount, Inside};
use unwind_tables::addr::Avma;

use super::Memory;
use super::bits::Bits;
use super::chains::{ChainId, Chains};
use super::dominators::Graph;
use super::heap::Heap;
use super::inside::Pointers;
use super::ranges::has;

/// Blocks, and ranges of roots, that are read at once.
const BATCH: usize = 1 << 14;
/// Maximum number of blocks of a process for which holders are searched. At 100 bytes a block, and 8 a
/// pointer, that is 2.6 GiB at worst.
pub const MAX_BLOCKS: usize = 1 << 24;
/// Maximum number of pointers. With more, the retained amounts are not computed.
const MAX_POINTERS: usize = 1 << 27;
/// Maximum number of pairs of a stack and the first word of some of its blocks.
const MAX_FIRSTS: usize = 1 << 18;

/// Roots of one kind, at which chains begin.
pub struct Origin<'a> {
    /// Memory of one kind, ascending.
    pub ranges: Vec<Range<Avma>>,
    /// Words outside memory, each with the number of its root.
    pub words: &'a [(u64, u32)],
}

/// Process to search, and how to search it.
pub struct Search<'a> {
    pub heap: &'a Heap,
    pub memory: &'a dyn Memory,
    /// Kinds of roots, the best first.
    pub origins: &'a [Origin<'a>],
    /// Memory that tables of virtual functions can be in, ascending.
    pub tables: &'a [Range<Avma>],
    /// When to stop.
    pub deadline: Instant,
}

/// Reason for missing holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    TooManyBlocks,
    Time,
}

/// Holders of a process's blocks, by stack.
#[derive(Debug, Default)]
pub struct Holders {
    pub chains: Chains,
    /// Blocks by their stack and the chain that holds them.
    pub held: HashMap<(u32, ChainId), Amount>,
    /// Lower bound of the blocks that would be lost with all blocks of a stack, these included; `None` if
    /// there was no time, or there were too many pointers.
    pub retained: Option<HashMap<u32, Amount>>,
    /// Blocks by their stack and their first word, if that is the address of a table of virtual functions.
    pub firsts: HashMap<(u32, u64), Amount>,
    /// All blocks that were reached.
    pub reached: Bits,
    /// Reached blocks that only interior pointers lead to.
    pub inside: BTreeMap<Inside, Amount>,
    /// Number of pointers from block to block and from roots to blocks, each pair once.
    pub pointers: usize,
}

/// Finds the holders of all blocks that can be reached. `root` returns the number of the root at an address.
///
/// # Errors
///
/// There are too many blocks, or the deadline has passed.
pub fn find(search: &Search<'_>, root: &mut dyn FnMut(Avma) -> u32) -> Result<Holders, Missing> {
    if search.heap.blocks().len() > MAX_BLOCKS {
        return Err(Missing::TooManyBlocks);
    }
    let mut walk = Walk::new(search);
    for origin in search.origins {
        walk.begin(origin, root)?;
        walk.follow()?;
    }
    walk.look_at_the_rest();
    Ok(walk.end())
}

struct Walk<'a> {
    search: &'a Search<'a>,
    holders: Holders,
    /// Blocks that roots lead to.
    rooted: Bits,
    reached: Bits,
    pointers: Pointers,
    /// Chain of each block that was reached.
    chains: Vec<ChainId>,
    /// Blocks that were reached, and are still to be read.
    pending: Vec<u32>,
    /// Blocks that were read, in this order: their indices are their vertices.
    read: Vec<u32>,
    /// `None` if there are too many pointers.
    graph: Option<Graph>,
}

impl<'a> Walk<'a> {
    fn new(search: &'a Search<'a>) -> Self {
        let count = search.heap.blocks().len();
        Self {
            search,
            holders: Holders::default(),
            rooted: Bits::new(count),
            reached: Bits::new(count),
            pointers: Pointers::new(count),
            chains: vec![ChainId::UNKNOWN; count],
            pending: Vec::new(),
            read: Vec::new(),
            graph: Some(Graph::default()),
        }
    }

    fn begin(&mut self, origin: &Origin<'_>, root: &mut dyn FnMut(Avma) -> u32) -> Result<(), Missing> {
        for &(word, number) in origin.words {
            self.hold_by_root(word, &mut || number);
        }
        let search = self.search;
        for ranges in origin.ranges.chunks(BATCH) {
            self.check_time()?;
            search.memory.visit(ranges, &mut |first, words| {
                for (&word, at) in words.iter().zip((first.get()..).step_by(8)) {
                    self.hold_by_root(word, &mut || root(Avma::new(at)));
                }
            });
        }
        Ok(())
    }

    fn hold_by_root(&mut self, word: u64, root: &mut dyn FnMut() -> u32) {
        let Some(block) = self.search.heap.at(word) else {
            return;
        };
        self.rooted.insert(block);
        self.pointers.see(self.search.heap, block, word);
        if self.reached.insert(block) {
            self.chains[block as usize] = self.holders.chains.root(root());
            self.pending.push(block);
        }
    }

    /// Reads the reached blocks, level by level.
    fn follow(&mut self) -> Result<(), Missing> {
        while !self.pending.is_empty() {
            let mut level = std::mem::take(&mut self.pending);
            // By address, so that neighbours are read together.
            level.sort_unstable();
            for blocks in level.chunks(BATCH) {
                self.check_time()?;
                self.read(blocks);
            }
        }
        Ok(())
    }

    /// Reads `blocks`, which ascend.
    fn read(&mut self, blocks: &[u32]) {
        let search = self.search;
        let ranges: Vec<_> = blocks.iter().map(|&block| search.heap.contents(block)).collect();
        let mut at = 0;
        let mut through = None;
        search.memory.visit(&ranges, &mut |first, words| {
            while ranges.get(at).is_some_and(|range| range.end <= first) {
                self.end_vertex();
                through = None;
                at += 1;
            }
            let Some(&block) = blocks.get(at) else {
                return;
            };
            self.see_first(block, first, words);
            for &word in words {
                let Some(target) = search.heap.at(word).filter(|&target| target != block) else {
                    continue;
                };
                if let Some(graph) = &mut self.graph {
                    graph.edge(target);
                }
                self.pointers.see(search.heap, target, word);
                if self.reached.insert(target) {
                    let chain = *through.get_or_insert_with(|| {
                        let stack = search.heap.blocks()[block as usize].stack;
                        self.holders.chains.through(self.chains[block as usize], stack)
                    });
                    self.chains[target as usize] = chain;
                    self.pending.push(target);
                }
            }
        });
        (at..blocks.len()).for_each(|_| self.end_vertex());
        self.read.extend(blocks);
    }

    fn end_vertex(&mut self) {
        if let Some(graph) = &mut self.graph {
            graph.end_vertex();
            if graph.edges() > MAX_POINTERS {
                self.graph = None;
            }
        }
    }

    /// Notes the first word of a block, if that can be the address of its class's table.
    fn see_first(&mut self, number: u32, at: Avma, words: &[u64]) {
        let (Some(block), Some(&word)) = (self.search.heap.blocks().get(number as usize), words.first())
        else {
            return;
        };
        if at != block.address || !has(self.search.tables, Avma::new(word)) {
            return;
        }
        let firsts = &mut self.holders.firsts;
        let key = (block.stack, word);
        if firsts.len() < MAX_FIRSTS || firsts.contains_key(&key) {
            let sum = firsts.entry(key).or_default();
            *sum = *sum + amount(block.size);
        }
    }

    /// Reads the first words of blocks that were not reached.
    fn look_at_the_rest(&mut self) {
        let search = self.search;
        let mut rest = Bits::all(search.heap.blocks().len());
        rest.remove(&self.reached);
        let rest: Vec<u32> = rest.iter().collect();
        for blocks in rest.chunks(BATCH) {
            if self.check_time().is_err() {
                return;
            }
            let first = |&block: &u32| {
                let range = search.heap.contents(block);
                range.start..range.end.min(range.start.wrapping_add(8))
            };
            let ranges: Vec<_> = blocks.iter().map(first).collect();
            search.memory.visit(&ranges, &mut |at, words| {
                if let Some(block) = search.heap.at(at.get()) {
                    self.see_first(block, at, words);
                }
            });
        }
    }

    fn check_time(&self) -> Result<(), Missing> {
        match Instant::now() < self.search.deadline {
            true => Ok(()),
            false => Err(Missing::Time),
        }
    }

    fn end(mut self) -> Holders {
        let blocks = self.search.heap.blocks();
        for &number in &self.read {
            let block = blocks[number as usize];
            let chain = self
                .holders
                .chains
                .up_to(self.chains[number as usize], block.stack);
            let sum = self.holders.held.entry((block.stack, chain)).or_default();
            *sum = *sum + amount(block.size);
        }
        self.chains = Vec::new();
        let Search {
            heap, memory, tables, ..
        } = *self.search;
        let pointers = std::mem::replace(&mut self.pointers, Pointers::new(0));
        self.holders.inside = pointers.sums(heap, memory, tables);
        self.holders.reached = std::mem::take(&mut self.reached);
        self.holders.retained = match self.check_time() {
            Ok(()) => self.retained(),
            Err(_) => None,
        };
        self.holders
    }

    fn retained(&mut self) -> Option<HashMap<u32, Amount>> {
        let blocks = self.search.heap.blocks();
        let mut graph = self.graph.take()?;
        self.rooted.iter().for_each(|block| graph.edge(block));
        graph.end_vertex();
        let mut vertices = vec![u32::MAX; blocks.len()];
        for (&block, vertex) in self.read.iter().zip(0..) {
            vertices[block as usize] = vertex;
        }
        graph.rename(|block| vertices[block as usize]);
        drop(vertices);
        self.holders.pointers = graph.edges();
        let dominators = graph.dominators();
        let stack = |block: &u32| blocks[*block as usize].stack;
        let mut stacks: Vec<u32> = self.read.iter().map(stack).collect();
        stacks.sort_unstable();
        stacks.dedup();
        let group = |block: &u32| stacks.partition_point(|known| *known < stack(block));
        let groups: Vec<_> = self.read.iter().map(|block| index(group(block))).collect();
        let retained = dominators.retained(stacks.len(), |vertex| {
            let vertex = vertex as usize;
            match (self.read.get(vertex), groups.get(vertex)) {
                (Some(&block), Some(&group)) => (amount(blocks[block as usize].size), group),
                (None, None | Some(_)) | (Some(_), None) => (Amount::default(), u32::MAX),
            }
        });
        Some(stacks.into_iter().zip(retained).collect())
    }
}

/// Index of a stack. There are fewer stacks than block numbers.
fn index(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn amount(bytes: u64) -> Amount {
    Amount { bytes, blocks: 1 }
}
