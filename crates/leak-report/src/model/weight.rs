//! Weight of a recorded block, computed like `bpf/calls/sampling.h`.

use super::{Amount, Estimate, Spread};
use serde::{Deserialize, Serialize};

/// Fraction bits of the fixed-point weight: `WEIGHT_SHIFT` of `bpf/shared.h`.
pub(super) const SHIFT: u32 = 16;
/// Fraction bits and exponent bias of an IEEE 754 single.
const FRACTION_BITS: u32 = 23;
const EXPONENT_BIAS: u32 = 127;

/// Number of blocks that a recorded block stands for, in fixed point; at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Weight(u64);

impl Weight {
    /// Weight of a block that stands only for itself.
    pub const ONE: Self = Self(1 << SHIFT);

    /// Decodes a stored weight, an IEEE 754 single of at least 1.
    pub fn stored(bits: u32) -> Self {
        // 24 bits of fraction, shifted by at most 40, fit in 64.
        let fraction = u64::from(1 << FRACTION_BITS | bits & ((1 << FRACTION_BITS) - 1));
        let exponent = (bits >> FRACTION_BITS).saturating_sub(EXPONENT_BIAS).min(40);
        Self(fraction << exponent >> (FRACTION_BITS - SHIFT))
    }

    /// Converts a number of blocks, at least 1.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and is not below 1"
    )]
    pub fn of_blocks(blocks: f64) -> Self {
        Self((blocks * f64::from(1 << SHIFT)) as u64).max(Self::ONE)
    }

    /// Number of blocks.
    #[allow(clippy::cast_precision_loss, reason = "it came from 24 bits")]
    pub fn blocks(self) -> f64 {
        self.0 as f64 / f64::from(1 << SHIFT)
    }

    /// Estimate for a block of `size` bytes; the same as the kernel's for totals (`weighted_bytes` in
    /// `bpf/calls/sampling.h`, `add_variance` in `bpf/store/blocks.h`).
    pub fn of(self, size: u64) -> WeightedAmount {
        let weight = u128::from(self.0);
        let bytes = ((u128::from(size) * weight) + (1 << (SHIFT - 1))) >> SHIFT;
        let bytes = bytes.min(u64::MAX.into());
        WeightedAmount(Estimate {
            amount: Amount {
                bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
                blocks: self.0,
            },
            // A block was chosen with probability 1/w, so that its variance is w(w - 1) times the square of
            // its value.
            spread: Spread {
                recorded: 1,
                bytes: bytes * bytes.saturating_sub(size.into()),
                blocks: weight * weight.saturating_sub(1 << SHIFT),
            },
        })
    }
}

/// Estimate whose blocks are still in fixed point: a sum is rounded once, like the kernel's totals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightedAmount(Estimate);

impl std::ops::Add for WeightedAmount {
    type Output = Self;

    /// Adds; saturates.
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl WeightedAmount {
    /// The amount without its variance.
    pub fn sum(self) -> WeightedSum {
        WeightedSum(self.0.amount)
    }

    /// Rounds to the nearest whole number of blocks.
    pub fn rounded(self) -> Estimate {
        let Estimate { amount, spread } = self.0;
        let blocks = rounded(amount.blocks);
        Estimate {
            amount: Amount { blocks, ..amount },
            spread,
        }
    }
}

/// Amount whose blocks are still in fixed point, without its variance: a quarter of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightedSum(Amount);

impl std::ops::Add for WeightedSum {
    type Output = Self;

    /// Adds; saturates.
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl WeightedSum {
    /// Rounds to the nearest whole number of blocks.
    pub fn rounded(self) -> Amount {
        Amount {
            blocks: rounded(self.0.blocks),
            ..self.0
        }
    }
}

/// Rounds a number of blocks in fixed point.
fn rounded(blocks: u64) -> u64 {
    blocks.saturating_add(1 << (SHIFT - 1)) >> SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The variance is w(w - 1)v^2 for bytes and w(w - 1) for blocks, and 0 for a block that stands only for
    /// itself.
    #[test]
    fn spreads() {
        let spread = |weight: u32, size| Weight::stored(weight).of(size).rounded().spread;
        let of_three = spread(3f32.to_bits(), 10);
        assert_eq!((of_three.recorded, of_three.bytes), (1, 600));
        assert_eq!(of_three.blocks, 6 << 32);
        let exact = spread(1f32.to_bits(), u64::MAX);
        assert_eq!((exact.bytes, exact.blocks), (0, 0));
        // The square of saturated bytes still fits.
        let _ = spread(u32::MAX, u64::MAX);
    }

    /// A block of weight 1 counts as itself, whatever its size; one of greater weight counts that many times;
    /// fractions of blocks add up.
    #[test]
    fn weights() {
        let one = Weight::stored(1f32.to_bits());
        for size in [0, 1, 40, u64::MAX] {
            assert_eq!(
                one.of(size).rounded().amount,
                Amount {
                    bytes: size,
                    blocks: 1
                }
            );
        }
        assert!((Weight::stored(1.5f32.to_bits()).blocks() - 1.5).abs() < f64::EPSILON);
        let half_more = Weight::stored(1.5f32.to_bits()).of(10);
        assert_eq!(half_more.rounded().amount, Amount { bytes: 15, blocks: 2 });
        assert_eq!(
            (half_more + half_more).rounded().amount,
            Amount { bytes: 30, blocks: 3 }
        );
        let many = Weight::stored(1e6f32.to_bits()).of(3);
        assert_eq!(
            many.rounded().amount,
            Amount {
                bytes: 3_000_000,
                blocks: 1_000_000
            }
        );
        for bits in [0, u32::MAX] {
            let _ = Weight::stored(bits).of(u64::MAX).rounded();
        }
    }
}
