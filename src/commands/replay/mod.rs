//! `memleak report`, `memleak diff` and `memleak trend`: read recordings, here or on another machine. Trace
//! nothing and need no privileges.

mod diff;
mod report;
mod source;
mod trend;

/// Default number of stacks or sites in text.
pub const DEFAULT_TOP: usize = 10;

pub use diff::{DifferenceFormat, DifferenceOptions, diff};
pub use report::{ReportOptions, ReportSelection, report};
pub use source::Source;
pub(super) use source::{local_time, open};
pub use trend::{TrendOptions, trend};
