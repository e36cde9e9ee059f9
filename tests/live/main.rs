//! Traces of real processes and of the kernel: amounts are exact, processes are told apart, modes and limits
//! do what they promise, and neither memleak nor its target comes to harm.

#[path = "../common/mod.rs"]
mod common;

mod abuse;
mod accounting;
mod allocator_statistics;
mod allocators;
mod announced;
mod assistant;
mod capacity;
mod classes;
mod clocks;
mod collector;
mod containers;
mod doctor;
mod faults;
mod freed;
mod given;
mod holders;
mod kept;
mod kernel;
mod leaks;
mod makeup;
mod members;
mod mmap;
mod musl;
mod one_memory;
mod out_of_memory;
mod overhead;
mod own_allocators;
mod own_memory;
mod peak;
mod preloaded;
mod private_mount;
mod processes;
mod refused;
mod registers;
mod resident_memory;
mod sampling;
mod services;
mod sites;
mod snapshots;
mod sources;
mod start;
mod target;
mod targets;
mod top;
mod translated;
mod triggers;
mod unusual;
mod verdict;
mod view;

const ROOT: common::program::Root = common::program::Root::Any;
