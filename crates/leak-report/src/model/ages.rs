//! Histogram of block ages in seven wide classes. Pure.

use std::ops::Add;
use std::time::Duration;

use super::{Estimate, WeightedAmount};
use serde::{Deserialize, Serialize};

/// Upper bounds of the age classes, exclusive; the last class has none.
pub const AGE_BOUNDS: [Duration; 6] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(600),
    Duration::from_secs(3600),
];

/// Blocks by age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ages<A = Estimate>([A; AGE_BOUNDS.len() + 1]);

impl<A: Copy + Add<Output = A>> Ages<A> {
    /// Counts `amount` of this age.
    pub fn count(&mut self, age: Duration, amount: A) {
        let class = AGE_BOUNDS.partition_point(|&bound| bound <= age);
        if let Some(known) = self.0.get_mut(class) {
            *known = *known + amount;
        }
    }

    /// Creates a histogram from the amounts of the classes, youngest first.
    pub fn of_classes(classes: [A; AGE_BOUNDS.len() + 1]) -> Self {
        Self(classes)
    }

    /// Converts the amount of each class.
    pub fn map<B>(self, other: impl FnMut(A) -> B) -> Ages<B> {
        Ages(self.0.map(other))
    }

    /// The classes, youngest first: upper bound (none for the last) and blocks.
    pub fn classes(&self) -> impl Iterator<Item = (Option<Duration>, A)> {
        let bounds = AGE_BOUNDS.into_iter().map(Some).chain([None]);
        bounds.zip(self.0)
    }
}

impl<A: Copy + Add<Output = A>> Add for Ages<A> {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        for (known, amount) in self.0.iter_mut().zip(other.0) {
            *known = *known + amount;
        }
        self
    }
}

/// Outstanding blocks of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackBlocks<A = Estimate> {
    /// Blocks younger than `--older`.
    pub young: A,
    /// Blocks at least as old as `--older`.
    pub old: A,
    /// Young and old blocks by age.
    pub ages: Ages<A>,
}

impl Add for StackBlocks {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            young: self.young + other.young,
            old: self.old + other.old,
            ages: self.ages + other.ages,
        }
    }
}

impl StackBlocks<WeightedAmount> {
    /// Counts a block; it is young if its age is below `older`.
    pub fn count(&mut self, age: Duration, older: Duration, amount: WeightedAmount) {
        if age < older {
            self.young = self.young + amount;
        } else {
            self.old = self.old + amount;
        }
        self.ages.count(age, amount);
    }

    /// Rounds amounts to whole numbers of blocks.
    pub fn rounded(&self) -> StackBlocks {
        StackBlocks {
            young: self.young.rounded(),
            old: self.old.rounded(),
            ages: self.ages.map(WeightedAmount::rounded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Amount;

    const ONE: Amount = Amount { bytes: 8, blocks: 1 };

    /// A block is in the first class whose bound is above its age; adding histograms adds their classes.
    #[test]
    fn classes_are_half_open() {
        let class_of = |age| {
            let mut ages = Ages::default();
            ages.count(age, ONE);
            ages.classes().position(|(_, amount)| amount == ONE)
        };
        for (class, bound) in AGE_BOUNDS.into_iter().enumerate() {
            assert_eq!(class_of(bound - Duration::from_nanos(1)), Some(class));
            assert_eq!(class_of(bound), Some(class + 1));
        }
        assert_eq!(class_of(Duration::ZERO), Some(0));
        assert_eq!(class_of(Duration::MAX), Some(AGE_BOUNDS.len()));
        let mut ages = Ages::default();
        ages.count(Duration::ZERO, ONE);
        assert_eq!(
            (ages + ages).classes().next(),
            Some((Some(AGE_BOUNDS[0]), ONE + ONE))
        );
    }
}
