//! Choice of the pages whose faults are recorded (`-s`): one of N, by a hash of the page's number. The kernel
//! side chooses in the same way (`is_chosen_page` in `bpf/process/faults.h`).
//!
//! Pages are chosen and not faults, so that all faults of a chosen page are seen: else the second fault of a
//! page, which is not growth, would look like the first of another.

/// Chosen pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Number of pages of which one is chosen; 1 for all.
    pub interval: u64,
    /// Random number.
    pub seed: u64,
}

impl Choice {
    /// Returns whether a page, by its number, is chosen.
    pub fn is_chosen(self, page: u64) -> bool {
        self.interval <= 1 || (mix(self.seed, page) & 0xffff_ffff).wrapping_mul(self.interval) >> 32 == 0
    }
}

/// Hash of `bpf/hash.h`.
fn mix(hash: u64, value: u64) -> u64 {
    let hash = (hash ^ value).wrapping_mul(0x9fb2_1c65_1e98_df25);
    hash ^ hash >> 29
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of N pages is chosen, of consecutive ones and of those far apart, whatever the seed.
    #[test]
    fn one_of_n() {
        for seed in [0, 1, 0x1234_5678_9abc_def0] {
            for interval in [2, 16, 1000] {
                for step in [1, 512, 1 << 18] {
                    let choice = Choice { interval, seed };
                    let pages = (0..100_000_u64).map(|number| 0x7_f000_0000 + number * step);
                    let chosen = pages.filter(|&page| choice.is_chosen(page)).count() as f64;
                    let expected = 100_000.0 / interval as f64;
                    let spread = 6.0 * expected.sqrt();
                    assert!(
                        (chosen - expected).abs() < spread,
                        "{choice:?}, {step}: {chosen} of {expected}"
                    );
                }
            }
        }
        let all = Choice { interval: 1, seed: 7 };
        assert!((0..100).all(|page| all.is_chosen(page)));
    }
}
