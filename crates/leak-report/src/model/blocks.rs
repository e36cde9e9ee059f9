//! Lists of single blocks (`-a`).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use unwind_tables::addr::Avma;

use super::amount::is_default;
use super::dictionary::Import;
use super::{TextId, Weight};

/// Maximum number of listed blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListLimits {
    /// Limit for one stack; its largest blocks are listed.
    pub of_a_stack: usize,
    /// Limit for all stacks together, first found first. Each block takes 48 bytes while a report is made.
    pub in_all: usize,
}

/// Block in a list.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListedBlock {
    /// Address of its first byte.
    pub address: Avma,
    /// Requested bytes.
    pub size: u64,
    /// Age when the report was made.
    pub age: Duration,
    /// Number of blocks that it stands for.
    pub weight: Weight,
    /// C++ class of the object in it; `None` if it has none, or was not examined.
    #[serde(default, skip_serializing_if = "is_default")]
    pub class: Option<TextId>,
}

impl ListedBlock {
    /// Copies this with the ids of another dictionary.
    #[must_use]
    pub fn renumbered(&self, import: &mut Import<'_>) -> Self {
        Self {
            class: self.class.map(|class| import.text(class)),
            ..*self
        }
    }
}

/// Blocks of a stack, largest first, then by address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockList {
    /// Blocks within the [`ListLimits`].
    pub listed: Vec<ListedBlock>,
    /// Number of further blocks found, which the limits left out.
    pub left_out: u64,
}

impl BlockList {
    /// Copies this with the ids of another dictionary.
    #[must_use]
    pub fn renumbered(&self, import: &mut Import<'_>) -> Self {
        Self {
            listed: self.listed.iter().map(|block| block.renumbered(import)).collect(),
            ..*self
        }
    }

    /// Every id of a text.
    pub fn ids(&self) -> impl Iterator<Item = TextId> {
        self.listed.iter().filter_map(|block| block.class)
    }

    /// Appends a list whose blocks sort behind these.
    pub fn append(&mut self, other: Self) {
        self.listed.extend(other.listed);
        self.left_out = self.left_out.saturating_add(other.left_out);
    }
}
