//! Returns freed memory to the system. The only `unsafe` code of `symbolize`.
//!
//! Debug information is parsed into many small pieces, with cached names allocated between them, so that
//! glibc, which by itself returns only the end of its heap, keeps it all: 116 of 132 MB after a report on
//! gold (binutils' linker, with its package of debug files).
#![allow(unsafe_code, reason = "a function of glibc that no crate has")]

/// Resident anonymous memory of this process in bytes; 0 if not known.
pub(super) fn own_bytes() -> usize {
    // In pages: total, resident, and the file-backed part of resident (proc_pid_statm(5)).
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut pages = text.split(' ').skip(1).map(|pages| pages.parse().unwrap_or(0));
    let (resident, of_files): (usize, usize) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    let page = usize::try_from(memleak_base::pages::bytes()).unwrap_or(0);
    resident.saturating_sub(of_files).saturating_mul(page)
}

/// Returns free pages to the system.
#[cfg(target_env = "gnu")]
pub(super) fn trim() {
    // SAFETY: `malloc_trim` (malloc_trim(3)) takes no pointers, may be called by any thread at any time, and
    // does not move allocated blocks.
    let found = unsafe { libc::malloc_trim(0) };
    // Returns whether memory was released, which makes no difference here.
    _ = found;
}

/// Only glibc has `malloc_trim`.
#[cfg(not(target_env = "gnu"))]
pub(super) fn trim() {}
