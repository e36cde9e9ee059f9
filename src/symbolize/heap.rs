//! What was freed goes back to the system. The only `unsafe` of `symbolize`.
//!
//! Debug information is parsed into many small pieces, and names that are remembered lie between them, so that glibc,
//! which returns nothing but the end of its heap by itself, keeps it all: 116 of 132 MB after a report on gold
//! (binutils' linker, with its package of debug files).
#![allow(unsafe_code, reason = "a function of glibc that no crate has")]

/// Bytes of memory that are this program's own and resident; 0 where that is not known.
pub(super) fn own_bytes() -> usize {
    // Pages: in all, resident, and of files among those (proc_pid_statm(5)).
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = text.split(' ').skip(1).map(|pages| pages.parse().unwrap_or(0));
    let (resident, of_files): (usize, usize) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    let page = usize::try_from(crate::base::pages::bytes()).unwrap_or(0);
    resident.saturating_sub(of_files).saturating_mul(page)
}

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
