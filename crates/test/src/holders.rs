//! Holders of blocks in JSON reports.

use serde::Deserialize;

use super::amount::Amount;

#[derive(Debug, Deserialize)]
pub struct Held {
    pub by: Vec<Holder>,
    pub others: Amount,
    pub retained: Option<Amount>,
    pub classes: Vec<Class>,
    /// `None` with a verdict.
    pub looked_at: Option<LookedAt>,
}

#[derive(Debug, Deserialize)]
pub struct Holder {
    pub bytes: u64,
    pub blocks: u64,
    pub root: Root,
    pub via: Vec<Step>,
    pub cut: bool,
}

#[derive(Debug, Deserialize)]
pub struct Root {
    pub kind: String,
    pub object: Option<String>,
    pub section: Option<String>,
    pub symbol: Option<String>,
    pub offset: u64,
    pub file: Option<String>,
    pub line: Option<u64>,
    pub thread: Option<Thread>,
}

#[derive(Debug, Deserialize)]
pub struct Thread {
    pub tid: u32,
    pub name: String,
}

#[derive(Debug, Deserialize)]
pub struct Step {
    pub site: Option<String>,
    pub allocator: String,
    pub symbol: Option<String>,
    pub repeats: bool,
}

#[derive(Debug, Deserialize)]
pub struct Class {
    pub name: String,
    pub bytes: u64,
    pub blocks: u64,
}

/// Blocks that were looked at for their classes.
#[derive(Debug, Deserialize)]
pub struct LookedAt {
    pub blocks: u64,
    pub without_class: u64,
    pub of: u64,
}
