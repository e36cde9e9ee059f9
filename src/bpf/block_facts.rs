//! Facts about blocks beyond their amounts (`bpf/store/block_facts.h`): names of the threads that allocated
//! them, and how long freed ones have lived.

use std::collections::HashMap;
use std::sync::Arc;

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::load_error::LoadError;
use super::skeleton::{MemleakMaps, types};

/// Classes of the ages of freed blocks: the first is of temporary ones.
pub(crate) const LIFE_SPANS: usize = types::block_facts::LIFE_SPANS.0 as usize;

/// Low bits of the time of a block that have the number of a thread's name.
pub(crate) const NAME_MASK: u64 = (1 << types::block_facts::THREAD_NAME_BITS.0) - 1;

/// Facts about blocks, where blocks are recorded.
pub(crate) struct BlockFacts {
    /// Array of `types::life_spans`, with the indices of stack records; `None` if mappings or pages are
    /// recorded.
    spans: Option<MapHandle>,
    /// Table from `types::thread_name` to its number.
    names: MapHandle,
}

impl BlockFacts {
    /// Handles of a loaded object's maps; the object records blocks if `are_of_blocks`.
    pub(super) fn of(maps: &MemleakMaps<'_>, are_of_blocks: bool) -> Result<Self, LoadError> {
        let spans = are_of_blocks.then(|| MapHandle::try_from(&maps.life_spans));
        Ok(Self {
            spans: spans.transpose()?,
            names: MapHandle::try_from(&maps.thread_names)?,
        })
    }

    /// Freed blocks of a stack record by the class of their age; none if they are not known.
    pub(super) fn spans(&self, record: u32) -> [u64; LIFE_SPANS] {
        let spans = self.spans.as_ref();
        let spans = spans.and_then(|spans| spans.lookup(&record.to_ne_bytes(), MapFlags::ANY).ok()?);
        let mut counts = [0; LIFE_SPANS];
        let (words, _) = spans.as_deref().unwrap_or_default().as_chunks();
        for (count, word) in counts.iter_mut().zip(words) {
            *count = u64::from_ne_bytes(*word);
        }
        counts
    }

    /// Sets the counts of an unreferenced record to 0.
    pub(super) fn clear_spans(&self, record: u32) -> Result<(), libbpf_rs::Error> {
        let zeros = [0; LIFE_SPANS * size_of::<u64>()];
        let spans = self.spans.as_ref();
        spans.map_or(Ok(()), |spans| {
            spans.update(&record.to_ne_bytes(), &zeros, MapFlags::ANY)
        })
    }

    /// Names of threads by their numbers, read by key: the table only grows, and a name that is entered
    /// meanwhile belongs to blocks that are younger than the report.
    pub(crate) fn thread_names(&self) -> HashMap<u16, Arc<str>> {
        let named = |key: Vec<u8>| {
            let number = self.names.lookup(&key, MapFlags::ANY).ok().flatten()?;
            let number = u32::from_ne_bytes(*number.first_chunk()?);
            let end = key.iter().position(|&byte| byte == 0).unwrap_or(key.len());
            let name = String::from_utf8_lossy(key.get(..end)?).into();
            Some((u16::try_from(number).ok()?, name))
        };
        self.names.keys().filter_map(named).collect()
    }
}
