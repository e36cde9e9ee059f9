//! Choices without a tracer: the blocks that would be announced.

use super::*;

/// Allocates these sizes in turn, as the fast path does. Returns for each distance the bytes that the chosen
/// blocks stand for, divided by the allocated bytes, and the number of chosen blocks.
fn simulate(sizes: &[usize], rounds: usize, seed: u64) -> [(f64, u32); 3] {
    let mut thread = Thread {
        left: 0,
        generator: Generator(seed),
        epoch: EPOCH.load(Relaxed),
    };
    thread.left = thread.generator.gap(BASE_DISTANCE);
    let mut sums = [(0.0, 0); 3];
    let mut total = 0.0;
    for round in 0..rounds {
        let size = sizes[round % sizes.len()];
        total += size as f64;
        let (rest, is_due) = thread.left.overflowing_sub(size as u64);
        thread.left = rest;
        if !is_due {
            continue;
        }
        thread.left = thread.generator.gap(BASE_DISTANCE);
        let chosen = choose_for(thread.generator.uniform(), size, |_| true);
        for (number, announcement) in ANNOUNCEMENTS.iter().enumerate() {
            if chosen & 1 << number != 0 {
                sums[number].0 += weighted(size, announcement.distance) as f64;
                sums[number].1 += 1;
            }
        }
    }
    sums.map(|(sum, count)| (sum / total, count))
}

/// Chosen blocks stand for all allocated bytes, within four standard errors, whatever the sizes and the
/// distance.
#[test]
fn estimates_are_unbiased() {
    let cases: [&[usize]; 4] = [&[64], &[16, 4096, 100, 700], &[100_000], &[24, 3_000_000, 512]];
    for (case, sizes) in cases.into_iter().enumerate() {
        let bytes: usize = sizes.iter().sum();
        let rounds = (40_usize << 30) / bytes * sizes.len();
        let rounds = rounds.min(30_000_000);
        for (number, (ratio, count)) in simulate(sizes, rounds, 11 + case as u64).into_iter().enumerate() {
            let error = 4.0 / f64::from(count).sqrt();
            assert!(
                (ratio - 1.0).abs() < error,
                "{sizes:?}, probe {number}: {ratio}, {count} blocks"
            );
        }
    }
}

/// A block that is chosen at a large distance is chosen at every smaller one.
#[test]
fn choices_are_nested() {
    let mut generator = Generator(3);
    for size in [1, 64, 10_000, 1 << 20, 1 << 30] {
        for _ in 0..1000 {
            let chosen = choose_for(generator.uniform(), size, |_| true);
            assert!([1, 3, 7].contains(&chosen), "{chosen:b}");
        }
    }
}

/// Without a tracer nothing is chosen. A failed allocation adds its bytes back.
#[test]
fn without_anybody() {
    let mut thread = Thread::NEW;
    thread.left = thread.left.wrapping_sub(500);
    allocated(&mut thread, 0, 500);
    assert_eq!(thread.left, 0);
    assert_eq!(choose(0.001, 1 << 20), 0);
    assert!(!is_active() && !must_tell_free(4096));
    // The first allocation draws a gap, and is not chosen just because it is the first.
    let mut chosen = 0;
    for _ in 0..1000 {
        let mut thread = Thread::NEW;
        thread.left = thread.left.wrapping_sub(64);
        allocated(&mut thread, 4096, 64);
        chosen += usize::from(thread.left > 64 * 65_536);
        assert_ne!(thread.epoch, 0);
    }
    assert_eq!(chosen, 0);
}

/// Threads draw different numbers, even if their state is at the same address, and so does a forked child.
#[test]
fn seeds_differ() {
    let mut thread = Thread::NEW;
    seed(&mut thread);
    let first = thread.generator.0;
    thread = Thread::NEW;
    seed(&mut thread);
    assert_ne!(thread.generator.0, first);
    let before = EPOCH.load(Relaxed);
    has_forked(4711);
    assert_ne!(EPOCH.load(Relaxed), before);
    assert_ne!(EPOCH.load(Relaxed), 0);
}
