//! Reports of leak traces, and everything that renders them.
//!
//! - [`model`]: a [`Report`](model::Report) as plain values that refer to one dictionary by number.
//! - [`compare`]: differences and trends of reports.
//! - [`render`]: a report as text, JSON, pprof, flame graph, page …; a format is one file.
//! - [`units`]: sizes and durations, parsed.
//!
//! Pure: no clock, no I/O except to writers that are passed in, no types of the kernel or of libbpf. It
//! builds without a C compiler and on any system.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that fails may do so anywhere")
)]

pub mod compare;
pub mod model;
pub mod render;
#[cfg(any(test, feature = "samples"))]
pub mod samples;
pub mod units;
