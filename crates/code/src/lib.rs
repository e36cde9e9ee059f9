//! The meaning of machine code: [`allocator`] finds the functions that allocate and free in a process's code,
//! and how they can be probed; [`symbolize`] names addresses, with source lines.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "of a program, a comment is for what its names do not say; unwind-tables and leak-report have one everywhere"
)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that fails may do so anywhere")
)]

pub mod allocator;
pub mod symbolize;
