//! What the kernel side recorded, as plain values. Nothing here knows modules or symbols.

mod amount;
mod counters;
mod events;
mod held;
mod regions;
mod snapshot;
mod totals;

pub use amount::{Amount, Spread, StandardError};
pub use counters::{Counter, Counters};
pub use events::{Event, Events as EventQueue};
pub use held::{Held, held};
pub use regions::{CallMoment, RegionCall, RegionEvent, RegionKind};
pub use snapshot::{Events, Losses, Snapshot, StackTotals, stack_of, take};
