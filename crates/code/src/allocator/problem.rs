//! Functions and modules that are not probed, and why.

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
use unwind_tables::error::TableError;

use super::flow::NoExits;
use super::functions::Shape;
use super::given;
use super::probing::Unprobeable;
use super::symbols::SymbolError;
use super::usdt::ArgumentError;
use leak_report::model::Name;

/// A module or function that is not probed, or an expected function that was not found.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}{reason}", .module.as_ref().map_or_else(String::new, |path| format!("{}: ", path.display())))]
pub struct Problem {
    /// The file, as the target sees it; `None` if the problem concerns all of them.
    pub module: Option<PathBuf>,
    pub reason: Reason,
}

/// Reason why a function or module is not probed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Reason {
    #[error(
        "no allocator found: no object of the process defines malloc and free; try again if it has just \
         started, or trace page faults (--faults) or mappings (--mmap), as for Go programs and static \
         programs without symbols"
    )]
    NoAllocator,
    #[error("`{0}` not found")]
    NotFound(Name),
    /// One of the two functions that make an allocator is missing.
    #[error("defines `{0}` but not `{1}`, so that its blocks could not be followed: not probed")]
    HalfAllocator(&'static str, &'static str),
    /// A hidden function, or another one that happens to have the name.
    #[error(
        "defines `{0}` as a local symbol, which its own code may call instead of the C library's: not probed; if it allocates, give \
         --alloc '{0}:{how}', and its own free by --alloc 'free:free(block=0)'", how = given::described(*.1)
    )]
    LocalFunction(Name, Shape),
    /// A file on another user's FUSE mount.
    #[error(
        "defines an allocator, but is on another user's FUSE mount, where probes cannot be placed: mount it \
         with -o allow_root or allow_other"
    )]
    NoFile,
    /// A static program in which the linker found no use of `free`.
    #[error(
        "defines `malloc` and no `free`, as a static program that never frees: all its blocks stay outstanding"
    )]
    NeverFrees,
    /// The dynamic loader's own allocator.
    ///
    /// It serves the loader until libc is mapped, never frees, and its blocks are not the program's.
    #[error("the loader's own allocator, used before libc is loaded: not probed")]
    Loader,
    /// A collector, which frees without a call.
    #[error(
        "the collector frees unreachable blocks without a call that a probe can see: its blocks stay \
         outstanding until GC_free; look at growth after collections, not at single blocks"
    )]
    Collector,
    #[error(
        "has its own global allocator: calls that the compiler made directly, not through __rust_alloc, are \
         not seen; if the allocator calls named functions, give these with --alloc"
    )]
    RustAllocator,
    /// A file with an allocator's message texts, but without its symbols.
    #[error(
        "contains {0}, but no symbols of it: its allocations are not seen; trace a build that is not \
         stripped (has .symtab), or give its functions with --alloc if they have names"
    )]
    Stripped(&'static str),
    /// A CPython with a lock (GIL), which does not use the mimalloc in its file.
    #[error(
        "contains mimalloc, which this CPython uses only with PYTHONMALLOC=mimalloc in its environment \
         (builds without the GIL always use it)"
    )]
    PythonWithLock,
    /// A CPython that has a lock, and uses its mimalloc all the same.
    #[error(
        "uses its built-in mimalloc (PYTHONMALLOC=mimalloc), which has no symbols: Python's allocations are \
         not seen; --faults shows the code that makes memory grow"
    )]
    PythonByMimalloc,
    /// A symbol that leads to a resolver, which chooses the function at load time.
    #[error(
        "`{0}` is an indirect function (STT_GNU_IFUNC), its resolver must not be probed: give the function that it \
         chooses with --alloc"
    )]
    Indirect(Name),
    #[error("`{0}` lies outside the code in the file")]
    OutsideCode(Name),
    #[error("`{0}` cannot be probed: {1}; its allocations are not seen")]
    Unprobeable(Name, Unprobeable),
    /// A function that can throw, whose returns are not all known.
    #[error(
        "`{0}` can throw, so its return instructions must be probed, but {1}: its allocations are not seen; \
         give the function that it calls with --alloc"
    )]
    NoExits(Name, NoExits),
    /// A function of the user's, whose returns are not all known.
    #[error(
        "the return instructions of `{0}` must be probed, but {1}: its allocations are not seen; if it never \
         throws, and no fiber waits in it and continues on another thread, add return=probe: for example \
         {0}:alloc(size=0,return=probe)"
    )]
    NoExitsOfGiven(Name, NoExits),
    /// Two functions with different roles or shapes share their code.
    #[error(
        "`{0}` is the same code as `{1}`, whose arguments mean something else: only the latter is probed"
    )]
    Conflict(Name, Name),
    /// A USDT probe that announces blocks, but cannot be read.
    #[error("its USDT probe `{0}` cannot be used: {1}")]
    Usdt(Name, ArgumentError),
    /// A USDT probe whose instruction Linux 6.18 replaces by a call into a page that a forked child does not
    /// have.
    #[error(
        "its USDT probe `{0}` is at a `nop` of five bytes, where a probe kills forked children on Linux \
         6.18: not used"
    )]
    UsdtLongNop(Name),
    /// The catalog is full.
    #[error("too many functions: those that start with `{0}` are not probed; limit the objects with -O")]
    TooManyFunctions(String),
    #[error(transparent)]
    Symbols(#[from] SymbolError),
    #[error("cannot read its headers: {0}")]
    Headers(Arc<TableError>),
}

impl Reason {
    /// True if some allocations are missed because of it.
    pub fn is_warning(&self) -> bool {
        match self {
            Self::Collector
            | Self::RustAllocator
            | Self::LocalFunction(..)
            | Self::NoFile
            | Self::Stripped(_)
            | Self::PythonByMimalloc
            | Self::Indirect(_)
            | Self::OutsideCode(_)
            | Self::Unprobeable(..)
            | Self::NoExits(..)
            | Self::NoExitsOfGiven(..)
            | Self::Conflict(..)
            | Self::Usdt(..)
            | Self::UsdtLongNop(_)
            | Self::TooManyFunctions(_) => true,
            Self::NoAllocator
            | Self::NotFound(_)
            | Self::HalfAllocator(..)
            | Self::NeverFrees
            | Self::Loader
            | Self::PythonWithLock
            | Self::Symbols(_)
            | Self::Headers(_) => false,
        }
    }

    /// True if, because of it, memory of a traced allocator can be in use without a known block. Not so for
    /// an allocator whose functions cannot be called by name: it has its memory from other allocators, as
    /// their blocks, or by mapping calls.
    pub fn hides_blocks_of_others(&self) -> bool {
        self.is_warning() && !matches!(self, Self::Stripped(_) | Self::PythonByMimalloc)
    }
}
