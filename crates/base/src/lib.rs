//! Helpers that belong to no other module: processes and threads for one task, pages, characters, open files,
//! host names, system programs, conditions, untrusted bytes, lines of `/proc`, the kernel's clocks.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "of a program, a comment is for what its names do not say; unwind-tables and leak-report have one everywhere"
)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that fails may do so anywhere")
)]

pub mod characters;
pub mod condition;
pub mod helper;
#[cfg(feature = "net")]
pub mod hosts;
pub mod kernel_clock;
pub mod memory_limit;
pub mod open_files;
pub mod pages;
pub mod parallel;
pub mod proc_fields;
pub mod system;
pub mod untrusted;
