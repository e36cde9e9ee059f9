//! What the kernel side recorded, as plain values. Nothing here knows modules or symbols.

mod counters;
mod events;
mod regions;
mod snapshot;

pub use counters::{Counter, Counters};
pub use events::{Event, Events as EventQueue};
pub use regions::{Moment, RegionCall, RegionEvent, RegionKind};
pub use snapshot::{Amount, Events, Losses, Snapshot, StackTotals, stack_of, take};
