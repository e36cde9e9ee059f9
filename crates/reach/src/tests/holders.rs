//! Holders of blocks, compared with exhaustive searches.

use std::time::{Duration, Instant};

use leak_report::model::Amount;

use super::*;
use crate::chains::{Chain, Via};
use crate::holders::{Holders, Missing, Origin, Search, find};

/// Blocks of [`graph`], each of the stack that `stacks` says.
fn of_stacks(heap: &Heap, stacks: &[u32]) -> Heap {
    let blocks = heap.blocks().iter().zip(stacks);
    Heap::new(blocks.map(|(&block, &stack)| Block { stack, ..block }).collect())
}

fn search(heap: &Heap, words: &Words, origins: &[Origin<'_>], time: Duration) -> Result<Holders, Missing> {
    let search = Search {
        heap,
        memory: words,
        origins,
        tables: &[Avma::new(0x8000)..Avma::new(0x9000)],
        deadline: Instant::now() + time,
    };
    // The number of a root is its address.
    find(&search, &mut |at| u32::try_from(at.get()).expect("low"))
}

fn in_memory(ranges: Range<Avma>) -> Origin<'static> {
    Origin {
        ranges: vec![ranges],
        words: &[],
    }
}

fn held(holders: &Holders, stack: u32) -> Vec<(Chain, u64)> {
    let of_stack = holders.held.iter().filter(|((of, _), _)| *of == stack);
    let chains =
        of_stack.map(|((_, chain), amount)| (holders.chains.get(*chain).expect("known"), amount.blocks));
    let mut chains: Vec<_> = chains.collect();
    chains.sort_by_key(|(chain, _)| (chain.root, chain.via.clone()));
    chains
}

fn chain(root: u32, via: &[(u32, bool)]) -> Chain {
    let via = via.iter().map(|&(stack, repeats)| Via { stack, repeats });
    Chain {
        root,
        via: via.collect(),
        is_cut: false,
    }
}

const LONG: Duration = Duration::from_secs(60);

/// A variable holds all blocks that it leads to, in any number of steps, before a stack or a register does.
/// Nodes of a list are held by the holder of the list, and their items by the list.
#[test]
fn variables_come_first() {
    // A list of three nodes, each with an item; a stack leads to the last item, too, and only a register to a
    // further block.
    let edges = [
        (None, 0),
        (Some(0), 1),
        (Some(1), 2),
        (Some(0), 3),
        (Some(1), 4),
        (Some(2), 5),
    ];
    let (heap, mut words) = graph(8, &edges);
    let heap = of_stacks(&heap, &[1, 1, 1, 2, 2, 2, 2, 3]);
    let at = |block: usize| heap.blocks()[block].address.get();
    words.0.insert(0x7000, at(5));
    let register = [(at(6) + 8, 9), (at(0), 9)];
    let origins = [
        in_memory(Avma::new(0x1000)..Avma::new(0x2000)),
        Origin {
            ranges: vec![Avma::new(0x7000)..Avma::new(0x8000)],
            words: &register,
        },
    ];
    let holders = search(&heap, &words, &origins, LONG).expect("time");
    assert_eq!(held(&holders, 1), [(chain(0x1000, &[]), 3)]);
    assert_eq!(
        held(&holders, 2),
        [(chain(9, &[]), 1), (chain(0x1000, &[(1, true)]), 3)]
    );
    assert_eq!(held(&holders, 3), []);
    let retained = holders.retained.expect("time");
    let amount = |blocks| Amount {
        bytes: 64 * blocks,
        blocks,
    };
    // The nodes, and two items; the third one is on the stack, too.
    assert_eq!((retained[&1], retained[&2]), (amount(5), amount(4)));
    assert!(!retained.contains_key(&3));
}

/// First words that are addresses of tables are counted by stack, for lost blocks, too.
#[test]
fn first_words() {
    let (heap, mut words) = graph(4, &[]);
    let heap = of_stacks(&heap, &[1, 1, 2, 2]);
    for (block, word) in heap.blocks().iter().zip([0x8010, 0x8010, 0x8ff8, 0x9000]) {
        words.0.insert(block.address.get(), word);
    }
    words.0.insert(0x1000, heap.blocks()[0].address.get());
    let holders = search(&heap, &words, &[in_memory(ROOTS)], LONG).expect("time");
    let amount = |blocks| Amount {
        bytes: 64 * blocks,
        blocks,
    };
    let mut firsts: Vec<_> = holders.firsts.into_iter().collect();
    firsts.sort_unstable_by_key(|(key, _)| *key);
    assert_eq!(firsts, [((1, 0x8010), amount(2)), ((2, 0x8ff8), amount(1))]);
}

/// Without time there is no result.
#[test]
fn no_time() {
    let (heap, words) = graph(1, &[(None, 0)]);
    let found = search(&heap, &words, &[in_memory(ROOTS)], Duration::ZERO);
    assert_eq!(found.err(), Some(Missing::Time));
}

proptest! {
    /// Each reached block has one holder, at most as many steps away as the deepest block of its stack. A
    /// stack retains at least its own blocks, and at most those that cannot be reached without it.
    #[test]
    fn any_holders((count, edges) in graphs(), seed in prop::collection::vec(0..5_u32, 40)) {
        let (heap, words) = graph(count, &edges);
        let heap = of_stacks(&heap, &seed);
        let stack = |block: u64| seed[usize::try_from(block).expect("few")];
        let reach = |without: Option<u32>| {
            let mut found: BTreeMap<u64, usize> = BTreeMap::new();
            let mut level: Vec<Option<u64>> = vec![None];
            for depth in 0.. {
                let next = edges.iter().filter(|(from, _)| level.contains(from)).map(|(_, to)| *to);
                let new: BTreeSet<u64> = next.filter(|to| !found.contains_key(to) && Some(stack(*to)) != without).collect();
                if new.is_empty() {
                    break;
                }
                found.extend(new.iter().map(|to| (*to, depth)));
                level = new.into_iter().map(Some).collect();
            }
            found
        };
        let all = reach(None);
        let holders = search(&heap, &words, &[in_memory(ROOTS)], LONG).expect("time");
        let held_blocks: u64 = holders.held.values().map(|amount| amount.blocks).sum();
        prop_assert_eq!(held_blocks, all.len() as u64);
        for (stack_of, chain) in holders.held.keys() {
            let chain = holders.chains.get(*chain).expect("known");
            prop_assert!(ROOTS.contains(&Avma::new(chain.root.into())));
            prop_assert!(chain.via.iter().all(|via| via.stack != *stack_of));
            let deepest = all.iter().filter(|(block, _)| stack(**block) == *stack_of).map(|(_, depth)| *depth).max();
            prop_assert!(chain.via.len() <= deepest.expect("some"));
        }
        let retained = holders.retained.expect("time");
        for (stack_of, retained) in retained {
            let own = all.keys().filter(|block| stack(**block) == stack_of).count() as u64;
            let without = (all.len() - reach(Some(stack_of)).len()) as u64;
            prop_assert!((own..=without).contains(&retained.blocks), "{} {} {}", own, retained.blocks, without);
        }
    }
}

/// Memory of consecutive words.
struct Flat {
    start: u64,
    words: Vec<u64>,
}

impl Memory for Flat {
    fn visit(&self, ranges: &[Range<Avma>], see: &mut dyn FnMut(Avma, &[u64])) {
        let place = |at: Avma| usize::try_from(at.get().saturating_sub(self.start) / 8).expect("small");
        for range in ranges {
            let end = place(range.end).min(self.words.len());
            see(range.start, &self.words[place(range.start).min(end)..end]);
        }
    }

    fn read(&self, _: Avma, _: &mut [u64]) -> bool {
        false
    }
}

/// Holders of a million blocks of a thousand stacks, with three million pointers to anywhere, are found in
/// seconds.
#[test]
fn a_million_blocks() {
    const BLOCKS: u64 = 1 << 20;
    let start = 0x10000;
    let at = |number: u64| start + 4096 + number * 64;
    let heap = Heap::new(
        (0..BLOCKS)
            .map(|number| Block {
                stack: u32::try_from(number % 1000).expect("small"),
                ..block(at(number), 64)
            })
            .collect(),
    );
    let mut seed = 1_u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % BLOCKS
    };
    let mut words = vec![0; 512];
    words[..64].fill_with(|| at(random()));
    for _ in 0..BLOCKS {
        words.extend([0, at(random()), 0, at(random()), 0, at(random()), 0, 0]);
    }
    let flat = Flat { start, words };
    let began = Instant::now();
    let origins = [in_memory(Avma::new(start)..Avma::new(start + 4096))];
    let search = Search {
        heap: &heap,
        memory: &flat,
        origins: &origins,
        tables: &[],
        deadline: began + LONG,
    };
    let holders = find(&search, &mut |_| 0).expect("time");
    let took = began.elapsed();
    assert!((3 << 20) - 400_000 < holders.pointers && holders.pointers <= (3 << 20) + 64);
    let held: u64 = holders.held.values().map(|amount| amount.blocks).sum();
    // All but some five per cent, to which nothing leads.
    assert!(held > BLOCKS * 9 / 10 && held < BLOCKS, "{held}");
    assert_eq!(holders.retained.expect("time").len(), 1000);
    assert!(took < LONG, "{took:?}");
}
