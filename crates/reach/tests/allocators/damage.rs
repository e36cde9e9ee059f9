//! Damage: whatever the words of a process's memory are, each reader ends, lists no block twice, and calls no
//! listed block unused.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memleak_process::maps::MapsEntry;
use memleak_reach::Memory;
use memleak_reach::free;
use memleak_reach::heap::Heap;
use memleak_test::program::{LIBRARIES, mimalloc, stock};
use unwind_tables::addr::Avma;

use crate::{Subject, start};

/// Number of variants of damage, and maximum time for one.
const VARIANTS: u64 = 150;
const PATIENCE: Duration = Duration::from_secs(20);

/// Memory as it was, and words that replace others.
struct Damaged {
    runs: Vec<(u64, Vec<u64>)>,
    words: BTreeMap<u64, u64>,
    is_visited: Cell<bool>,
}

impl Damaged {
    fn of(subject: &Subject) -> Self {
        let pages = subject.reader.pages().runs();
        let mut runs = Vec::new();
        for range in pages {
            let bytes = range.end.offset_from(range.start);
            let mut words = vec![0; usize::try_from(bytes / 8).expect("64 bits")];
            Memory::read(&subject.reader, range.start, &mut words);
            runs.push((range.start.get(), words));
        }
        Self {
            runs,
            words: BTreeMap::new(),
            is_visited: Cell::new(false),
        }
    }

    /// Changes `words`, which were at an address, to what they are.
    fn damage(&self, at: u64, words: &mut [u64]) {
        let end = at + 8 * words.len() as u64;
        for (place, word) in self.words.range(at..end) {
            words[usize::try_from((place - at) / 8).expect("64 bits")] = *word;
        }
    }
}

impl Memory for Damaged {
    fn visit(&self, ranges: &[Range<Avma>], see: &mut dyn FnMut(Avma, &[u64])) {
        assert!(!self.is_visited.replace(true));
        for range in ranges {
            let (start, end) = (range.start.get().next_multiple_of(8), range.end.get() / 8 * 8);
            let first = self
                .runs
                .partition_point(|(at, words)| at + 8 * words.len() as u64 <= start);
            for (at, words) in &self.runs[first..] {
                let from = start.max(*at);
                let to = end.min(at + 8 * words.len() as u64);
                if *at >= end || from >= to {
                    break;
                }
                let index = |place: u64| usize::try_from((place - at) / 8).expect("64 bits");
                let mut words = words[index(from)..index(to)].to_vec();
                self.damage(from, &mut words);
                see(Avma::new(from), &words);
            }
        }
        self.is_visited.set(false);
    }

    fn read(&self, at: Avma, words: &mut [u64]) -> bool {
        assert!(!self.is_visited.get());
        let Some(end) = at.get().checked_add(8 * words.len() as u64) else {
            return false;
        };
        words.fill(0);
        self.visit(&[at..Avma::new(end)], &mut |from, found| {
            let first = usize::try_from((from.get() - at.get()) / 8).expect("64 bits");
            words[first..first + found.len()].copy_from_slice(found);
        });
        true
    }
}

fn random_below(state: &mut u64, limit: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % limit
}

/// Places of words that lead somewhere, and of others that are not zero.
fn places(memory: &Damaged) -> Vec<(u64, u64)> {
    let mut places = Vec::new();
    for (at, words) in &memory.runs {
        let all = words.iter().zip((*at..).step_by(8));
        places.extend(all.filter(|(word, _)| **word != 0).map(|(word, at)| (at, *word)));
    }
    places
}

#[track_caller]
fn check(memory: &Damaged, maps: &[MapsEntry], variant: u64) {
    let began = Instant::now();
    let blocks = free::blocks_in_use(memory, maps).map_or(Vec::new(), |listing| listing.blocks);
    assert!(
        blocks.is_sorted_by(|last, next| last.range().end <= next.address),
        "{variant}"
    );
    let heap = Heap::new(blocks);
    let unused = free::find(memory, maps, &heap);
    assert!(
        unused.ranges.is_sorted_by(|last, next| last.end < next.start),
        "{variant}"
    );
    for range in &unused.ranges {
        let after = heap
            .blocks()
            .partition_point(|block| block.range().end <= range.start);
        let block = heap.blocks().get(after);
        assert!(
            block.is_none_or(|block| range.end <= block.address),
            "{variant}: {range:x?}, {block:x?}"
        );
    }
    for layout in free::layouts(memory, maps) {
        let mut last = (Some(0), 0);
        layout.pieces.visit(&mut |piece| {
            assert!(piece.range.start < piece.range.end, "{variant}: {piece:x?}");
            let is_next = piece.arena != last.0 || piece.range.start >= last.1;
            assert!(is_next, "{variant}: {piece:x?}, {last:x?}");
            last = (piece.arena, piece.range.end);
        });
    }
    assert!(began.elapsed() < PATIENCE, "{variant}: {:?}", began.elapsed());
}

/// Words of a process's memory are replaced by others of it, by addresses, by small and by random numbers:
/// with Debian's libraries, and with those of `MEMLEAK_TEST_MIMALLOC`.
#[test]
fn any_damage() {
    let of_debian = [("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"), mimalloc()];
    let of_debian = of_debian.map(|(library, package)| stock(&format!("{LIBRARIES}/{library}"), package));
    let others = std::env::var("MEMLEAK_TEST_MIMALLOC").unwrap_or_default();
    let others = others.split(':').filter(|library| !library.is_empty());
    for library in of_debian.into_iter().chain(others.map(PathBuf::from)) {
        let subject = start(&library, None, "300 plain");
        let mut memory = Damaged::of(&subject);
        check(&memory, &subject.maps, 0);
        let blocks = free::blocks_in_use(&memory, &subject.maps)
            .expect("one is known")
            .blocks;
        assert!(blocks.len() >= subject.told.used.len());
        let places = places(&memory);
        let count = places.len() as u64;
        let pick = |state: &mut u64| places[usize::try_from(random_below(state, count)).expect("64 bits")];
        for variant in 1..=VARIANTS {
            let mut state = variant;
            memory.words.clear();
            for _ in 0..1 << random_below(&mut state, 14) {
                let (at, word) = pick(&mut state);
                let other = match random_below(&mut state, 6) {
                    0 => pick(&mut state).0,
                    1 => pick(&mut state).1,
                    2 => random_below(&mut state, 1 << 12),
                    3 => word ^ 1 << random_below(&mut state, 64),
                    4 => word.wrapping_add(8 * random_below(&mut state, 64)),
                    _ => state,
                };
                memory.words.insert(at, other);
            }
            check(&memory, &subject.maps, variant);
        }
    }
}
