//! Helpers that belong to no other module: processes and threads for one task, pages, characters, open files,
//! host names, system programs, conditions, untrusted bytes, lines of `/proc`, the kernel's clocks.

pub mod characters;
pub mod condition;
pub(crate) mod helper;
#[cfg(feature = "net")]
pub(crate) mod hosts;
pub(crate) mod kernel_clock;
pub(crate) mod memory_limit;
pub mod open_files;
pub(crate) mod pages;
pub mod parallel;
pub(crate) mod proc_fields;
pub(crate) mod system;
pub(crate) mod untrusted;
