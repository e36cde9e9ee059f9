#![doc = include_str!("../docs/architecture.md")]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that fails may do so anywhere")
)]

#[doc = include_str!("../docs/threats.md")]
pub mod threats {}

pub mod allocator;
pub mod base;
pub mod bpf;
pub mod cli;
pub mod commands;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod process;
pub mod session;
pub mod sinks;
pub mod symbolize;
