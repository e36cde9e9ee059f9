//! Free memory that outstanding blocks pin (`--pinned`), by stack record; and how the allocators of each
//! process use their memory.
//!
//! The allocators' structures are read first, and then the blocks. Of these, only blocks count that were
//! allocated before: at the address of any other, the structures may have had another block. What is
//! computed of a block that was freed in between counts as pinned by a block without a stack.

use std::collections::HashMap;
use std::io;

use super::phases::Phases;
use crate::bpf::Endings;
use crate::bpf::collect::{Block, BlockTable, Moment};
use crate::process::maps_of;
use crate::process::touched::ResidentPages;
use crate::reach::fragmentation::{Sums, Within, measure, shares};
use crate::reach::free;
use crate::reach::layout::Layout;
use crate::reach::pages::Pages;
use crate::reach::reader::Reader;
use leak_report::model::{
    AllocatorMemory, Fragmentation, HeldBytes, NotMeasured, Stack, Weight, WeightedAmount,
};

/// Pinned memory of the processes that ran.
#[derive(Debug, Default)]
pub(super) struct Pinned {
    by_instance: HashMap<u32, Fragmentation>,
    /// By stack record.
    by_record: HashMap<u32, WeightedAmount>,
}

impl Pinned {
    /// Uses of the memory of an instance; `None` if it did not run.
    pub(super) fn of_instance(&self, instance: u32) -> Option<&Fragmentation> {
        self.by_instance.get(&instance)
    }
}

/// Fills in what the blocks of `stacks` pin, each of which has `records`.
pub(super) fn fill(stacks: &mut [Stack], records: &[Vec<u32>], pinned: &Pinned) {
    for (stack, records) in stacks.iter_mut().zip(records) {
        let known = pinned.by_instance.get(&stack.instance);
        let sum = records.iter().filter_map(|record| pinned.by_record.get(record));
        let sum = sum.fold(WeightedAmount::default(), |sum, &more| sum + more);
        stack.pinned = known.and_then(Fragmentation::known).map(|_| sum.rounded());
    }
}

/// Layouts of a process, and the pages that it held.
struct Reading {
    layouts: Vec<Layout>,
    reader: Reader,
}

impl Reading {
    /// Reads the layouts of process `pid`.
    fn of(pid: u32) -> io::Result<Self> {
        let resident = ResidentPages::open(pid)?;
        let maps = maps_of(pid)?;
        let reader = Reader::new(pid, Pages::read(&resident, &maps)?);
        let layouts = free::layouts(&reader, &maps);
        resident.check()?;
        Ok(Self { layouts, reader })
    }
}

/// Stack record of a block, and the number of blocks that it stands for.
type Listed = (u64, (u32, Weight));

/// Finds what blocks pin that were not allocated later than `moment`, in some `processes`, pairs of instance
/// and process id.
pub(super) fn find(
    table: &BlockTable,
    processes: &[(u32, u32)],
    endings: &Endings,
    moment: Moment,
) -> Result<Pinned, libbpf_rs::Error> {
    let mut phases = Phases::begin();
    let mut readings = HashMap::new();
    let mut found = Pinned::default();
    let unknown = |instance, reason| match endings.has_ended(instance) {
        true => Fragmentation::Unknown(NotMeasured::Ended),
        false => Fragmentation::Unknown(reason),
    };
    for &(instance, pid) in processes {
        match Reading::of(pid) {
            Ok(reading) => {
                readings.insert(instance, (reading, Vec::new()));
            }
            Err(error) => {
                tracing::debug!("cannot read the allocators' structures of process {pid}: {error}");
                let fragmentation = unknown(instance, NotMeasured::Unreadable);
                found.by_instance.insert(instance, fragmentation);
            }
        }
    }
    phases.end("read structures");
    table.visit(|block| {
        if let Some((_, blocks)) = readings.get_mut(&block.instance)
            && moment.until(block.allocated_at).is_zero()
        {
            blocks.push(listed(&block));
        }
    })?;
    phases.end("list blocks");
    for (instance, (reading, mut blocks)) in readings {
        // Memory that was read by process id is the instance's if that has not ended by now.
        if endings.has_ended(instance) {
            let ended = Fragmentation::Unknown(NotMeasured::Ended);
            found.by_instance.insert(instance, ended);
            continue;
        }
        blocks.sort_unstable_by_key(|(address, _)| *address);
        let memory = join(&reading, &blocks, &mut found.by_record);
        let memory = memory.map_or_else(|reason| unknown(instance, reason), Fragmentation::Known);
        found.by_instance.insert(instance, memory);
    }
    phases.end("join");
    tracing::debug!("pinned memory found in steps: {phases}");
    Ok(found)
}

fn listed(block: &Block) -> Listed {
    (block.address.get(), (block.stack, block.weight))
}

/// Divides what the allocators' blocks pin among `blocks`, which ascend by address, and sums it up by stack
/// record. Returns the sums of each allocator.
///
/// If most of the blocks are in no block of the allocators that are known, the process uses another one, and
/// nothing is known.
fn join(
    reading: &Reading,
    blocks: &[Listed],
    by_record: &mut HashMap<u32, WeightedAmount>,
) -> Result<Vec<AllocatorMemory>, NotMeasured> {
    let mut sums: HashMap<u32, WeightedAmount> = HashMap::new();
    let mut placed = 0;
    let mut memory = Vec::new();
    for layout in &reading.layouts {
        let mut within = Within::new(blocks);
        let found = measure(layout, reading.reader.pages().runs(), &mut |block| {
            let inside = within.of(block);
            placed += inside.len();
            let shares = shares(block.pinned, inside.len());
            for (&(_, (stack, weight)), share) in inside.iter().zip(shares).filter(|(_, share)| *share > 0) {
                let sum = sums.entry(stack).or_default();
                *sum = *sum + weight.of(share);
            }
        });
        memory.push(AllocatorMemory {
            allocator: layout.allocator.in_reports(),
            held: held(&found.total()),
        });
    }
    if memory.is_empty() || placed < blocks.len() / 2 {
        return Err(NotMeasured::NoKnownAllocator);
    }
    by_record.extend(sums);
    Ok(memory)
}

fn held(sums: &Sums) -> HeldBytes {
    HeldBytes {
        held: sums.held,
        blocks: sums.blocks,
        cached: sums.cached,
        own: sums.own,
        unknown: sums.unknown,
        between: sums.between,
        whole: sums.whole,
        trimmable: sums.trimmable,
        pinned: sums.pinned,
        pinned_by_own: sums.pinned_by_own,
    }
}
