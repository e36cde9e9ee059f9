#![doc = include_str!("../docs/architecture.md")]
#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "of a program, a comment is for what its names do not say; unwind-tables and leak-report have one everywhere"
)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that fails may do so anywhere")
)]

#[doc = include_str!("../docs/threats.md")]
pub mod threats {}

pub use memleak_base as base;
pub use memleak_code::{allocator, symbolize};
pub use memleak_process as process;
pub use memleak_reach as reach;

pub mod bpf;
pub mod cli;
pub mod commands;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod session;
pub mod sinks;
