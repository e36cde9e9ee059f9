//! Parses records of perf_event_open(2), as the events of [`super::CodeLog`] write them, to [`Logged`].
//!
//! Pure. A record is a header, the fields of its kind, and a trailer with thread and time (`sample_id_all`).
//! The kernel writes records, but paths in them come from processes. A record that ends too early, or lacks a
//! field, is left out.

use std::ops::Range;

use libbpf_sys::{
    PERF_RECORD_COMM, PERF_RECORD_FORK, PERF_RECORD_LOST, PERF_RECORD_MISC_COMM_EXEC,
    PERF_RECORD_MISC_MMAP_BUILD_ID, PERF_RECORD_MISC_MMAP_DATA, PERF_RECORD_MMAP2,
};
use unwind_tables::addr::{Avma, FileOffset};

use super::{Change, Logged};
use crate::process::maps::{MapsEntry, MapsName};

/// Bytes of `struct perf_event_header`.
pub(super) const HEADER_BYTES: usize = 8;
/// Bytes of the trailer: process and thread, four bytes each, and eight of the time.
const TRAILER_BYTES: usize = 16;

/// Takes the first record off `bytes`; `None` if there is no whole record.
pub(super) fn take_record<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let size = u16::from_ne_bytes(*bytes.get(6..)?.first_chunk()?).into();
    if size < HEADER_BYTES {
        return None;
    }
    let (record, rest) = bytes.split_at_checked(size)?;
    *bytes = rest;
    Some(record)
}

/// Parses a record. `None` if it is not about code, is about a process outside of this pid namespace, or is
/// malformed.
pub(super) fn parse(record: &[u8]) -> Option<Logged> {
    let mut header = Fields(record);
    let kind = header.u32()?;
    let misc: u32 = u16::from_ne_bytes(header.take()?).into();
    let _size: [u8; 2] = header.take()?;
    let (body, trailer) = header.0.split_last_chunk::<TRAILER_BYTES>()?;
    let at = u64::from_ne_bytes(*trailer.last_chunk()?);
    let mut body = Fields(body);
    let (pid, what) = match kind {
        PERF_RECORD_MMAP2 => mapped(misc, &mut body)?,
        PERF_RECORD_COMM if misc & PERF_RECORD_MISC_COMM_EXEC != 0 => (body.u32()?, Change::Executed),
        PERF_RECORD_FORK => forked(&mut body)?,
        PERF_RECORD_LOST => {
            let _event = body.u64()?;
            return Some(Logged::lost(at, body.u64()?));
        }
        _ => return None,
    };
    is_here(pid).then_some(Logged { at, pid, what })
}

/// Returns whether this is the id of a process in this pid namespace: others have 0, or -1 once they end.
fn is_here(pid: u32) -> bool {
    i32::try_from(pid).is_ok_and(|pid| pid > 0)
}

fn mapped(misc: u32, body: &mut Fields<'_>) -> Option<(u32, Change)> {
    const READABLE: u32 = libc::PROT_READ.cast_unsigned();
    const WRITABLE: u32 = libc::PROT_WRITE.cast_unsigned();
    const EXECUTABLE: u32 = libc::PROT_EXEC.cast_unsigned();
    const SHARED: u32 = libc::MAP_SHARED.cast_unsigned();
    let pid = body.u32()?;
    let _thread = body.u32()?;
    let range = range(body.u64()?, body.u64()?)?;
    let offset = body.u64()?;
    let device = (body.u32()?, body.u32()?);
    let inode = body.u64()?;
    let _generation = body.u64()?;
    let (protection, flags) = (body.u32()?, body.u32()?);
    let end = memchr::memchr(0, body.0)?;
    let name = name(body.0.get(..end)?);
    let has_identity = misc & PERF_RECORD_MISC_MMAP_BUILD_ID == 0;
    if misc & PERF_RECORD_MISC_MMAP_DATA != 0 || !has_identity || protection & EXECUTABLE == 0 {
        return None;
    }
    let has_file = matches!(name, MapsName::File { .. });
    let entry = MapsEntry {
        range,
        executable: true,
        writable: protection & WRITABLE != 0,
        readable: protection & READABLE != 0,
        shared: flags & SHARED != 0,
        offset: FileOffset::new(if has_file { offset } else { 0 }),
        device,
        inode,
        name,
    };
    Some((pid, Change::Mapped(entry)))
}

fn range(start: u64, bytes: u64) -> Option<Range<Avma>> {
    let end = start.checked_add(bytes)?;
    (start < end).then(|| Avma::new(start)..Avma::new(end))
}

/// Parses a name. Some names, which `/proc/PID/maps` does not have, begin with two slashes: `//anon` for
/// memory without a name, `//toolong` or `//enomem` for a path that the kernel could not write. No path of a
/// file does.
fn name(name: &[u8]) -> MapsName {
    match name {
        b"//anon" => MapsName::Anonymous,
        _ => MapsName::from_kernel(name),
    }
}

/// Parses a fork; `None` for a thread, which is logged like a process whose parent is its own process.
fn forked(body: &mut Fields<'_>) -> Option<(u32, Change)> {
    let (pid, parent) = (body.u32()?, body.u32()?);
    let parent_here = if is_here(parent) { parent } else { 0 };
    (pid != parent).then_some((pid, Change::Forked { parent: parent_here }))
}

/// The rest of a record, from which fields are taken.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const BYTES: usize>(&mut self) -> Option<[u8; BYTES]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }
}
