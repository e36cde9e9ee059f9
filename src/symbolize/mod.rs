//! From an address in a module to function, inlined functions, file and line.

pub mod frame;
