//! C++ classes of outstanding blocks (`--classes`), recognized by their first word: by site, and for each
//! listed block (`-a`). Nothing else is read of the blocks.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::time::{Duration, Instant};

use anyhow::Context;
use unwind_tables::addr::Avma;

use super::verdict::{FIRST_BYTES, Holding, OfStack, classes_by_word};
use super::{Session, Signals, View};
use crate::bpf::Endings;
use crate::bpf::collect::{Block, BlockPlace, BlockTable, LiveBlocks, Moment};
use crate::process::maps_of;
use crate::process::touched::ResidentPages;
use crate::reach::Memory;
use crate::reach::pages::Pages;
use crate::reach::reader::Reader;
use leak_report::model::{Amount, LookedAt};

/// Maximum number of blocks of a stack that are looked at; if there are more, a random sample of this size.
const OF_A_STACK: usize = 4096;
/// Maximum number of blocks that are looked at, of all stacks: some 50 MiB while a report is made.
const IN_ALL: usize = 1 << 19;
/// Blocks whose classes are looked for.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// Minimum age of the blocks that are looked at for their sites; `None` if none are.
    older: Option<Duration>,
    /// Blocks that are listed, each with its age; at most [`IN_ALL`].
    listed: HashMap<BlockPlace, Duration>,
}

impl Wanted {
    /// Chooses the blocks for which `view` asks. A verdict (`is_judged`) finds the classes of sites itself.
    pub(super) fn new(view: &View, is_judged: bool, blocks: Option<&LiveBlocks>) -> Self {
        let blocks = blocks.filter(|_| view.classes || is_judged);
        let listed = blocks.into_iter().flat_map(LiveBlocks::listed_places);
        Self {
            older: view.older.filter(|_| view.classes && !is_judged),
            listed: listed.take(IN_ALL).collect(),
        }
    }
}

/// Classes that were found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// By site, of each instance; `None` if not asked for.
    pub(super) of_sites: Option<Vec<Holding>>,
    /// By block, of those that are listed.
    pub(super) listed: HashMap<BlockPlace, String>,
}

impl Session<'_> {
    /// Finds the classes of blocks that were not allocated later than `moment`.
    pub(super) fn classes(
        &mut self,
        moment: Moment,
        wanted: Wanted,
        signals: &Signals,
    ) -> anyhow::Result<Found> {
        if wanted.older.is_none() && wanted.listed.is_empty() {
            return Ok(Found::default());
        }
        let began = Instant::now();
        let table = BlockTable::of(&self.live.kernel).context("cannot read the block table")?;
        let live = self.live.roster.running();
        let processes: Vec<_> = live
            .map(|process| (process.facts.instance, process.facts.pid))
            .collect();
        let endings = self.live.kernel.processes.endings();
        let find = move || find(&table, &processes, &endings, moment, &wanted);
        let found = self
            .meanwhile(signals, find)?
            .context("cannot read the block table")?;
        tracing::debug!("classes found in {:.1?}", began.elapsed());
        Ok(found)
    }
}

/// Finds the classes of blocks of some `processes`, pairs of instance and process id.
fn find(
    table: &BlockTable,
    processes: &[(u32, u32)],
    endings: &Endings,
    moment: Moment,
    wanted: &Wanted,
) -> Result<Found, libbpf_rs::Error> {
    let mut firsts: HashMap<u32, Firsts> = processes
        .iter()
        .map(|&(instance, _)| (instance, Firsts::new()))
        .collect();
    let mut chosen = Chosen::new(RandomState::new().hash_one(processes));
    let mut listed = Vec::new();
    table.visit(|block| {
        if !firsts.contains_key(&block.instance) || !moment.until(block.allocated_at).is_zero() {
            return;
        }
        let age = moment.age(block.allocated_at);
        if wanted.older.is_some_and(|older| age >= older) {
            chosen.add(block);
        }
        if wanted.listed.get(&(block.instance, block.address)) == Some(&age) {
            listed.push(block);
        }
    })?;
    let uses = chosen.all().map(|block| (block, true));
    for (block, is_chosen) in uses.chain(listed.iter().map(|block| (block, false))) {
        if let Some(firsts) = firsts.get_mut(&block.instance) {
            let first = firsts.entry(block.address).or_insert(First::of(block));
            first.is_chosen |= is_chosen;
            first.is_listed |= !is_chosen;
        }
    }
    for &(instance, pid) in processes {
        if let Some(firsts) = firsts.get_mut(&instance)
            && let Err(error) = read_firsts(pid, firsts)
        {
            tracing::warn!("cannot find the classes of the blocks of process {pid}: {error}");
        }
    }
    // The memory of a block that was freed meanwhile may have been another block's when it was read.
    let mut words: HashMap<u32, Words> = HashMap::new();
    table.visit(|block| {
        let first = firsts
            .get_mut(&block.instance)
            .and_then(|firsts| firsts.remove(&block.address));
        if let Some(first) = first.filter(|first| first.is_of(&block)) {
            words.entry(block.instance).or_default().add(&block, &first);
        }
    })?;
    let mut found = Found {
        of_sites: wanted.older.map(|_| Vec::new()),
        ..Found::default()
    };
    for &(instance, pid) in processes {
        let words = words.remove(&instance).unwrap_or_default();
        let classes = classes_by_word(pid, &words.all());
        // Memory that was read by process id is the instance's if that has not ended by now.
        if endings.has_ended(instance) {
            continue;
        }
        if let Some(holdings) = &mut found.of_sites {
            holdings.push(holding(&words.of_sites, &classes, (&chosen, instance)));
        }
        let listed = words.listed.iter();
        let listed =
            listed.filter_map(|(address, word)| Some(((instance, *address), classes.get(word)?.clone())));
        found.listed.extend(listed);
    }
    Ok(found)
}

/// Sums up classes by stack record, given the blocks by stack record and first word.
fn holding(
    firsts: &HashMap<(u32, u64), Amount>,
    classes: &HashMap<u64, String>,
    (chosen, instance): (&Chosen, u32),
) -> Holding {
    let mut by_stack: HashMap<u32, OfStack> = HashMap::new();
    for (&(stack, word), &amount) in firsts {
        let of_stack = by_stack.entry(stack).or_default();
        let looked = of_stack.looked.get_or_insert_default();
        looked.blocks += amount.blocks;
        looked.of = chosen.seen(stack);
        match classes.get(&word) {
            Some(class) => {
                let sum = of_stack.classes.entry(class.clone()).or_default();
                *sum = *sum + amount;
            }
            None => looked.without += amount.blocks,
        }
    }
    for (stack, of) in chosen.without_any(instance) {
        let looked = LookedAt {
            of,
            ..LookedAt::default()
        };
        by_stack.entry(stack).or_default().looked = Some(looked);
    }
    Holding {
        by_stack,
        ..Holding::default()
    }
}

/// Blocks of an instance that are looked at, by address.
type Firsts = HashMap<Avma, First>;

/// A block that is looked at, and its first word.
struct First {
    word: u64,
    size: u64,
    allocated_at: u64,
    stack: u32,
    /// True if it counts for its site.
    is_chosen: bool,
    is_listed: bool,
}

impl First {
    fn of(block: &Block) -> Self {
        Self {
            word: 0,
            size: block.size,
            allocated_at: block.allocated_at,
            stack: block.stack,
            is_chosen: false,
            is_listed: false,
        }
    }

    /// True if it is this block, and not another at its address.
    fn is_of(&self, block: &Block) -> bool {
        (self.allocated_at, self.stack) == (block.allocated_at, block.stack)
    }
}

/// First words of the blocks of an instance that were not freed meanwhile.
#[derive(Default)]
struct Words {
    /// By stack record.
    of_sites: HashMap<(u32, u64), Amount>,
    listed: Vec<(Avma, u64)>,
}

impl Words {
    fn add(&mut self, block: &Block, first: &First) {
        if first.is_chosen {
            let sum = self.of_sites.entry((block.stack, first.word)).or_default();
            *sum = *sum
                + Amount {
                    bytes: block.size,
                    blocks: 1,
                };
        }
        if first.is_listed {
            self.listed.push((block.address, first.word));
        }
    }

    /// Every word, each once.
    fn all(&self) -> HashSet<u64> {
        let of_sites = self.of_sites.keys().map(|&(_, word)| word);
        of_sites
            .chain(self.listed.iter().map(|&(_, word)| word))
            .collect()
    }
}

/// Reads the first words of blocks of process `pid`. The word of those in pages that are not resident stays
/// 0.
fn read_firsts(pid: u32, firsts: &mut Firsts) -> io::Result<()> {
    if firsts.is_empty() {
        return Ok(());
    }
    let pages = Pages::read(&ResidentPages::open(pid)?, &maps_of(pid)?)?;
    let large = firsts.iter().filter(|(_, first)| first.size >= FIRST_BYTES);
    let mut ranges: Vec<_> = large
        .map(|(&address, _)| address..address.wrapping_add(FIRST_BYTES))
        .collect();
    ranges.sort_unstable_by_key(|range| range.start);
    Reader::new(pid, pages).visit(&ranges, &mut |at, words| {
        if let (Some(first), Some(&word)) = (firsts.get_mut(&at), words.first()) {
            first.word = word;
        }
    });
    Ok(())
}

/// Blocks to look at: all of a stack, or a random sample of [`OF_A_STACK`].
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

    /// Blocks that are kept.
    fn all(&self) -> impl Iterator<Item = &Block> {
        self.by_stack.values().flat_map(|(_, kept)| kept)
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

    /// At most [`OF_A_STACK`] blocks of a stack are kept, early and late ones alike; all, if there are fewer.
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
        assert_eq!(chosen.all().count(), OF_A_STACK + 10);
        let early = chosen.all().filter(|block| block.address.get() < ALL / 2).count();
        assert!(
            (OF_A_STACK * 2 / 5..OF_A_STACK * 3 / 5).contains(&early),
            "{early}"
        );
        // Without room, blocks of another stack are only counted.
        chosen.kept = IN_ALL;
        (0..3).for_each(|address| chosen.add(block(4, address)));
        assert_eq!(chosen.all().count(), OF_A_STACK + 10);
        assert_eq!(chosen.without_any(7).collect::<Vec<_>>(), [(4, 3)]);
        assert_eq!(chosen.without_any(8).count(), 0);
    }
}
