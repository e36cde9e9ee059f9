//! Which functions of a process allocate memory, and which of their instructions are probed.
//!
//! [`discover`] is the way in: [`functions`] says what is looked for, [`symbols`] finds it,
//! [`sites`] chooses the instruction by what the kernel does with it ([`probing`]). Reads ELF files
//! only; nothing is attached here.

pub mod discovery;
pub mod functions;
pub mod probing;
pub mod sites;
pub mod symbols;

pub use discovery::{Discovery, ProbeSite, Problem, Reason, choose_site, discover};
pub use functions::{AllocFunction, FUNCTIONS, ResultAt, Role, Shape, SizeAt};
pub use probing::SiteCost;
