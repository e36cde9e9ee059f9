use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proptest::prelude::*;
use unwind_tables::addr::Avma;

mod holders;

use super::Memory;
use super::bits::Bits;
use super::heap::{Block, Heap};
use super::lost::tell_apart;
use super::marking::Marking;
use super::passes::{MIN_PASSES, Passes, QUIET_PASSES};

/// Words by address.
#[derive(Debug, Default)]
struct Words(BTreeMap<u64, u64>);

impl Memory for Words {
    fn visit(&self, ranges: &[Range<Avma>], see: &mut dyn FnMut(Avma, &[u64])) {
        assert!(ranges.is_sorted_by_key(|range| range.start));
        for range in ranges {
            for (&address, &word) in self.0.range(range.start.get()..range.end.get()) {
                see(Avma::new(address), &[word]);
            }
        }
    }

    fn read(&self, at: Avma, words: &mut [u64]) -> bool {
        (at.get()..).step_by(8).zip(words).all(|(address, word)| {
            let found = self.0.get(&address);
            found.inspect(|found| *word = **found).is_some()
        })
    }
}

fn block(address: u64, size: u64) -> Block {
    Block {
        address: Avma::new(address),
        size,
        allocated_at: address,
        stack: 0,
    }
}

/// Heap of `count` blocks of 64 bytes each from 64 KiB on, and pointers between them, by number; `None` is a
/// root.
fn graph(count: u64, edges: &[(Option<u64>, u64)]) -> (Heap, Words) {
    let at = |number: u64| 0x10000 + number * 64;
    let heap = Heap::new((0..count).map(|number| block(at(number), 64)).collect());
    let mut words = Words::default();
    for &(from, to) in edges {
        let first = from.map_or(ROOTS.start.get(), at);
        let mut places = (first..).step_by(8);
        let place = places.find(|place| !words.0.contains_key(place));
        words.0.insert(place.expect("room"), at(to));
    }
    (heap, words)
}

const ROOTS: Range<Avma> = Avma::new(0x1000)..Avma::new(0x8000);

fn reached(heap: &Heap, words: &Words) -> Bits {
    let mut marking = Marking::new(heap);
    marking.follow(words, [ROOTS]);
    marking.reached()
}

fn lost(heap: &Heap, words: &Words) -> (Vec<u32>, Vec<u32>) {
    let mut lost = Bits::all(heap.blocks().len());
    lost.remove(&reached(heap, words));
    let told = tell_apart(heap, &lost, words);
    (told.definitely.iter().collect(), told.indirectly.iter().collect())
}

/// A block is found by each address in it, and by none around it; blocks can be empty, large, and far from
/// each other.
#[test]
fn any_address_in_a_block() {
    let heap = Heap::new(vec![
        block(0x7fff_0000_0000, 3 << 30),
        block(0x10010, 24),
        block(0x10030, 0),
        block(0x10ff8, 16),
        block(0x1f_fff8, 0x40_0010),
    ]);
    for (address, expected) in [
        (0, None),
        (0x1000f, None),
        (0x10010, Some(0)),
        (0x10027, Some(0)),
        (0x10028, None),
        (0x10030, Some(1)),
        (0x10031, None),
        (0x11000, Some(2)),
        (0x1f_fff8, Some(3)),
        (0x40_0000, Some(3)),
        (0x60_0007, Some(3)),
        (0x60_0008, None),
        (0x7fff_0000_0000, Some(4)),
        (0x7fff_bfff_ffff, Some(4)),
        (0x7fff_c000_0000, None),
        (u64::MAX, None),
    ] {
        assert_eq!(heap.at(address), expected, "{address:#x}");
    }
    assert_eq!(Heap::default().at(0), None);
}

/// Sizes that a program makes up cost at most a bounded index, and blocks beyond that are found all the same.
#[test]
fn claimed_sizes() {
    let heap = Heap::new(vec![block(0x1000, u64::MAX), block(0x10, 8)]);
    assert_eq!(heap.at(0x10), Some(0));
    assert_eq!(heap.at(0x1000), Some(1));
    assert_eq!(heap.at(1 << 63), Some(1));
    assert_eq!(heap.at(u64::MAX), None);
    let heap = Heap::new(vec![
        block(0x1000, 300 << 30),
        block(301 << 30, 8),
        block(u64::MAX - 8, 4),
    ]);
    assert_eq!(
        (heap.at(99 << 30), heap.at(299 << 30), heap.at(301 << 30)),
        (Some(0), Some(0), Some(1))
    );
    assert_eq!((heap.at((301 << 30) - 8), heap.at(302 << 30)), (None, None));
    assert_eq!((heap.at(u64::MAX - 8), heap.at(u64::MAX)), (Some(2), None));
}

/// A block includes what the program can use of it, up to the next block. Its contents are the requested
/// bytes, unless the program may have asked for more.
#[test]
fn usable_sizes() {
    let mut heap = Heap::new(vec![block(0x1000, 20), block(0x1020, 20), block(0x1040, 20)]);
    let at = |number, end| (number, Avma::new(end));
    let usable = [at(0, 0x1018), at(1, 0x2000), at(2, 0x1050)];
    heap.extend(&usable, false);
    let found = [0x1017, 0x1018, 0x103f, 0x1053, 0x1054].map(|address| heap.at(address));
    assert_eq!(found, [Some(0), None, Some(1), Some(2), None]);
    assert_eq!(heap.range(0), Avma::new(0x1000)..Avma::new(0x1018));
    assert_eq!(heap.contents(0), Avma::new(0x1000)..Avma::new(0x1014));
    heap.extend(&usable, true);
    assert_eq!(heap.contents(0), heap.range(0));
}

/// If blocks overlap, the last allocated remains.
#[test]
fn overlapping_blocks() {
    let at = |address, size, allocated_at| Block {
        allocated_at,
        ..block(address, size)
    };
    let heap = Heap::new(vec![
        at(0x1000, 64, 3),
        at(0x1020, 8, 2),
        at(0x1000, 16, 1),
        at(0x2000, 64, 1),
        at(0x2020, 64, 2),
    ]);
    let times: Vec<_> = heap.blocks().iter().map(|block| block.allocated_at).collect();
    assert_eq!(times, [3, 2]);
}

/// Blocks that roots lead to are reached, through other blocks and in circles, and by pointers into the
/// middle.
#[test]
fn reached_from_roots() {
    let (heap, mut words) = graph(
        7,
        &[(None, 1), (Some(1), 2), (Some(2), 1), (Some(3), 4), (Some(5), 2)],
    );
    words.0.insert(0x2000, 0x10000 + 6 * 64 + 63);
    assert_eq!(reached(&heap, &words).iter().collect::<Vec<_>>(), [1, 2, 6]);
}

/// The head of a list and one block of a cycle are definitely lost, all other blocks indirectly, as memcheck
/// has it.
#[test]
fn definitely_and_indirectly() {
    let (heap, words) = graph(3, &[(Some(2), 1), (Some(1), 0)]);
    assert_eq!(lost(&heap, &words), (vec![2], vec![0, 1]));
    let (heap, words) = graph(3, &[(Some(0), 1), (Some(1), 2), (Some(2), 0)]);
    assert_eq!(lost(&heap, &words), (vec![0], vec![1, 2]));
    // A block that leads to itself, and a cycle that another block leads to.
    let (heap, words) = graph(4, &[(Some(0), 0), (Some(1), 2), (Some(2), 1), (Some(3), 1)]);
    assert_eq!(lost(&heap, &words), (vec![0, 3], vec![1, 2]));
}

/// A block that one pass has found stays held; one that was allocated or freed since the first pass is not
/// judged; passes end when enough of them have found nothing new.
#[test]
fn several_passes() {
    let heap = |addresses: &[u64]| Heap::new(addresses.iter().map(|&address| block(address, 8)).collect());
    let bits = |numbers: &[u32]| {
        let mut bits = Bits::new(4);
        numbers.iter().for_each(|&number| _ = bits.insert(number));
        bits
    };
    let addresses =
        |passes: &Passes| -> Vec<u64> { passes.missed().iter().map(|(address, _)| address.get()).collect() };
    let mut passes = Passes::default();
    passes.add(&heap(&[0x100, 0x200, 0x300, 0x400]), &bits(&[0]));
    passes.add(&heap(&[0x200, 0x280, 0x300, 0x400]), &bits(&[2]));
    passes.add(&heap(&[0x200, 0x280, 0x300, 0x400]), &bits(&[]));
    assert_eq!(addresses(&passes), [0x200, 0x400]);
    let mut more = 0;
    while !passes.are_enough() {
        passes.add(&heap(&[0x200, 0x300, 0x400]), &bits(&[1]));
        more += 1;
    }
    assert_eq!(passes.count(), 3 + more);
    assert_eq!(passes.count(), MIN_PASSES.max(2 + QUIET_PASSES));
    assert_eq!(addresses(&passes), [0x200, 0x400]);
    // Blocks that another marking has reached are held, too.
    passes.take_out(&heap(&[0x200, 0x300, 0x400]), &bits(&[1, 2]));
    assert_eq!(addresses(&passes), [0x200]);
    // With nothing left to ask about, no more are needed.
    passes.add(&heap(&[0x300]), &bits(&[]));
    assert!(passes.are_enough() && passes.missed().is_empty());
}

/// Passes end if each finds as few blocks as stale pointers lead to. If they find fewer and fewer, they end
/// only when they find none.
#[test]
fn passes_that_find_some() {
    let heap = Heap::new((1..=2000).map(|number| block(number * 16, 8)).collect());
    let passes_until_enough = |found: &dyn Fn(u32) -> Vec<u32>| {
        let mut passes = Passes::default();
        while !passes.are_enough() && passes.count() < 1000 {
            let mut bits = Bits::new(2000);
            for number in found(passes.count()) {
                bits.insert(number);
            }
            passes.add(&heap, &bits);
        }
        (passes.count(), passes.missed().len())
    };
    // One in each pass, or in every third: 2^10 / 100 is ten, and 2^8 / 100 not quite three.
    assert_eq!(passes_until_enough(&|pass| vec![pass]), (11, 1989));
    let sometimes = |pass: u32| {
        if pass.is_multiple_of(3) {
            vec![pass]
        } else {
            vec![]
        }
    };
    assert_eq!(passes_until_enough(&sometimes), (9, 1997));
    // 200 in each are too many for as long as there are any.
    let many = |pass: u32| (pass * 200..pass.min(8) * 200 + 200).collect();
    assert_eq!(passes_until_enough(&many), (13, 200));
    // Few and fewer: there may be one more.
    let fewer = |pass: u32| {
        if [1, 2, 3, 5].contains(&pass) {
            vec![pass]
        } else {
            vec![]
        }
    };
    assert_eq!(passes_until_enough(&fewer), (10, 1996));
    // After the first pass 1000 held ones are left, beside 50 lost ones. Each pass finds two thirds of the
    // rest.
    let most = |pass: u32| (50..2000 - 1000 / 3_u32.saturating_pow(pass)).collect();
    assert_eq!(passes_until_enough(&most).1, 50);
}

fn graphs() -> impl Strategy<Value = (u64, Vec<(Option<u64>, u64)>)> {
    (1..40_u64).prop_flat_map(|count| {
        let edge = (prop::option::weighted(0.9, 0..count), 0..count);
        // No block has more than eight words.
        (Just(count), prop::collection::vec(edge, 0..60)).prop_map(|(count, edges)| {
            let mut of = BTreeMap::new();
            let is_kept = |(from, _): &(Option<u64>, u64)| {
                let number = of.entry(*from).or_insert(0);
                *number += 1;
                *number <= 8
            };
            (count, edges.into_iter().filter(is_kept).collect())
        })
    })
}

proptest! {
    /// In any graph, the blocks to which there is a path are reached; each other block is lost, definitely or
    /// indirectly; a definitely lost block leads to each indirectly lost one, and to no other definitely lost
    /// one.
    #[test]
    fn any_graph((count, edges) in graphs()) {
        let (heap, words) = graph(count, &edges);
        let closure = |from: &[Option<u64>]| {
            let mut found: BTreeSet<u64> = BTreeSet::new();
            let mut pending: Vec<Option<u64>> = from.to_vec();
            while let Some(at) = pending.pop() {
                let next = edges.iter().filter(|(from, _)| *from == at).map(|(_, to)| *to);
                let new: Vec<_> = next.filter(|to| !found.contains(to)).collect();
                pending.extend(new.iter().map(|to| Some(*to)));
                found.extend(new);
            }
            found
        };
        let held = closure(&[None]);
        let found: BTreeSet<u64> = reached(&heap, &words).iter().map(u64::from).collect();
        prop_assert_eq!(&found, &held);

        let (definitely, indirectly) = lost(&heap, &words);
        let definitely: BTreeSet<u64> = definitely.into_iter().map(u64::from).collect();
        let indirectly: BTreeSet<u64> = indirectly.into_iter().map(u64::from).collect();
        let all: BTreeSet<u64> = (0..count).filter(|number| !held.contains(number)).collect();
        prop_assert_eq!(&definitely | &indirectly, all.clone());
        prop_assert!(definitely.is_disjoint(&indirectly));
        for &leader in &definitely {
            let others: Vec<_> = definitely.iter().filter(|&&other| other != leader).map(|&other| Some(other)).collect();
            prop_assert!(!closure(&others).contains(&leader));
        }
        let leaders: Vec<_> = definitely.iter().map(|&leader| Some(leader)).collect();
        prop_assert!(indirectly.is_subset(&closure(&leaders)));
    }
}
