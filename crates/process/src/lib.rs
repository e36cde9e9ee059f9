//! The traced process: its identity, whether it still runs, and the code it has mapped.
//!
//! Reads `/proc` only: the process is not attached to, written or stopped. It is identified by its pid *and*
//! its start time, so that a successor with the same pid is never taken for it.

#![allow(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "of a program, a comment is for what its names do not say; unwind-tables and leak-report have one everywhere"
)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test that fails may do so anywhere")
)]

pub mod caller;
pub mod census;
mod confirm;
pub mod dynamic;
pub mod environment;
mod files;
pub mod foreign;
mod from_memory;
mod generated;
pub mod halt;
pub mod history;
mod hotspot;
mod jvm_code;
mod jvm_watch;
pub mod kept;
pub mod kernel_log;
pub mod launch;
mod linking;
mod mapped_file;
pub mod mappings;
pub mod maps;
pub mod memory;
pub mod modules;
mod moment;
mod moved;
mod name;
mod past;
mod placement;
mod process_memory;
pub mod python;
pub mod regions;
pub mod select;
mod settled;
pub mod shared;
mod shortened;
pub mod smaps;
pub mod stat;
mod target;
pub mod timeline;
pub mod touched;
pub mod translator;

pub use files::{is_stopped, maps_of};
pub use generated::GeneratedCode;
pub use history::{Epoch, History};
pub use hotspot::LONGEST_JVM_BEGINNING;
pub use jvm_code::{JvmCode, KnownCode, KnownCodeKind};
pub use jvm_watch::JvmWatch;
pub use mappings::{CodeMapping, MappedCode, Mappings};
pub use modules::{BuildId, Module, ModuleId, Modules, Unreadable};
pub use name::ProcessName;
pub use past::ProcessRoot;
pub use target::{Target, TargetError};
pub use timeline::Timeline;
