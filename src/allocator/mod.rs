//! Which functions of a process allocate memory, and which of their instructions are probed.
//!
//! Reads ELF files only; nothing is attached here.

pub mod functions;
pub mod probing;
pub mod sites;
pub mod symbols;
