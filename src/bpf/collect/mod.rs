//! Values that the kernel side recorded. Does not know modules or symbols.

mod blocks;
mod call_events;
mod counters;
mod counts;
mod deferred;
mod events;
mod fields;
mod judged;
mod kernel;
mod listing;
mod makeup;
mod own;
mod peak;
mod ranges;
mod regions;
mod snapshot;
mod totals;
mod vitals;
mod walk_queue;

pub use blocks::{Block, BlockTable, LiveBlocks, Moment};
pub use call_events::{CallEvent, CallQueue};
pub use counters::{Counters, counter};
pub(crate) use counts::{Hits, hits, recorded_by_function};
pub use deferred::{DeferredWalk, StackCopy};
pub use events::{Event, Events as EventQueue};
pub use judged::{Judged, JudgedBlocks};
pub use kernel::take_kernel;
pub use listing::{BlockPlace, ListRequest};
pub(crate) use own::own_memory;
pub(crate) use peak::{Look, PeakFinder};
pub use ranges::{RangeBytes, outstanding_in_ranges};
#[cfg(any(test, fuzzing))]
pub(crate) use regions::parse as parse_memory_event;
pub use regions::{MemoryEvent, Taken, region_call_of_function};
pub use snapshot::{not_walked, record_of, stack_of, stack_of_kernel_mode, take};
pub(crate) use vitals::vitals;
pub use walk_queue::WalkQueue;
