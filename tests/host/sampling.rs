//! The choices that probes make when they sample, compiled for the host: they agree with floating point and
//! have the right statistics. Random numbers are the test's own, so that a case that fails fails again.

#![allow(unsafe_code, reason = "calls the C side through a shared object")]

use std::ffi::c_void;

use libloading::{Library, Symbol};
use memleak_test::compile::compile_for_host;
use memleak_test::random::Random;

/// Values of `enum sampling`.
const CALLS: u32 = 1;
const BYTES: u32 = 2;

const WEIGHT_UNIT: f64 = 65536.0;

type NextRandom = unsafe extern "C" fn(*mut c_void) -> u32;
type SampleGoverned = unsafe extern "C" fn(*const u64, NextRandom, *mut c_void, *const u64, *mut u32, u64);
type Sample = unsafe extern "C" fn(u32, u64, NextRandom, *mut c_void, *const u64, *mut u32, u64);

struct Host(Library);

impl Host {
    /// `test` names the object: tests run side by side.
    fn build(test: &str) -> Self {
        let flags = ["-Wno-unused-function", "-Wno-pass-failed"];
        let object = compile_for_host("sampling.c", &format!("host-sampling-{test}"), &flags);
        // SAFETY: the object is the one just built; it has no initialisers.
        Self(unsafe { Library::new(&object) }.expect("the shared object loads"))
    }

    /// The stored weights of calls for `sizes`, made by one thread; 0 for those that are not chosen.
    fn sample(&self, method: u32, interval: u64, random: &mut Random, sizes: &[u64]) -> Vec<u32> {
        let mut weights = vec![0; sizes.len()];
        // SAFETY: the symbol has this type (tests/host_bpf/sampling.c), the arrays have as many elements, and
        // the context is what `next_random` expects.
        unsafe {
            let sample: Symbol<'_, Sample> = self.0.get(b"host_sample\0").expect("it is exported");
            let context = std::ptr::from_mut(random).cast();
            let count = sizes.len() as u64;
            sample(
                method,
                interval,
                next_random,
                context,
                sizes.as_ptr(),
                weights.as_mut_ptr(),
                count,
            );
        }
        weights
    }

    /// The stored weights of calls for `sizes`, sampled by bytes at a mean distance that changes: `means` has
    /// that of each call.
    fn sample_governed(&self, means: &[u64], random: &mut Random, sizes: &[u64]) -> Vec<u32> {
        assert_eq!(means.len(), sizes.len());
        let mut weights = vec![0; sizes.len()];
        // SAFETY: as in `sample`.
        unsafe {
            let sample: Symbol<'_, SampleGoverned> =
                self.0.get(b"host_sample_governed\0").expect("it is exported");
            let context = std::ptr::from_mut(random).cast();
            let count = sizes.len() as u64;
            sample(
                means.as_ptr(),
                next_random,
                context,
                sizes.as_ptr(),
                weights.as_mut_ptr(),
                count,
            );
        }
        weights
    }

    fn of_two(&self, name: &[u8], a: u64, b: u64) -> u64 {
        // SAFETY: all functions called by this have this type in tests/host_bpf/sampling.c.
        unsafe {
            let function: Symbol<'_, unsafe extern "C" fn(u64, u64) -> u64> =
                self.0.get(name).expect("it is exported");
            function(a, b)
        }
    }

    fn gap(&self, mean: u64, random: u32) -> u64 {
        self.of_two(b"host_gap\0", mean, random.into())
    }

    fn weight(&self, size: u64, mean: u64) -> u64 {
        self.of_two(b"host_weight\0", size, mean)
    }

    /// A weight as it comes back from storage.
    fn stored(&self, weight: u64) -> (u32, u64) {
        let stored = self.of_two(b"host_store_weight\0", weight, 0) & u64::from(u32::MAX);
        let loaded = self.of_two(b"host_load_weight\0", stored, 0);
        (u32::try_from(stored).expect("32 bits"), loaded)
    }
}

unsafe extern "C" fn next_random(context: *mut c_void) -> u32 {
    // SAFETY: the context is the `Random` that `Host::sample` passes and keeps borrowed.
    let random = unsafe { &mut *context.cast::<Random>() };
    u32::try_from(random.word() >> 32).expect("32 bits")
}

#[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
fn real(number: u64) -> f64 {
    number as f64
}

/// The weight is the inverse of the probability to within 2e-5, for all sizes and means.
#[test]
fn weights_are_inverse_probabilities() {
    let host = Host::build("weights");
    let mut random = Random::new(1);
    for _ in 0..200_000 {
        let size = 1 + (random.word() >> (17 + random.below(47)));
        let mean = 1 + (random.word() >> (24 + random.below(40)));
        let expected = 1.0 / -(-real(size) / real(mean)).exp_m1();
        let weight = real(host.weight(size, mean)) / WEIGHT_UNIT;
        assert!(
            ((weight - expected) / expected).abs() < 2e-5,
            "{size} of {mean}: {weight}, not {expected}"
        );
    }
}

/// Storing a weight loses less than a part in a million, agrees with an IEEE single, and gives the same each
/// time.
#[test]
fn weights_are_stored() {
    let host = Host::build("stored");
    let mut random = Random::new(2);
    for _ in 0..100_000 {
        let weight = (1 << 16) + (random.word() >> (9 + random.below(47)));
        let (stored, loaded) = host.stored(weight);
        let single = f64::from(f32::from_bits(stored)) * WEIGHT_UNIT;
        assert!(
            (single - real(loaded)).abs() <= 1.0,
            "{weight}: {single}, {loaded}"
        );
        assert!(
            real(weight.abs_diff(loaded)) <= real(weight) / 1e6,
            "{weight}: {loaded}"
        );
        assert_eq!(host.stored(loaded), (stored, loaded), "{weight}");
    }
    assert_eq!(host.stored(1 << 16), (1.0_f32.to_bits(), 1 << 16));
}

/// The bytes that a block stands for are rounded to the nearest: truncation would add up over many small
/// blocks.
#[test]
fn weighted_bytes_are_rounded() {
    let host = Host::build("weighted");
    let mut random = Random::new(7);
    for _ in 0..100_000 {
        let size = random.word() >> (24 + random.below(40));
        let weight = (1 << 16) + random.below(1 << 24);
        let bytes = real(host.of_two(b"host_weighted_bytes\0", size, weight));
        let exact = real(size) * real(weight) / WEIGHT_UNIT;
        assert!(
            (bytes - exact).abs() <= 0.5 + exact / 1e15,
            "{size} by {weight}: {bytes}, not {exact}"
        );
    }
}

/// Distances from one chosen byte to the next follow the exponential distribution.
#[test]
fn gaps_are_exponential() {
    let host = Host::build("gaps");
    for mean in [1_u64, 1000, 512 << 10, 1 << 40] {
        for random in [0_u32, 1, 2, 77, 1 << 16, 1 << 31, u32::MAX - 1, u32::MAX] {
            let even = (f64::from(random) + 1.0) / 4_294_967_296.0;
            let expected = -even.ln() * real(mean);
            let gap = real(host.gap(mean, random));
            assert!(
                (gap - expected).abs() <= 1.0 + real(mean) * 2e-7 + expected * 2e-7,
                "{mean}, {random}: {gap}, not {expected}"
            );
        }
    }
}

/// One of each N calls is chosen, at any place among them equally.
#[test]
fn one_of_each_n_calls() {
    const N: usize = 10;
    const ROUNDS: usize = 20_000;
    let host = Host::build("calls");
    let weights = host.sample(CALLS, N as u64, &mut Random::new(3), &vec![8; N * ROUNDS]);
    let mut places = [0_usize; N];
    for round in weights.chunks(N) {
        let chosen: Vec<_> = (0..N).filter(|&place| round[place] != 0).collect();
        let [place] = chosen[..] else {
            panic!("{chosen:?} of a round")
        };
        places[place] += 1;
        assert_eq!(round[place], 10.0_f32.to_bits());
    }
    // Five standard deviations of a binomial distribution.
    let mean = ROUNDS / N;
    assert!(
        places.iter().all(|count| count.abs_diff(mean) < 213),
        "{places:?}"
    );
}

/// Number of runs of a test's calls.
const RUNS: u32 = 3000;

/// Returns sizes: many small, some of a few KiB, few large; and empty ones, which count as one byte when they
/// are chosen.
fn mixed_sizes() -> Vec<u64> {
    let size = |number| match number % 100 {
        0 => 100_000,
        1..10 => 2000,
        10 => 4096,
        _ => 16 + number % 64,
    };
    (0..2000_u64).map(size).collect()
}

/// Checks that sums of weights estimate bytes and blocks without bias, and that their variance is as stated:
/// over many runs, the mean is the truth to within four standard errors of the mean, and the mean of the
/// stated variances is the real variance of the estimates.
fn check_estimates(mut sample: impl FnMut(&[u64]) -> Vec<u32>) {
    let sizes = mixed_sizes();
    let truth = [real(sizes.iter().sum()), real(sizes.len() as u64)];
    let mut estimates = Vec::new();
    let mut stated = [0.0; 2];
    for _ in 0..RUNS {
        let weights = sample(&sizes);
        let mut sums = [0.0; 2];
        for (&size, weight) in sizes.iter().zip(weights).filter(|&(_, weight)| weight != 0) {
            let weight = f64::from(f32::from_bits(weight));
            for (sum, (variance, value)) in sums.iter_mut().zip(stated.iter_mut().zip([real(size), 1.0])) {
                *sum += weight * value;
                *variance += weight * (weight - 1.0) * value * value / f64::from(RUNS);
            }
        }
        estimates.push(sums);
    }
    for measure in 0..2 {
        let values: Vec<f64> = estimates.iter().map(|sums| sums[measure]).collect();
        let mean = values.iter().sum::<f64>() / f64::from(RUNS);
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / f64::from(RUNS - 1);
        let off = (mean - truth[measure]) / (variance / f64::from(RUNS)).sqrt();
        assert!(
            off.abs() < 4.0,
            "{measure}: {mean}, not {}: {off} standard errors",
            truth[measure]
        );
        let ratio = variance / stated[measure];
        assert!(
            (0.9..1.1).contains(&ratio),
            "{measure}: variance {variance}, stated {}",
            stated[measure]
        );
    }
}

#[test]
fn estimates_by_bytes() {
    let (host, mut random) = (Host::build("bytes"), Random::new(4));
    check_estimates(|sizes| host.sample(BYTES, 4096, &mut random, sizes));
}

/// Estimates stay unbiased where the distance changes while calls are made, up and down, by little and by
/// much, often and seldom. The rest of a distance when it changes must not matter: kept, it would be of the
/// wrong length.
#[test]
fn estimates_at_changing_distances() {
    let (host, mut random) = (Host::build("governed"), Random::new(5));
    for every in [1, 7, 300] {
        let distances = [65_536, 64, 1, 4096, 5000, 300_000, 512];
        let means: Vec<u64> = (0..2000)
            .map(|number| distances[number / every % distances.len()])
            .collect();
        check_estimates(|sizes| host.sample_governed(&means, &mut random, sizes));
    }
}

/// At a distance of 1, every call is recorded and stands for itself alone, an empty one too.
#[test]
fn distance_of_one_records_every_call() {
    let host = Host::build("all");
    let sizes = [0, 1, 2, 16, 31, 4096, 1 << 40];
    for mean in [0, 1] {
        let weights = host.sample_governed(&[mean; 7], &mut Random::new(6), &sizes);
        assert_eq!(weights, [1.0_f32.to_bits(); 7]);
    }
}
