//! Which functions of a process allocate memory, and which of their instructions are probed.
//!
//! [`discover`] is the way in: the [`Catalog`] says what is looked for (the [`table`], and what the user adds),
//! [`symbols`] finds it, `definitions` leaves out what only passes calls on, [`sites`] chooses the instruction by what
//! the kernel does with it ([`probing`]), [`flow`] finds where functions that throw return; [`machine`] is what both
//! know of instructions. Reads ELF files
//! only; nothing is attached here.

pub mod calls;
pub mod catalog;
mod definitions;
pub mod discovery;
pub mod flow;
pub mod functions;
pub mod given;
pub mod linkage;
pub mod machine;
pub mod probing;
pub mod problem;
pub mod sites;
pub mod symbols;
pub mod table;

pub use catalog::{Catalog, Selection};
pub use discovery::{Discovery, ProbeSite, choose_site, discover};
pub use functions::{AllocFunction, Family, ResultAt, Role, Shape, SizeAt};
pub use probing::SiteCost;
pub use problem::{Problem, Reason};
pub use table::FUNCTIONS;
