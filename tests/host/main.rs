//! Checks on the host, which trace nothing: C of the kernel side, compiled for the host, does what its
//! reference does; names of code are those that independent readers find.

mod free_memory;
mod headers;
mod nesting;
mod sampling;
mod symbolize;
mod verdicts;
mod walk;
mod young_blocks;
