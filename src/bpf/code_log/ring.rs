//! A ring that the kernel writes records of one CPU to, as perf_event_open(2) describes it.
//!
//! The kernel writes at `data_head`, and never beyond `data_tail`. Records that do not fit are lost; a
//! separate record with their number follows as soon as one fits again. Both positions only grow; their place
//! in the ring is their remainder.

use std::io;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use libbpf_sys::{PERF_COUNT_SW_DUMMY, PERF_SAMPLE_TID, PERF_SAMPLE_TIME};
use libbpf_sys::{perf_event_attr__bindgen_ty_2, perf_event_mmap_page};

use crate::base::pages;
use crate::bpf::memory::SharedWords;
use crate::bpf::perf_event::{self, Scope};

const WORD_BYTES: usize = size_of::<u64>();
/// Word of the first page with the position behind the last record; written by the kernel.
const HEAD: usize = offset_of!(perf_event_mmap_page, data_head) / WORD_BYTES;
/// Word of the first page with the position of the first unread record; written by memleak.
const TAIL: usize = offset_of!(perf_event_mmap_page, data_tail) / WORD_BYTES;

/// Bytes of the largest record: one of a mapping, with a path of `PATH_MAX` bytes.
const MAX_RECORD_BYTES: u64 = 4096 + 128;

/// Records that were read from a ring.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Content {
    /// Whole records, one behind the other, unless the kernel has written nonsense.
    pub(super) bytes: Vec<u8>,
    /// True if the ring was so full that records may not have fitted.
    pub(super) was_full: bool,
}

#[derive(Debug)]
pub(super) struct Ring {
    memory: SharedWords<AtomicU64>,
    // Words of the first page.
    header: usize,
    _event: OwnedFd,
}

impl Ring {
    /// Starts to log the changes of code on a CPU. The ring has `pages` data pages, a power of two, which is
    /// halved until the user may lock that much memory.
    ///
    /// # Errors
    ///
    /// The kernel refuses the event, or a ring of one page.
    pub(super) fn open(cpu: u32, pages: usize) -> io::Result<Self> {
        let event = open_event(cpu)?;
        let header = usize::try_from(pages::bytes()).map_err(io::Error::other)? / WORD_BYTES;
        let memory = largest(pages, |pages| SharedWords::map(&event, (1 + pages) * header))?;
        Ok(Self {
            memory,
            header,
            _event: event,
        })
    }

    /// Takes all records that were written until now.
    pub(super) fn take(&self) -> Content {
        let (header, data) = self.memory.words().split_at(self.header);
        let (Some(head), Some(tail)) = (header.get(HEAD), header.get(TAIL)) else {
            return Content {
                bytes: Vec::new(),
                was_full: true,
            };
        };
        // Acquires the records that the kernel has written before.
        let end = head.load(Ordering::Acquire);
        let start = tail.load(Ordering::Relaxed);
        let bytes = copy(data, start, end);
        let was_full = is_full(data, start, head.load(Ordering::Relaxed));
        // Releases their memory, which was copied before.
        tail.store(end, Ordering::Release);
        Content { bytes, was_full }
    }

    /// Number of pages of data.
    #[cfg(test)]
    pub(super) fn pages(&self) -> usize {
        self.memory.words().len() / self.header - 1
    }
}

/// Opens an event that counts nothing, for its records. They have the clock of the probes. The event wakes no
/// reader: the ring is read on request.
fn open_event(cpu: u32) -> io::Result<OwnedFd> {
    let mut event = perf_event::software(PERF_COUNT_SW_DUMMY)?;
    event.sample_type = (PERF_SAMPLE_TID | PERF_SAMPLE_TIME).into();
    event.clockid = libc::CLOCK_MONOTONIC;
    event.__bindgen_anon_2 = perf_event_attr__bindgen_ty_2 {
        wakeup_watermark: u32::MAX,
    };
    event.set_watermark(1);
    event.set_use_clockid(1);
    event.set_sample_id_all(1);
    // `mmap` asks for executable mappings, `mmap2` for their files.
    event.set_mmap(1);
    event.set_mmap2(1);
    // `comm` asks for exec, and also for renaming; `task` for fork, and also for exit.
    event.set_comm(1);
    event.set_comm_exec(1);
    event.set_task(1);
    perf_event::open(&event, Scope::Cpu(cpu))
}

/// Maps a ring of `pages` pages. Halves the number as long as the kernel refuses it as too much locked memory
/// (EPERM).
pub(super) fn largest<T>(pages: usize, mut map: impl FnMut(usize) -> io::Result<T>) -> io::Result<T> {
    let mut pages = pages;
    loop {
        match map(pages) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => pages /= 2,
            result => return result,
        }
        if pages == 0 {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "no memory may be locked for the log of code mappings: raise `ulimit -l` or kernel.perf_event_mlock_kb",
            ));
        }
    }
}

/// Copies the bytes between two positions; none if that is more than the ring can have.
pub(super) fn copy(data: &[AtomicU64], start: u64, end: u64) -> Vec<u8> {
    let words = |bytes: u64| usize::try_from(bytes / WORD_BYTES as u64).ok();
    let count = words(end.wrapping_sub(start)).filter(|count| *count <= data.len());
    let first = u64::try_from(data.len() * WORD_BYTES)
        .ok()
        .and_then(|size| words(start.checked_rem(size)?));
    let (Some(count), Some((wrapped, from))) = (count, first.and_then(|first| data.split_at_checked(first)))
    else {
        return Vec::new();
    };
    let words = from.iter().chain(wrapped).take(count);
    words
        .flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes())
        .collect()
}

/// Returns whether there is less room than the largest record takes, or, if that is less, than half of the
/// ring.
fn is_full(data: &[AtomicU64], start: u64, end: u64) -> bool {
    let size = u64::try_from(data.len() * WORD_BYTES).unwrap_or(0);
    size.saturating_sub(end.wrapping_sub(start)) < MAX_RECORD_BYTES.min(size / 2)
}
