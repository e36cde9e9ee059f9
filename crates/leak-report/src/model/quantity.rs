//! Single number of each stack in flame graphs and similar formats.

use super::Amount;
use serde::{Deserialize, Serialize};

/// Measure of a stack: the one number that a flame graph shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Allocated and not freed; without young blocks, see --older.
    #[default]
    Outstanding,
    /// Allocated since the attach, freed or not.
    Allocated,
    /// Allocated minus freed since the mark (SIGUSR1), or else since the last report; only stacks that grew.
    Growth,
    /// Outstanding at the peak since the attach, see docs/peak.md; nothing if the peak was not tracked.
    Peak,
    /// Definitely lost by the verdict on outstanding blocks; nothing in a report without one.
    DefinitelyLost,
    /// Free memory that outstanding blocks pin; a trace then has --pinned.
    Pinned,
}

/// Unit of a measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Requested bytes.
    #[default]
    Bytes,
    /// Blocks.
    Blocks,
}

impl Unit {
    /// Name of the unit in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Blocks => "blocks",
        }
    }

    /// Returns the bytes or the blocks of an amount.
    pub const fn of(self, amount: Amount) -> u64 {
        match self {
            Self::Bytes => amount.bytes,
            Self::Blocks => amount.blocks,
        }
    }
}

/// End of the stacks at which graphs of them begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From the callers: a function's boxes are above that of its caller.
    #[default]
    Callers,
    /// From the functions that allocate: all stacks of one are together, whoever called it.
    Allocating,
}

/// Measure with its unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantity {
    /// Measured property of a stack.
    pub measure: Measure,
    /// Unit of the number.
    pub unit: Unit,
}
