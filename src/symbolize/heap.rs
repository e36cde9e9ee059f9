//! What was freed goes back to the system. The only `unsafe` of `symbolize`.
//!
//! Debug information is parsed into many small pieces, and names that are remembered lie between them, so that glibc,
//! which returns nothing but the end of its heap by itself, keeps it all: 116 of 132 MB after a report on gold
//! (binutils' linker, with its package of debug files).
#![allow(unsafe_code)]

/// Gives back pages that nothing is on.
#[cfg(target_env = "gnu")]
pub(super) fn give_back() {
    // SAFETY: `malloc_trim` (malloc_trim(3)) takes no pointers, may be called by any thread at any time, and leaves
    // everything that is allocated where it is.
    let found = unsafe { libc::malloc_trim(0) };
    // Whether it found any makes no difference.
    _ = found;
}

/// Other C libraries' heaps are their own business.
#[cfg(not(target_env = "gnu"))]
pub(super) fn give_back() {}
