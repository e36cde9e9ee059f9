//! What a trace found out, as plain values. Pure: no clock, no I/O, nothing of the kernel's or of libbpf's.

mod ages;
mod amount;
mod blocks;
mod counts;
mod instance;
pub mod leak;
mod memory;
mod names;
mod overhead;
mod region;
mod sampling;
mod snapshot;
mod symbol;
mod vitals;
mod weight;

pub use ages::{AGE_BOUNDS, Ages, StackBlocks};
pub use amount::{Amount, Estimate, Spread, StandardError};
pub use blocks::{BlockList, ListedBlock};
pub use counts::{Events, Losses};
pub use instance::InstanceEnd;
pub use leak::{Change, Completeness, EndGroup, ModuleSteps, Order, Suspicion};
pub use memory::Parts;
pub use names::{NameStyle, abbreviated};
pub(crate) use overhead::ratio;
pub use overhead::{Governed, Overhead, ProbeProgram, ProgramTime, Spent, Traps};
pub use region::RegionKind;
pub use sampling::Sampling;
pub use snapshot::{CheckedWalks, Snapshot, StackTotals};
pub use symbol::{Gap, InlinedFrame, Symbol, Symbolized};
pub use vitals::{OwnMemory, Vitals};
pub use weight::{Weight, WeightedAmount};
