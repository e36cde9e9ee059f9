//! Functions of a process that allocate memory, and the instructions of these that are probed.
//!
//! [`discover`] is the entry point: the [`Catalog`] lists the functions to look for (the [`table`], and the
//! user's additions), [`symbols`] finds them, `definitions` leaves out those that only forward calls,
//! [`sites`] chooses the instruction by how the kernel executes it under a probe ([`probing`]), [`flow`]
//! finds where functions that throw return; [`machine`] decodes instructions for both. Reads ELF files only;
//! no probe is attached here.

pub mod calls;
pub mod catalog;
mod definitions;
pub mod discovery;
pub mod flow;
pub mod functions;
pub mod given;
pub mod linkage;
pub mod machine;
pub mod parts;
pub mod probing;
pub mod problem;
pub mod sites;
pub mod symbols;
pub mod table;
pub mod unseen;
pub mod usdt;

pub use catalog::{Catalog, Selection};
pub use discovery::{
    Discovery, ProbeSite, UsdtSite, choose_site, discover, is_sampler, is_sampler_file, not_announced_counter,
};
pub use functions::{AllocFunction, Family, ResultAt, Returns, Role, Shape, SizeAt};
pub use probing::{NOP5, NOP10, SiteCost};
pub use problem::{Problem, Reason};
pub use table::{FUNCTIONS, PAGE_FAULT};
