//! Makeup of a stack's blocks: their sizes, the threads that allocated them, and how long freed ones have
//! lived. Pure.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::dictionary::Import;
use super::{AGE_BOUNDS, Amount, TextId};

/// Outstanding blocks of similar size: between two powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeClass {
    /// Requested bytes of the smallest block.
    pub smallest: u64,
    /// Requested bytes of the largest block.
    pub largest: u64,
    /// Amount of these blocks.
    pub amount: Amount,
}

/// Outstanding blocks that threads of one name allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadBlocks {
    /// Name of the thread when it allocated; `None` if it is not known.
    pub name: Option<TextId>,
    /// Amount of these blocks.
    pub amount: Amount,
}

/// Freed blocks by how long they lived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeSpans {
    /// Temporary blocks: their thread freed them before it allocated another, and within the first of
    /// [`AGE_BOUNDS`].
    pub temporary: u64,
    /// Other blocks by age; the classes are those of [`AGE_BOUNDS`].
    pub by_age: [u64; AGE_BOUNDS.len() + 1],
}

impl LifeSpans {
    /// Number of blocks whose life span is known.
    pub fn blocks(&self) -> u64 {
        self.by_age
            .iter()
            .copied()
            .fold(self.temporary, u64::saturating_add)
    }

    /// The classes by age, youngest first: upper bound (none for the last) and blocks.
    pub fn classes(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let bounds = AGE_BOUNDS.into_iter().map(Some).chain([None]);
        bounds.zip(self.by_age)
    }
}

impl std::ops::Add for LifeSpans {
    type Output = Self;

    /// Adds; saturates.
    fn add(mut self, other: Self) -> Self {
        self.temporary = self.temporary.saturating_add(other.temporary);
        for (sum, more) in self.by_age.iter_mut().zip(other.by_age) {
            *sum = sum.saturating_add(more);
        }
        self
    }
}

/// Facts about the blocks of a stack beyond their amounts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Makeup {
    /// Outstanding blocks by size, ascending.
    pub sizes: Vec<SizeClass>,
    /// Outstanding blocks by the name of the thread, most bytes first.
    pub threads: Vec<ThreadBlocks>,
    /// Freed blocks.
    pub freed: LifeSpans,
}

impl Makeup {
    /// True if nothing is known.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty() && self.threads.is_empty() && self.freed.blocks() == 0
    }

    /// Number of outstanding blocks whose size is known.
    pub fn outstanding_blocks(&self) -> u64 {
        let blocks = self.sizes.iter().map(|class| class.amount.blocks);
        blocks.fold(0, u64::saturating_add)
    }

    /// Copies this with the ids of another dictionary.
    #[must_use]
    pub fn renumbered(&self, import: &mut Import<'_>) -> Self {
        let threads = self.threads.iter().map(|thread| ThreadBlocks {
            name: thread.name.map(|name| import.text(name)),
            ..*thread
        });
        Self {
            threads: threads.collect(),
            ..self.clone()
        }
    }

    /// Every id of a text.
    pub fn ids(&self) -> impl Iterator<Item = TextId> {
        self.threads.iter().filter_map(|thread| thread.name)
    }
}
