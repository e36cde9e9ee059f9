//! Description of a traced function: the meaning of a call (its role) and where its operands are (its shape).
//!
//! The functions themselves are in the [`table`](super::table); their addresses in a process are found by
//! [`discovery`](super::discovery).

use leak_report::model::Name;

/// Effect of a call on the set of outstanding blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Adds a block.
    Allocate,
    /// Removes a block.
    Free,
    /// Replaces a block by another; the old one stays when the call fails.
    Resize,
    /// Replaces a block by another; the old one is removed even when the call fails.
    ResizeOrFree,
    /// Changes a block's size in place. Returns the resulting size, which is less than requested when the
    /// call fails.
    ResizeInPlace,
}

impl Role {
    /// True if calls can add a block, or change its size.
    pub fn allocates(self) -> bool {
        self != Self::Free
    }
}

/// Place of the requested size. Arguments are counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SizeAt {
    Nowhere,
    /// bytes = argument n
    Argument(u8),
    /// bytes = argument n × argument m, saturating
    Product(u8, u8),
    /// bytes = min(length of the string at argument `string`, argument `length`) + 1
    Copied {
        string: u8,
        length: Option<u8>,
    },
}

/// Place of the new block's address after the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResultAt {
    /// The call returns no new block.
    Nowhere,
    /// The return value; null means failure. For a [`Role::ResizeInPlace`], it is not an address but the
    /// resulting size.
    Returned,
    /// Stored through the pointer in argument n, only if the function returns 0.
    StoredThrough(u8),
}

/// Places of a call's operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    pub size: SizeAt,
    /// Argument with the block to free or resize.
    pub block: Option<u8>,
    pub result: ResultAt,
}

impl Shape {
    /// Arguments that a probe reads at the start of a call, unordered, possibly repeated.
    pub fn arguments(self) -> impl Iterator<Item = u8> {
        let size = match self.size {
            SizeAt::Nowhere => [None, None],
            SizeAt::Argument(n) => [Some(n), None],
            SizeAt::Product(n, m) => [Some(n), Some(m)],
            SizeAt::Copied { string, length } => [Some(string), length],
        };
        let result = match self.result {
            ResultAt::Nowhere | ResultAt::Returned => None,
            ResultAt::StoredThrough(n) => Some(n),
        };
        size.into_iter().chain([self.block, result]).flatten()
    }
}

/// The interface to which a function belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// C and POSIX allocation as glibc exports it; interposers such as tcmalloc define the same names.
    Libc,
    /// C++ `operator new` and `operator delete`.
    Cxx,
    /// jemalloc's functions besides those of C, and all of its functions if their names have a prefix.
    Jemalloc,
    Mimalloc,
    /// The names of gperftools' tcmalloc besides those of C and C++.
    Tcmalloc,
    /// The names of google/tcmalloc besides those of C and C++.
    TcmallocInternal,
    /// The Boehm-Demers-Weiser collector, which frees unreachable blocks without a call.
    Collector,
    /// The functions that Rust code calls, whatever its allocator is.
    Rust,
    Given,
    /// The USDT probes of processes that sample their allocations themselves (`super::usdt`).
    Usdt,
    /// Not a function: page faults (`--faults`), which have a row among the functions for their number and
    /// name.
    Fault,
}

impl Family {
    /// True if a local symbol of this name is the function: the name is unique to it, and linkers make hidden
    /// symbols local.
    pub fn may_be_local(self) -> bool {
        !matches!(self, Self::Libc | Self::Cxx)
    }

    /// True if its functions often only forward a call, to `malloc` for example.
    pub fn often_forwards(self) -> bool {
        matches!(self, Self::Cxx | Self::Rust)
    }
}

/// Policy for reporting the function's absence from an allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Presence {
    /// Reported: every C library has it.
    Expected,
    /// Not reported: newer, obsolete, or missing from other C libraries.
    Optional,
}

/// Ways in which calls can end. A return probe ends the program unless each call returns to its caller, on
/// its own thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Returns {
    /// To its caller.
    Always,
    /// To its caller, or by an exception.
    OrThrows,
    /// Unknown: possibly on another thread, if a fiber waits in the function.
    Anywhere,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AllocFunction {
    pub name: Name,
    pub role: Role,
    pub shape: Shape,
    pub family: Family,
    pub returns: Returns,
    pub presence: Presence,
    /// True if its allocator also allocates its own records by this function, within calls of others.
    pub for_records: bool,
}

#[cfg(test)]
mod tests;
