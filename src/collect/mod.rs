//! What the kernel side recorded, as plain values. Nothing here knows modules or symbols.

mod ages;
mod amount;
mod blocks;
mod counters;
mod events;
mod snapshot;
mod totals;
mod weight;

pub use ages::{AGE_BOUNDS, Ages};
pub use amount::{Amount, Spread, StandardError};
pub use blocks::{Block, BlockTable, LiveBlocks, Moment, StackBlocks};
pub use counters::{Counter, Counters};
pub use events::{Event, Events as EventQueue};
pub use snapshot::{Events, Losses, Snapshot, StackTotals, take};
pub use weight::{Weight, WeightedAmount};
