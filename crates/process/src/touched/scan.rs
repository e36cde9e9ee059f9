//! Finds the pages with content in large mappings by `PAGEMAP_SCAN` (Linux 6.7), which skips absent pages.
//!
//! Format: `Documentation/admin-guide/mm/pagemap.rst` of the kernel.
#![allow(unsafe_code, reason = "a system call that has no wrapper")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Kinds of pages (`PAGE_IS_*` of the kernel's `include/uapi/linux/fs.h`).
const OF_FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;
/// From Linux 6.15 on.
const GUARD: u64 = 1 << 8;

/// `PAGEMAP_SCAN`: reads and writes 96 bytes, type `f`, number 16.
const REQUEST: u64 = 3 << 30 | (size_of::<Request>() as u64) << 16 | 0x66 << 8 | 16;

/// Maximum number of runs that one call returns.
const RUNS_AT_ONCE: usize = 4096;

/// Addresses of pages, found in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Pages with content.
    Held(Range<u64>),
    /// Guard pages within a mapping: an access ends the program (`MADV_GUARD_INSTALL`, Linux 6.13). glibc
    /// makes those of stacks so from 2.42 on. The kernel reports them from Linux 6.15 on.
    Guard(Range<u64>),
}

/// `struct pm_scan_arg`.
#[derive(Debug, Default)]
#[repr(C)]
struct Request {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    runs: u64,
    run_count: u64,
    max_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

/// `struct page_region`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Run {
    start: u64,
    end: u64,
    kinds: u64,
}

/// Calls `see` with the runs of pages in `addresses` that have content (of a private mapping, only the
/// process's own pages), and with those that are guards, ascending.
///
/// # Errors
///
/// `Unsupported` if the kernel does not know the call; else the kernel's error.
pub(super) fn scan(
    pagemap: &File,
    addresses: &Range<u64>,
    is_shared: bool,
    see: &mut dyn FnMut(Found),
) -> io::Result<()> {
    let mut runs = vec![Run::default(); RUNS_AT_ONCE];
    let mut with_guards = true;
    let (mut next, mut seen) = (addresses.start, addresses.start);
    while next < addresses.end {
        let guard = if with_guards { GUARD } else { 0 };
        let mut request = Request {
            size: size_of::<Request>() as u64,
            start: next,
            end: addresses.end,
            runs: runs.as_mut_ptr() as u64,
            run_count: RUNS_AT_ONCE as u64,
            any_of: PRESENT | SWAPPED,
            returned: OF_FILE | PRESENT | SWAPPED | ZERO | guard,
            ..Request::default()
        };
        // SAFETY: the kernel writes to the request and to at most `run_count` runs.
        let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), REQUEST, &raw mut request) };
        let Ok(found) = usize::try_from(found) else {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINVAL) if with_guards => with_guards = false,
                Some(libc::ENOTTY | libc::EINVAL) => return Err(io::ErrorKind::Unsupported.into()),
                _ => return Err(error),
            }
            continue;
        };
        let has = |run: &Run, kind| run.kinds & kind != 0;
        let is_own = |run: &Run| is_shared || !(has(run, OF_FILE) || has(run, ZERO));
        let found = runs.iter().take(found);
        for run in found.filter(|run| has(run, GUARD) || is_own(run)) {
            // After a call that filled `runs`, the next one can return the last ones again.
            if run.end > seen {
                let new = run.start.max(seen)..run.end;
                see(match has(run, GUARD) {
                    true => Found::Guard(new),
                    false => Found::Held(new),
                });
                seen = run.end;
            }
        }
        // The walk is complete unless `runs` is full.
        next = request.walk_end.max(next + 1);
    }
    Ok(())
}
