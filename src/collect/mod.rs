//! What the kernel side recorded, as plain values. Nothing here knows modules or symbols.

mod ages;
mod blocks;
mod counters;
mod events;
mod snapshot;

pub use ages::{AGE_BOUNDS, Ages};
pub use blocks::{Block, LiveBlocks, Moment, StackBlocks, visit_blocks};
pub use counters::{Counter, Counters};
pub use events::{Event, Events as EventQueue};
pub use snapshot::{Amount, Events, Losses, Snapshot, StackTotals, take};
