//! Which address ranges hold live blocks: a walk of the block table that ends as soon as all are found to, or takes
//! too long.

use std::ops::Range;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore, MapFlags};
use unwind_tables::addr::Avma;

use crate::bpf::Kernel;
use crate::bpf::types::block_key;

/// Entries read at once.
const BATCH: u32 = 4096;
/// Longer than for a million blocks.
const MOST_TIME: Duration = Duration::from_millis(500);

/// Whether each of `ranges` (ascending, disjoint) holds a live block of an instance, as far as was found in time.
pub fn hold_blocks(kernel: &Kernel<'_>, instance: u32, ranges: &[Range<Avma>]) -> Vec<bool> {
    let mut found = vec![false; ranges.len()];
    let mut left = ranges.len();
    let until = Instant::now() + MOST_TIME;
    let blocks = &kernel.recorded.blocks;
    let Ok(all) = blocks.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY) else {
        return found;
    };
    for (number, (key, _)) in all.enumerate() {
        if left == 0 || (number % 4096 == 0 && Instant::now() > until) {
            break;
        }
        let Some((of, address)) = decode(&key).filter(|&(of, _)| of == instance) else {
            continue;
        };
        debug_assert_eq!(of, instance);
        let after = ranges.partition_point(|range| range.start <= address);
        let Some(at) = after.checked_sub(1).filter(|&at| address < ranges[at].end) else {
            continue;
        };
        if !std::mem::replace(&mut found[at], true) {
            left -= 1;
        }
    }
    found
}

/// The instance and address of a key.
fn decode(key: &[u8]) -> Option<(u32, Avma)> {
    let address = key
        .get(std::mem::offset_of!(block_key, address)..)?
        .first_chunk()?;
    let instance = key
        .get(std::mem::offset_of!(block_key, instance)..)?
        .first_chunk()?;
    Some((
        u32::from_ne_bytes(*instance),
        Avma::new(u64::from_ne_bytes(*address)),
    ))
}
