//! Results of a trace as plain values. Pure: no clock, no I/O, no kernel or libbpf types.

mod ages;
mod amount;
mod blocks;
mod calls;
mod counts;
pub mod diagnosis;
pub mod dictionary;
mod excerpt;
mod fragmentation;
mod holder;
mod instance;
mod judged;
mod kernel;
mod lack;
pub mod leak;
mod location;
mod makeup;
mod measured;
mod memory;
mod missing;
mod names;
mod overhead;
pub mod owner;
mod peak;
mod pinned;
pub mod printable;
mod quantity;
mod reason;
mod region;
mod report;
mod sampling;
pub mod site_name;
mod snapshot;
mod step_stacks;
mod symbol;
mod verdict;
mod vitals;
mod weight;

use std::borrow::Cow;

pub use ages::{AGE_BOUNDS, Ages, StackBlocks};
pub use amount::{Amount, Estimate, Spread, StandardError};
pub use blocks::{BlockList, ListLimits, ListedBlock};
pub use calls::{CallKind, CallTrace, RegionCall};
pub use counts::{CALLS, Count, Events, LOSSES, Losses};
pub use dictionary::{
    Dictionary, Frame, FrameId, FrameRef, ModuleId, ModuleRef, NamesId, Path, PathId, Text, TextId, TextKind,
};
pub use excerpt::{Excerpt, Excerpts, SourcePlace};
pub use fragmentation::{AllocatorMemory, AllocatorName, Fragmentation, HeldBytes, NotMeasured};
pub use holder::{Class, Held, Holder, LookedAt, Root, RootKind, Step, ThreadName};
pub use instance::InstanceEnd;
pub use kernel::{KernelFacts, KindTotals};
pub use lack::{MemoryLack, ReachedLimit};
pub use leak::{Change, Completeness, EndGroup, ModuleSteps, Order, Suspicion};
pub use location::{CodeSegment, Location, Module, Place, TableFacts};
pub use makeup::{LifeSpans, Makeup, SizeClass, ThreadBlocks};
pub use memory::{Beside, CgroupRest, Elsewhere, KindBytes, MemoryGroup, MemoryKind, NamedBytes, Parts};
pub use missing::{Missing, TracePart};
pub use names::{NameStyle, abbreviated};
pub use overhead::ratio;
pub use overhead::{Governed, Overhead, ProbeProgram, ProgramTime, Spent, Traps};
pub use peak::Peak;
pub use quantity::{Direction, Measure, Quantity, Unit};
pub use reason::{Measured, Reached, Reason};
pub use region::RegionKind;
pub use report::unix_nanoseconds;
pub use report::{
    Compared, Report, SiteId, SiteKey, Stack, StackPart, StackRecent, StackRef, Suppression, TargetFacts,
    TimeOfDay,
};
pub use sampling::{Sampling, Source};
pub use snapshot::{CheckedWalks, Snapshot, StackTotals};
pub use step_stacks::StepStacks;
pub use symbol::{Gap, InlinedFrame, MAX_FOLDED, Symbol, Symbolized};
pub use verdict::{FATES, Fate, Hidden, Inside, Judgement, Unheld, Unjudged, Verdict};
pub use vitals::{OwnMemory, Vitals};
pub use weight::{Weight, WeightedAmount, WeightedSum};

/// Symbol name without a version.
pub type Name = Cow<'static, str>;
