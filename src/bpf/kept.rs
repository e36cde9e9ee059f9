//! Places in the kernel that hold words for a process and are not shown in `/proc`, by BPF iterators:
//! `bpf/process/kept.h`.

use std::io;
use std::mem::offset_of;

use libbpf_rs::{Iter, Link};

use super::registers::{Registers, half_at, read_up_to, word_at};
use super::registers_skeleton::types::{kept_kind, kept_place};
use crate::process::kept::{InKernel, Place};
use leak_report::model::Hidden;

/// Bytes of a place's record.
const RECORD: usize = size_of::<kept_place>();
/// Maximum number of places that are read. Only descriptors that keep something have one.
const MAX_PLACES: usize = 1 << 20;

impl Registers<'_> {
    /// Reads what the kernel keeps for process `pid`, an id in memleak's own pid namespace.
    ///
    /// # Errors
    ///
    /// Errors of the kernel, or too many places.
    pub fn kept(&mut self, pid: u32) -> io::Result<Vec<InKernel>> {
        self.ask_for(pid)?;
        let mut bytes = Vec::new();
        for link in self.kept_links() {
            bytes.extend(records(link)?);
        }
        Ok(bytes.chunks_exact(RECORD).filter_map(parse).collect())
    }
}

fn records(link: &Link) -> io::Result<Vec<u8>> {
    let iterator = Iter::new(link).map_err(io::Error::other)?;
    let bytes = read_up_to(iterator, MAX_PLACES * RECORD)?;
    match bytes.len() > MAX_PLACES * RECORD {
        true => Err(io::Error::other("too many descriptors")),
        false => Ok(bytes),
    }
}

/// Parses a `struct kept_place`.
fn parse(record: &[u8]) -> Option<InKernel> {
    let word = |offset| word_at(record, offset);
    let half = |offset| half_at(record, offset);
    let found = half(offset_of!(kept_place, kind));
    if found == kept_kind::KEPT_SIGNAL.0 {
        let data = offset_of!(kept_place, data);
        let words = (data..RECORD).step_by(8).map(word);
        return Some(InKernel::Words(words.filter(|&word| word != 0).collect()));
    }
    let kinds = [
        (kept_kind::KEPT_SIGNALS_LEFT, Hidden::Signals),
        (kept_kind::KEPT_PIPE, Hidden::Pipes),
        (kept_kind::KEPT_SOCKET, Hidden::Sockets),
        (kept_kind::KEPT_QUEUE, Hidden::Queues),
        (kept_kind::KEPT_IO_URING, Hidden::IoUrings),
        (kept_kind::KEPT_AIO, Hidden::AioContexts),
    ];
    let (_, kind) = kinds.into_iter().find(|(kind, _)| kind.0 == found)?;
    let mode = half(offset_of!(kept_place, mode));
    Some(InKernel::Place(Place {
        kind,
        id: word(offset_of!(kept_place, id)),
        peer: word(offset_of!(kept_place, peer)),
        is_readable: mode & 1 != 0,
        is_writable: mode & 2 != 0,
        words: match kind {
            Hidden::Signals => u64::MAX,
            Hidden::Pipes
            | Hidden::Sockets
            | Hidden::Queues
            | Hidden::IoUrings
            | Hidden::AioContexts
            | Hidden::Unread => word(offset_of!(kept_place, words)),
        },
    }))
}
