//! How many blocks a recorded one stands for, as `bpf/calls/sampling.h` computes with it.

use super::{Amount, Estimate, Spread};
use serde::{Deserialize, Serialize};

/// Bits behind the point: `WEIGHT_SHIFT` of `bpf/shared.h`.
pub(super) const SHIFT: u32 = 16;
/// Bits of the fraction of an IEEE 754 single, and what its exponent is raised by.
const FRACTION_BITS: u32 = 23;
const EXPONENT_BIAS: u32 = 127;

/// A weight; at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Weight(u64);

impl Weight {
    /// That of a block that stands for itself alone.
    pub const ONE: Self = Self(1 << SHIFT);

    /// From how it is stored with a block: an IEEE 754 single, at least 1.
    pub fn stored(bits: u32) -> Self {
        let fraction = u64::from(1 << FRACTION_BITS | bits & ((1 << FRACTION_BITS) - 1));
        let exponent = (bits >> FRACTION_BITS).saturating_sub(EXPONENT_BIAS).min(40);
        Self(fraction << exponent >> (FRACTION_BITS - SHIFT))
    }

    /// That of a block that stands for so many; at least 1.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "saturates, and is not below 1"
    )]
    pub fn of_blocks(blocks: f64) -> Self {
        Self((blocks * f64::from(1 << SHIFT)) as u64).max(Self::ONE)
    }

    /// As a number of blocks.
    #[allow(clippy::cast_precision_loss, reason = "it came from 24 bits")]
    pub fn blocks(self) -> f64 {
        self.0 as f64 / f64::from(1 << SHIFT)
    }

    /// What a block of `size` stands for, and how far that can be off: the same estimate as that of the totals
    /// (`weighted_bytes` in `bpf/calls/sampling.h`, `add_variance` in `bpf/store/blocks.h`).
    pub fn of(self, size: u64) -> WeightedAmount {
        let weight = u128::from(self.0);
        let bytes = ((u128::from(size) * weight) + (1 << (SHIFT - 1))) >> SHIFT;
        let bytes = bytes.min(u64::MAX.into());
        WeightedAmount(Estimate {
            amount: Amount {
                bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
                blocks: self.0,
            },
            spread: Spread {
                recorded: 1,
                bytes: bytes * bytes.saturating_sub(size.into()),
                blocks: weight * weight.saturating_sub(1 << SHIFT),
            },
        })
    }
}

/// An amount whose blocks are not rounded yet: a sum of many is rounded once, as the kernel's totals are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightedAmount(Estimate);

impl std::ops::Add for WeightedAmount {
    type Output = Self;

    /// Saturates.
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl WeightedAmount {
    /// With the nearest whole number of blocks.
    pub fn rounded(self) -> Estimate {
        let Estimate { amount, spread } = self.0;
        let blocks = amount.blocks.saturating_add(1 << (SHIFT - 1)) >> SHIFT;
        Estimate {
            amount: Amount { blocks, ..amount },
            spread,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a block says of the others: w(w - 1)v^2 for its bytes, w(w - 1) for its number; nothing, if it stands for
    /// itself alone.
    #[test]
    fn spreads() {
        let spread = |weight: u32, size| Weight::stored(weight).of(size).rounded().spread;
        let of_three = spread(3f32.to_bits(), 10);
        assert_eq!((of_three.recorded, of_three.bytes), (1, 600));
        assert_eq!(of_three.blocks, 6 << 32);
        let exact = spread(1f32.to_bits(), u64::MAX);
        assert_eq!((exact.bytes, exact.blocks), (0, 0));
        // Saturated bytes times saturated bytes still fit.
        let _ = spread(u32::MAX, u64::MAX);
    }

    /// A block that stands for itself alone is what it is, whatever its size; one that stands for more is as many, and
    /// parts of blocks add up.
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
