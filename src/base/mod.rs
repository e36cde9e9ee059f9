//! Helpers without a subject of their own: threads, pages, host names, programs of the system, bytes that others
//! wrote, lines of `/proc`.

#[cfg(feature = "net")]
pub(crate) mod hosts;
pub(crate) mod pages;
pub mod parallel;
pub(crate) mod proc_fields;
pub(crate) mod system;
pub(crate) mod untrusted;
