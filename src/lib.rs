//! Leak tracing of running processes with complete, DWARF-unwound stacks, in the kernel.

pub mod allocator;
pub mod target;
