//! Leak tracing of running processes with complete, DWARF-unwound stacks, in the kernel.

pub mod allocator;
pub mod bpf;
pub mod cli;
pub mod collect;
pub mod config;
pub mod inspect;
pub mod leak;
pub mod preflight;
pub mod report;
pub mod session;
pub mod symbolize;
pub mod target;
