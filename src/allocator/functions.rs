//! What a traced function is: what a call means (its role) and where its numbers are (its shape).
//!
//! The functions themselves are in the [`table`](super::table); which addresses they have in a process is
//! [`discovery`](super::discovery)'s business.

use leak_report::model::Name;

/// What a call does to the set of live blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A new block comes to life.
    Allocate,
    /// A block dies.
    Free,
    /// A block dies and another comes to life; the old one lives on when the call fails.
    Resize,
    /// The same, but the old one dies when the call fails, too.
    ResizeOrFree,
    /// A block gets another size where it is. What is returned is the size that it then has: less than was asked for
    /// when the call fails.
    ResizeInPlace,
}

impl Role {
    /// Whether blocks come to life by it.
    pub fn allocates(self) -> bool {
        self != Self::Free
    }
}

/// Where the requested size is. Arguments are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SizeAt {
    /// The call requests nothing.
    Nowhere,
    /// bytes = argument n
    Argument(u8),
    /// bytes = argument n × argument m, saturating
    Product(u8, u8),
}

/// Where the new block's address is after the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResultAt {
    /// There is no new block.
    Nowhere,
    /// The return value; null is failure. Of a [`Role::ResizeInPlace`], it is not a new block but says whether the old
    /// one is as large as it should be.
    Returned,
    /// Stored through the pointer in argument n, and only when the function returns 0.
    StoredThrough(u8),
}

/// Where a call's numbers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The requested size.
    pub size: SizeAt,
    /// The argument that is the block to free or resize.
    pub block: Option<u8>,
    /// The new block.
    pub result: ResultAt,
}

impl Shape {
    /// The arguments that a probe reads at the start of a call, in no order, possibly repeated.
    pub fn arguments(self) -> impl Iterator<Item = u8> {
        let size = match self.size {
            SizeAt::Nowhere => [None, None],
            SizeAt::Argument(n) => [Some(n), None],
            SizeAt::Product(n, m) => [Some(n), Some(m)],
        };
        let result = match self.result {
            ResultAt::Nowhere | ResultAt::Returned => None,
            ResultAt::StoredThrough(n) => Some(n),
        };
        size.into_iter().chain([self.block, result]).flatten()
    }
}

/// Whose interface a function belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// C and POSIX allocation as glibc exports it; interposers such as tcmalloc define the same names.
    Libc,
    /// C++ `operator new` and `operator delete`.
    Cxx,
    /// What jemalloc has besides the C functions, and all of it where its names have a prefix.
    Jemalloc,
    /// mimalloc's own names.
    Mimalloc,
    /// The names that gperftools' tcmalloc has besides those of C and C++.
    Tcmalloc,
    /// The same for google/tcmalloc.
    TcmallocInternal,
    /// The Boehm-Demers-Weiser collector, which frees what is no longer reachable without a call.
    Collector,
    /// What Rust code calls, whatever its allocator is.
    Rust,
    /// Given by the user.
    Given,
}

impl Family {
    /// Whether a local symbol is the function: its name is nobody else's, and linkers make hidden symbols local.
    pub fn may_be_local(self) -> bool {
        !matches!(self, Self::Libc | Self::Cxx)
    }

    /// Whether its functions often only pass a call on, to `malloc` for example.
    pub fn often_forwards(self) -> bool {
        matches!(self, Self::Cxx | Self::Rust)
    }
}

/// Whether an allocator without the function is worth a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Presence {
    /// Every C library has it.
    Expected,
    /// Newer, obsolete, or missing from other C libraries.
    Optional,
}

/// A function that is traced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AllocFunction {
    /// What it is called.
    pub name: Name,
    /// What a call means.
    pub role: Role,
    /// Where its numbers are.
    pub shape: Shape,
    /// Whose interface it belongs to.
    pub family: Family,
    /// Whether it can throw an exception, which a return probe would turn into the program's end.
    pub throws: bool,
    /// Whether its absence is reported.
    pub presence: Presence,
}

#[cfg(test)]
mod tests;
