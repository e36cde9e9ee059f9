//! `memleak report`, `memleak diff` and `memleak trend`: what was recorded, read again, here or on another machine.
//! Traces nothing and needs no privileges.

mod diff;
mod report;
mod source;
mod trend;

pub use diff::{DifferenceFormat, DifferenceOptions, diff};
pub use report::{ReportOptions, Which, report};
pub use source::Source;
pub use trend::{TrendOptions, trend};
