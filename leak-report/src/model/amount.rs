//! Amounts of memory, and how far an estimated one can be off.

use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};
/// A number of blocks and the bytes that were asked for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Amount {
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

impl Amount {
    /// `self - other`, not below zero.
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

    /// Saturates.
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

/// What an estimated [`Amount`] rests on. All zero for one that is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Spread {
    /// Blocks that were recorded and stand for all.
    pub recorded: u64,
    /// The variance of the bytes, in bytes squared.
    pub bytes: u128,
    /// The variance of the number of blocks, in units of 2⁻³².
    pub blocks: u128,
}

/// How far an estimate is off, typically: in two of three cases it is less, in 19 of 20 less than 1.96 times as much.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StandardError {
    /// Bytes.
    pub bytes: f64,
    /// Blocks.
    pub blocks: f64,
}

impl Spread {
    /// The standard error.
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

    /// That of a difference whose second part is wholly in the first: of what is outstanding, from that of what was
    /// allocated and of what was freed of it.
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

    /// That of a sum of estimates that are independent of one another. Saturates.
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

/// An amount and, if it is estimated, how far it can be off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Estimate {
    /// The amount.
    pub amount: Amount,
    /// How far it can be off.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spread: Spread,
}

/// True for what a recording leaves out: exact amounts have no spread.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Estimate {
    /// `self - other`, not below zero, where `other` is wholly in `self`.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self {
            amount: self.amount.less(other.amount),
            spread: self.spread.less(other.spread),
        }
    }
}

impl From<Amount> for Estimate {
    /// One that is exact.
    fn from(amount: Amount) -> Self {
        Self {
            amount,
            spread: Spread::default(),
        }
    }
}

impl Add for Estimate {
    type Output = Self;

    /// Of estimates that are independent of one another. Saturates.
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

    /// The standard error is the root of the variance, in whole bytes and blocks; what was freed has no part in what
    /// is outstanding.
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
