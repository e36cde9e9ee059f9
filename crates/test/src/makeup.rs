//! Sizes, threads and life spans of blocks in JSON reports, and single blocks.

use serde::Deserialize;

use super::amount::Amount;

/// Facts about the blocks of a stack.
#[derive(Clone, Debug, Deserialize)]
pub struct Makeup {
    pub sizes: Vec<SizeClass>,
    pub threads: Vec<ThreadBlocks>,
    pub freed: Freed,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct SizeClass {
    pub smallest: u64,
    pub largest: u64,
    #[serde(flatten)]
    pub amount: Amount,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ThreadBlocks {
    pub name: Option<String>,
    #[serde(flatten)]
    pub amount: Amount,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Freed {
    pub temporary: u64,
    pub by_age: Vec<LifeSpan>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct LifeSpan {
    pub up_to_ns: Option<u64>,
    pub blocks: u64,
}

impl Freed {
    /// Numbers of temporary blocks and of others, these with the bounds of their ages in milliseconds.
    pub fn parts(&self) -> (u64, Vec<(u64, u64)>) {
        let bound = |up_to: Option<u64>| up_to.map_or(u64::MAX, |up_to| up_to / 1_000_000);
        let by_age = self.by_age.iter().map(|span| (bound(span.up_to_ns), span.blocks));
        (self.temporary, by_age.collect())
    }
}

/// Single blocks of a stack.
#[derive(Clone, Debug, Deserialize)]
pub struct Blocks {
    pub listed: Vec<ListedBlock>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ListedBlock {
    pub address: String,
    pub class: Option<String>,
}
