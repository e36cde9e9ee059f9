//! Helpers without a subject of their own: processes and threads for one task, pages, host names, programs of the system, conditions, bytes that others
//! wrote, lines of `/proc`.

pub mod condition;
pub(crate) mod helper;
#[cfg(feature = "net")]
pub(crate) mod hosts;
pub(crate) mod pages;
pub mod parallel;
pub(crate) mod proc_fields;
pub(crate) mod system;
pub(crate) mod untrusted;
