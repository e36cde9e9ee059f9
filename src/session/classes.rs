//! C++ classes of outstanding blocks, by what they begin with (`--classes`). Without a verdict: nothing else is read of them.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::{Duration, Instant};

use anyhow::Context;
use unwind_tables::addr::Avma;

use super::verdict::{Holding, OfStack, classes_of_firsts};
use super::{Session, Signals, View};
use crate::bpf::Endings;
use crate::bpf::collect::{Block, BlockTable, Moment};
use crate::process::maps_of;
use crate::process::touched::ResidentPages;
use crate::reach::Memory;
use crate::reach::pages::Pages;
use crate::reach::reader::Reader;
use leak_report::model::{Amount, LookedAt};

/// Maximum number of blocks of a stack that are looked at; of more, so many at random.
const OF_A_STACK: usize = 4096;
/// Maximum number of blocks that are looked at, of all stacks: some 50 MiB while a report is made.
const IN_ALL: usize = 1 << 19;
/// Bytes of the address of a class's table, with which its objects begin.
const FIRST_BYTES: u64 = 8;

impl Session<'_> {
    /// Finds the classes of the blocks that are not young, if `view` asks for them.
    pub(super) fn classes(
        &mut self,
        moment: Moment,
        view: &View,
        signals: &Signals,
    ) -> anyhow::Result<Option<Vec<Holding>>> {
        let Some(older) = view.older.filter(|_| view.classes) else {
            return Ok(None);
        };
        let began = Instant::now();
        let table = BlockTable::of(&self.live.kernel).context("cannot read the block table")?;
        let live = self.live.processes.values().filter(|process| process.is_live());
        let processes: Vec<_> = live
            .map(|process| (process.facts.instance, process.facts.pid))
            .collect();
        let endings = self.live.kernel.processes.endings();
        let find = move || find(&table, &processes, &endings, moment, older);
        let found = self
            .meanwhile(signals, find)?
            .context("cannot read the block table")?;
        tracing::debug!("classes found in {:.1?}", began.elapsed());
        Ok(Some(found))
    }
}

/// Classes of the blocks of some instances with their processes, which are at least `older` at a moment.
fn find(
    table: &BlockTable,
    processes: &[(u32, u32)],
    endings: &Endings,
    moment: Moment,
    older: Duration,
) -> Result<Vec<Holding>, libbpf_rs::Error> {
    let instances: HashSet<_> = processes.iter().map(|&(instance, _)| instance).collect();
    let mut chosen = Chosen::new(RandomState::new().hash_one(processes));
    table.visit(|block| {
        if moment.age(block.allocated_at) >= older && instances.contains(&block.instance) {
            chosen.add(block);
        }
    })?;
    let mut firsts = HashMap::new();
    for &(instance, pid) in processes {
        if let Err(error) = read_firsts(pid, chosen.of(instance), &mut firsts) {
            tracing::warn!("classes of the blocks of process {pid} are not known: {error}");
        }
    }
    // Blocks that were freed meanwhile may have been another's when they were read.
    let mut by_instance: HashMap<u32, HashMap<(u32, u64), Amount>> = HashMap::new();
    table.visit(|block| {
        let identity = |first: &First| (first.allocated_at, first.stack) == (block.allocated_at, block.stack);
        let first = firsts.remove(&(block.instance, block.address)).filter(identity);
        if let Some(First { word, .. }) = first {
            let sums = by_instance.entry(block.instance).or_default();
            let sum = sums.entry((block.stack, word)).or_default();
            *sum = *sum
                + Amount {
                    bytes: block.size,
                    blocks: 1,
                };
        }
    })?;
    let of_instances = processes.iter().filter_map(|&(instance, pid)| {
        let firsts = by_instance.remove(&instance).unwrap_or_default();
        let classes = classes_of_firsts(pid, &firsts);
        // What was read by the process's number is its own if it has not ended by now.
        (!endings.has_ended(instance)).then(|| holding(&firsts, classes, (&chosen, instance)))
    });
    Ok(of_instances.collect())
}

/// Sums up what begins with what, by stack record.
fn holding(
    firsts: &HashMap<(u32, u64), Amount>,
    classes: HashMap<(u32, String), Amount>,
    (chosen, instance): (&Chosen, u32),
) -> Holding {
    let mut by_stack: HashMap<u32, OfStack> = HashMap::new();
    for (&(stack, _), amount) in firsts {
        let looked = by_stack.entry(stack).or_default().looked.get_or_insert_default();
        looked.blocks += amount.blocks;
        looked.without += amount.blocks;
        looked.of = chosen.seen(stack);
    }
    for (stack, of) in chosen.without_any(instance) {
        let looked = LookedAt {
            of,
            ..LookedAt::default()
        };
        by_stack.entry(stack).or_default().looked = Some(looked);
    }
    for ((stack, class), amount) in classes {
        let of_stack = by_stack.entry(stack).or_default();
        if let Some(looked) = &mut of_stack.looked {
            looked.without = looked.without.saturating_sub(amount.blocks);
        }
        of_stack.classes.insert(class, amount);
    }
    Holding {
        by_stack,
        ..Holding::default()
    }
}

/// First word of a block, and what tells the block from others at its address.
struct First {
    word: u64,
    allocated_at: u64,
    stack: u32,
}

/// Reads the first words of `blocks` of process `pid`. Those in pages that are not resident begin with nothing.
fn read_firsts(pid: u32, mut blocks: Vec<Block>, firsts: &mut HashMap<(u32, Avma), First>) -> io::Result<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    blocks.sort_unstable_by_key(|block| block.address);
    let pages = Pages::read(&ResidentPages::open(pid)?, &maps_of(pid)?)?;
    for block in &blocks {
        let first = First {
            word: 0,
            allocated_at: block.allocated_at,
            stack: block.stack,
        };
        firsts.insert((block.instance, block.address), first);
    }
    let Some(instance) = blocks.first().map(|block| block.instance) else {
        return Ok(());
    };
    let large = blocks.iter().filter(|block| block.size >= FIRST_BYTES);
    let ranges = large.map(|block| block.address..block.address.wrapping_add(FIRST_BYTES));
    let ranges: Vec<_> = ranges.collect();
    Reader::new(pid, pages).visit(&ranges, &mut |at, words| {
        if let (Some(first), Some(&word)) = (firsts.get_mut(&(instance, at)), words.first()) {
            first.word = word;
        }
    });
    Ok(())
}

/// Blocks to look at, of each stack all or so many at random.
struct Chosen {
    /// By stack record: number of blocks, and those that are kept.
    by_stack: HashMap<u32, (u64, Vec<Block>)>,
    /// Stacks of which none is kept, with the instance.
    without: HashMap<u32, u32>,
    kept: usize,
    /// State of the generator of random numbers.
    random: u64,
}

impl Chosen {
    fn new(seed: u64) -> Self {
        Self {
            by_stack: HashMap::new(),
            without: HashMap::new(),
            kept: 0,
            random: seed,
        }
    }

    fn add(&mut self, block: Block) {
        let at = self.next_random();
        let (seen, kept) = self.by_stack.entry(block.stack).or_default();
        *seen += 1;
        if kept.len() < OF_A_STACK && self.kept < IN_ALL {
            kept.push(block);
            self.kept += 1;
            return;
        }
        if kept.is_empty() {
            self.without.insert(block.stack, block.instance);
            return;
        }
        // Each of those seen so far is among those kept with the same probability.
        let at = usize::try_from(at % *seen).unwrap_or(usize::MAX);
        if let Some(known) = kept.get_mut(at) {
            *known = block;
        }
    }

    /// Blocks of an instance.
    fn of(&self, instance: u32) -> Vec<Block> {
        let all = self.by_stack.values().flat_map(|(_, kept)| kept);
        all.filter(|block| block.instance == instance).copied().collect()
    }

    /// Stacks of an instance of which no block is kept, with the number of their blocks.
    fn without_any(&self, instance: u32) -> impl Iterator<Item = (u32, u64)> + '_ {
        let of_instance = self.without.iter().filter(move |(_, of)| **of == instance);
        of_instance.map(|(&stack, _)| (stack, self.seen(stack)))
    }

    /// Number of blocks of a stack, kept or not.
    fn seen(&self, stack: u32) -> u64 {
        self.by_stack.get(&stack).map_or(0, |(seen, _)| *seen)
    }

    /// Next number by `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014).
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leak_report::model::Weight;

    /// So many of a stack's blocks are kept, early and late ones alike; if there are fewer, all.
    #[test]
    fn blocks_are_chosen_evenly() {
        const ALL: u64 = 40_000;
        let mut chosen = Chosen::new(1);
        let block = |stack, address| Block {
            instance: 7,
            address: Avma::new(address),
            size: 8,
            allocated_at: 0,
            stack,
            weight: Weight::ONE,
            thread: 0,
        };
        (0..ALL).for_each(|address| chosen.add(block(1, address)));
        (0..10).for_each(|address| chosen.add(block(2, ALL + address)));
        assert_eq!((chosen.seen(1), chosen.seen(2), chosen.seen(3)), (ALL, 10, 0));
        let kept = chosen.of(7);
        assert_eq!(kept.len(), OF_A_STACK + 10);
        let early = kept.iter().filter(|block| block.address.get() < ALL / 2).count();
        assert!(
            (OF_A_STACK * 2 / 5..OF_A_STACK * 3 / 5).contains(&early),
            "{early}"
        );
        assert!(chosen.of(8).is_empty());
        // Without room, blocks of another stack are only counted.
        chosen.kept = IN_ALL;
        (0..3).for_each(|address| chosen.add(block(4, address)));
        assert_eq!(chosen.of(7).len(), OF_A_STACK + 10);
        assert_eq!(chosen.without_any(7).collect::<Vec<_>>(), [(4, 3)]);
        assert_eq!(chosen.without_any(8).count(), 0);
    }
}
