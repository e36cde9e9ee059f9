#![doc = include_str!("../docs/architecture.md")]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that fails may do so anywhere")
)]

#[doc = include_str!("../docs/threats.md")]
pub mod threats {}

pub mod allocator;
pub mod bpf;
pub mod calls;
pub mod cli;
pub mod collect;
pub mod config;
pub mod doctor;
mod dynamic;
pub mod export;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod gate;
mod hosts;
pub mod inspect;
pub mod launch;
pub mod live;
pub mod memory;
pub mod output;
pub mod overhead;
mod pages;
pub mod parallel;
pub mod preflight;
pub mod recording;
pub mod regions;
pub mod replay;
pub mod session;
pub mod status;
pub mod symbolize;
mod system;
pub mod target;
mod untrusted;
