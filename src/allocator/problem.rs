//! What is not probed, and why.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
use unwind_tables::error::TableError;

use super::flow::NoExits;
use super::probing::Unprobeable;
use super::symbols::SymbolError;
use leak_report::model::Name;

/// Something that was found and is not probed, or not found and missed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}{reason}", .module.as_ref().map_or_else(String::new, |path| format!("{}: ", path.display())))]
pub struct Problem {
    /// The file, as the target sees it; `None` when it is about all of them.
    pub module: Option<PathBuf>,
    /// What is wrong.
    pub reason: Reason,
}

/// Why something is not probed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Reason {
    /// No module has what makes an allocator.
    #[error(
        "no allocator found: no object of it defines malloc and free. Try again if it has just started, or trace what \
         it maps, whatever allocates: --mmap (Go programs, static ones without symbols)"
    )]
    NoAllocator,
    /// No allocator has this function.
    #[error("`{0}` not found")]
    NotFound(Name),
    /// One of the two that make an allocator.
    #[error("defines `{0}` but not `{1}`, so that its blocks could not be followed: not probed")]
    HalfAllocator(&'static str, &'static str),
    /// A static program in which the linker found no use for `free`.
    #[error(
        "defines `malloc` and no `free`, as a static program that never frees: all its blocks stay outstanding"
    )]
    NeverFrees,
    /// The dynamic loader's own allocator.
    ///
    /// It serves the loader until libc is there, never frees, and its blocks are no one's leak.
    #[error("the loader's own allocator, used before libc is loaded: not probed")]
    Loader,
    /// A collector frees without a call.
    #[error(
        "the collector frees what is no longer reachable without a call that could be seen: its blocks stay outstanding \
         until GC_free; look at growth after collections, not at single blocks"
    )]
    Collector,
    /// Rust code with an allocator of its own.
    #[error(
        "has a global allocator of its own: calls of it that the compiler made directly, instead of by __rust_alloc, are \
         not seen; if it ends in functions that have names, give those with --alloc"
    )]
    RustAllocator,
    /// An allocator's texts are in the file, its symbols are not.
    #[error(
        "contains {0}, but no symbols of it: what it allocates is not seen; trace a build that is not stripped \
         (its .symtab), or give its functions with --alloc if they have names"
    )]
    Stripped(&'static str),
    /// The function is chosen at load time, and the symbol leads to who chooses.
    #[error(
        "`{0}` is an indirect function (STT_GNU_IFUNC), its resolver must not be probed: give the function that it \
         chooses with --alloc"
    )]
    Indirect(Name),
    /// The symbol does not lead to code in the file.
    #[error("`{0}` lies outside the code in the file")]
    OutsideCode(Name),
    /// Neither the entry nor anything cheaper can be probed.
    #[error("`{0}` cannot be probed: {1}; what it allocates is not seen")]
    Unprobeable(Name, Unprobeable),
    /// A function that can throw, whose ends are not all known.
    #[error(
        "`{0}` can throw, so that it must be probed where it returns, and {1}: what it allocates is not seen; give \
         the function below it with --alloc"
    )]
    NoExits(Name, NoExits),
    /// Two functions that mean different things share their code.
    #[error(
        "`{0}` is the same code as `{1}`, whose arguments mean something else: only the latter is probed"
    )]
    Conflict(Name, Name),
    /// More functions than can be told apart.
    #[error("too many functions: those that start with `{0}` are not probed; limit the objects with -O")]
    TooManyFunctions(String),
    /// The symbol tables are unusable.
    #[error(transparent)]
    Symbols(#[from] SymbolError),
    /// The headers are unusable.
    #[error("cannot read its headers: {0}")]
    Headers(Arc<TableError>),
}

impl Reason {
    /// Whether something that allocates is not seen because of it, or not seen in full.
    pub fn is_warning(&self) -> bool {
        match self {
            Self::Collector
            | Self::RustAllocator
            | Self::Stripped(_)
            | Self::Indirect(_)
            | Self::OutsideCode(_)
            | Self::Unprobeable(..)
            | Self::NoExits(..)
            | Self::Conflict(..)
            | Self::TooManyFunctions(_) => true,
            Self::NoAllocator
            | Self::NotFound(_)
            | Self::HalfAllocator(..)
            | Self::NeverFrees
            | Self::Loader
            | Self::Symbols(_)
            | Self::Headers(_) => false,
        }
    }
}
