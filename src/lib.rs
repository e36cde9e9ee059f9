//! Leak tracing of running processes with complete, DWARF-unwound stacks, in the kernel.
pub mod bpf;
pub mod collect;
pub mod leak;
pub mod report;
pub mod symbolize;
pub mod target;
