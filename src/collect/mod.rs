//! What the kernel side recorded, as plain values. Nothing here knows modules or symbols.

mod amount;
mod counters;
mod events;
mod snapshot;
mod totals;

pub use amount::{Amount, Spread, StandardError};
pub use counters::{Counter, Counters};
pub use events::{Event, Events as EventQueue};
pub use snapshot::{Events, Losses, Snapshot, StackTotals, take};
