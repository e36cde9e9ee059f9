//! Amounts of memory, and the variance of estimated ones.

use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};
/// Number of blocks, and the bytes requested for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Amount {
    /// Requested bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

impl Amount {
    /// Returns `self - other`, not below zero.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            blocks: self.blocks.saturating_sub(other.blocks),
        }
    }
}

impl Add for Amount {
    type Output = Self;

    /// Adds; saturates.
    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            blocks: self.blocks.saturating_add(other.blocks),
        }
    }
}

impl Sum for Amount {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::default(), Add::add)
    }
}

/// Variance of an estimated [`Amount`], and its sample size. All zero if the amount is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spread {
    /// Recorded blocks, which stand for all.
    pub recorded: u64,
    /// Variance of the bytes, in bytes squared.
    pub bytes: u128,
    /// Variance of the number of blocks, in units of 2⁻³².
    pub blocks: u128,
}

/// Standard error of an estimate: the error is below it in two of three cases, below 1.96 times it in 19 of
/// 20.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StandardError {
    /// Standard error of the bytes.
    pub bytes: f64,
    /// Standard error of the number of blocks.
    pub blocks: f64,
}

impl Spread {
    /// Returns the square root of the variance, in bytes and blocks.
    #[allow(
        clippy::cast_precision_loss,
        reason = "an error needs no more than a few digits"
    )]
    pub fn standard_error(self) -> StandardError {
        const UNITS_PER_BLOCK: f64 = 65536.0;
        StandardError {
            bytes: (self.bytes as f64).sqrt(),
            blocks: (self.blocks as f64).sqrt() / UNITS_PER_BLOCK,
        }
    }

    /// Variance of `self - other`, where the blocks of `other` are all among those of `self`: with `self` of
    /// all allocated blocks and `other` of the freed ones, the variance of what is outstanding.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self {
            recorded: self.recorded.saturating_sub(other.recorded),
            bytes: self.bytes.saturating_sub(other.bytes),
            blocks: self.blocks.saturating_sub(other.blocks),
        }
    }
}

impl Add for Spread {
    type Output = Self;

    /// Variance of a sum of independent estimates; saturates.
    fn add(self, other: Self) -> Self {
        Self {
            recorded: self.recorded.saturating_add(other.recorded),
            bytes: self.bytes.saturating_add(other.bytes),
            blocks: self.blocks.saturating_add(other.blocks),
        }
    }
}

impl Sum for Spread {
    fn sum<I: Iterator<Item = Self>>(spreads: I) -> Self {
        spreads.fold(Self::default(), Add::add)
    }
}

/// Amount with its variance if it is estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Estimate {
    /// Exact or estimated amount.
    pub amount: Amount,
    /// Variance of the amount.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spread: Spread,
}

/// True for the default value, which a recording omits: exact amounts have no spread.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Estimate {
    /// Returns `self - other`, not below zero; the blocks of `other` must all be among those of `self`.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self {
            amount: self.amount.less(other.amount),
            spread: self.spread.less(other.spread),
        }
    }

    /// Estimate of a part of the blocks, whose amount is `part`. Blocks of one stack are much alike, so the
    /// variance is assumed to be in proportion.
    #[must_use]
    pub fn part(self, part: Amount) -> Self {
        let Self { amount, spread } = self;
        Self {
            amount: part,
            spread: Spread {
                recorded: u64::try_from(share(spread.recorded.into(), part.blocks, amount.blocks))
                    .unwrap_or(u64::MAX),
                bytes: share(spread.bytes, part.bytes, amount.bytes),
                blocks: share(spread.blocks, part.blocks, amount.blocks),
            },
        }
    }
}

/// Computes `number * part / whole`, at most `number`.
fn share(number: u128, part: u64, whole: u64) -> u128 {
    if part >= whole {
        return number;
    }
    let (part, whole) = (u128::from(part), u128::from(whole));
    match number.checked_mul(part) {
        Some(product) => product / whole,
        None => number / whole * part,
    }
}

impl From<Amount> for Estimate {
    /// Makes an exact estimate, with zero variance.
    fn from(amount: Amount) -> Self {
        Self {
            amount,
            spread: Spread::default(),
        }
    }
}

impl Add for Estimate {
    type Output = Self;

    /// Adds independent estimates; saturates.
    fn add(self, other: Self) -> Self {
        Self {
            amount: self.amount + other.amount,
            spread: self.spread + other.spread,
        }
    }
}

impl Sum for Estimate {
    fn sum<I: Iterator<Item = Self>>(estimates: I) -> Self {
        estimates.fold(Self::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part has its share of the variance, without overflow, and never more than the whole.
    #[test]
    fn parts() {
        let whole = |bytes| Estimate {
            amount: Amount {
                bytes: 400,
                blocks: 4,
            },
            spread: Spread {
                recorded: 2,
                bytes,
                blocks: 8 << 32,
            },
        };
        let half = whole(1000).part(Amount {
            bytes: 100,
            blocks: 2,
        });
        assert_eq!(
            (half.amount.bytes, half.spread.bytes, half.spread.recorded),
            (100, 250, 1)
        );
        assert_eq!(half.spread.blocks, 4 << 32);
        let large = whole(u128::MAX).part(Amount {
            bytes: 399,
            blocks: 4,
        });
        assert!(large.spread.bytes < u128::MAX && large.spread.bytes > u128::MAX / 2);
        let more = whole(1000).part(Amount {
            bytes: u64::MAX,
            blocks: 9,
        });
        assert_eq!(more.spread, whole(1000).spread);
        assert_eq!(Estimate::default().part(Amount::default()), Estimate::default());
    }

    /// The standard error is the root of the variance, in whole bytes and blocks; freed blocks do not
    /// contribute to that of outstanding ones.
    #[test]
    fn standard_errors() {
        let allocated = Spread {
            recorded: 5,
            bytes: 10_000,
            blocks: 13 << 32,
        };
        let freed = Spread {
            recorded: 3,
            bytes: 3_600,
            blocks: 4 << 32,
        };
        let outstanding = allocated.less(freed);
        assert_eq!(outstanding.recorded, 2);
        let StandardError { bytes, blocks } = outstanding.standard_error();
        assert!((bytes - 80.0).abs() < 1e-9, "{bytes}");
        assert!((blocks - 3.0).abs() < 1e-9, "{blocks}");
    }
}
