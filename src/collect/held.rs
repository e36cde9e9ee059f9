//! How much of address ranges is in live blocks: a walk of the block table, for as long as it may take.

use std::ops::Range;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags};
use unwind_tables::addr::Avma;

use crate::bpf::types::{block, block_key};
use crate::bpf::{Kernel, Sampling};

/// Entries read at once.
const BATCH: u32 = 4096;
/// Longer than for a million blocks.
const MOST_TIME: Duration = Duration::from_millis(500);

/// What was found in address ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes of live blocks that begin in each.
    pub bytes: Vec<u64>,
    /// Every block was looked at, and stands for itself alone.
    pub is_all: bool,
}

/// What each of `ranges` (ascending, disjoint) holds of the live blocks of an instance.
pub fn held(kernel: &Kernel<'_>, instance: u32, ranges: &[Range<Avma>]) -> Held {
    let mut held = Held {
        bytes: vec![0; ranges.len()],
        is_all: kernel.recorded.sampling == Sampling::All,
    };
    let until = Instant::now() + MOST_TIME;
    let blocks = &kernel.recorded.blocks;
    let Ok(all) = blocks.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY) else {
        return Held {
            is_all: false,
            ..held
        };
    };
    for (number, (key, value)) in all.enumerate() {
        if number % 4096 == 0 && Instant::now() > until {
            held.is_all = false;
            break;
        }
        let Some((of, address, size)) = decode(&key, &value) else {
            continue;
        };
        let after = ranges.partition_point(|range| range.start <= address);
        let at = after.checked_sub(1).filter(|&at| address < ranges[at].end);
        if let Some(at) = at.filter(|_| of == instance) {
            held.bytes[at] = held.bytes[at].saturating_add(size);
        }
    }
    held
}

/// The instance, the address and the size of a block.
fn decode(key: &[u8], value: &[u8]) -> Option<(u32, Avma, u64)> {
    let address = key
        .get(std::mem::offset_of!(block_key, address)..)?
        .first_chunk()?;
    let instance = key
        .get(std::mem::offset_of!(block_key, instance)..)?
        .first_chunk()?;
    let size = value.get(std::mem::offset_of!(block, size)..)?.first_chunk()?;
    Some((
        u32::from_ne_bytes(*instance),
        Avma::new(u64::from_ne_bytes(*address)),
        u64::from_ne_bytes(*size),
    ))
}
