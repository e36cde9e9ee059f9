//! Sizes of the kernel side's tables: what the processes need at the start, with room for what they may need
//! later.

use std::ops::Range;

use unwind_tables::addr::Avma;

use super::TraceConfig;
use super::prepared::Prepared;
use crate::bpf::Capacity;
use crate::process::{Mappings, Target};

/// Factor on the mappings at the start, as room for libraries that are loaded later.
const MAPPINGS_HEADROOM: usize = 4;
/// Factor on the table words at the start, as room for libraries that are loaded later.
const TABLES_HEADROOM: usize = 2;
const MIN_MAPPINGS: usize = 1 << 10;
/// Minimum if many processes are traced: 32 KiB of the kernel's memory for each.
const MIN_MAPPINGS_OF_MANY: usize = 1 << 8;
const MIN_TABLE_WORDS: usize = 1 << 20;
/// Factor on the table words at the start if others can come, which may run other programs.
const FOLLOWED_TABLES_HEADROOM: usize = 4;
const MIN_FOLLOWED_TABLE_WORDS: usize = 1 << 23;

/// Default size of the block table: one block per this many resident bytes of anonymous memory.
const RESIDENT_BYTES_PER_BLOCK: u64 = 64;
const MIN_BLOCKS: u32 = 1 << 20;
const MAX_BLOCKS: u32 = 1 << 25;

/// Default size of the stack table: one stack per this many bytes of code. clang, with a hundred megabytes of
/// code, allocates from 124 000 stacks. Each takes 640 bytes, in this program's memory too.
const CODE_BYTES_PER_STACK: u64 = 512;
const MIN_STACKS: u32 = 1 << 16;
const MAX_STACKS: u32 = 1 << 17;
/// Maximum number of outstanding blocks of deferred walks. While memleak waits for a CPU, one library can
/// allocate some thousand: libsqlite3 and OpenSSL each allocate 4000 blocks when they are loaded, and keep
/// them.
const STAND_INS: u32 = 1 << 15;

/// Capacities for a trace, by its present processes and those that can come.
pub(super) fn of(config: &TraceConfig, prepared: &Prepared) -> Capacity {
    let fit = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let counts = prepared.mappings.iter().map(|mappings| mappings.entries().len());
    let mappings = counts.max().unwrap_or(0) * MAPPINGS_HEADROOM;
    let processes = config.room_for_processes(prepared.targets.len());
    let least = match processes <= Capacity::FEW_PROCESSES {
        true => MIN_MAPPINGS,
        false => MIN_MAPPINGS_OF_MANY,
    };
    Capacity {
        table_words: fit(table_words(config, prepared.built.words())),
        mappings: fit(mappings.max(least)),
        processes,
        stacks: config
            .limits
            .stacks
            .unwrap_or_else(|| stacks(config.targets.follow_fork, &prepared.mappings)),
        stand_ins: STAND_INS,
        blocks: config.limits.blocks.unwrap_or_else(|| blocks(&prepared.targets)),
    }
}

/// Estimates the number of stacks from the size of the code; processes share no stacks.
fn stacks(follow_fork: bool, processes: &[Mappings]) -> u32 {
    let mappings = processes.iter().flat_map(Mappings::entries);
    let bytes = |range: &Range<Avma>| range.end.get().saturating_sub(range.start.get());
    let code: u64 = mappings.map(|mapping| bytes(&mapping.range)).sum();
    let stacks = match follow_fork {
        true => MAX_STACKS,
        false => u32::try_from(code / CODE_BYTES_PER_STACK).unwrap_or(u32::MAX),
    };
    let stacks = stacks.clamp(MIN_STACKS, MAX_STACKS).next_power_of_two();
    // The stacks with fixed meanings take the rest of the power of two.
    stacks - Capacity::FIXED_STACKS
}

/// Estimates the number of outstanding blocks from the resident memory. An entry of the block table takes 16
/// bytes; a block takes more only once it exists.
fn blocks(targets: &[Target]) -> u32 {
    let resident: u64 = targets.iter().filter_map(Target::anonymous_bytes).sum();
    let blocks = resident / RESIDENT_BYTES_PER_BLOCK;
    u32::try_from(blocks)
        .unwrap_or(u32::MAX)
        .clamp(MIN_BLOCKS, MAX_BLOCKS)
}

/// Words of the table store, a power of two: what `--table-memory` allows, or what the processes need now,
/// with headroom.
fn table_words(config: &TraceConfig, needed: usize) -> usize {
    let words_in = |bytes: u32| 1 << (bytes as usize / size_of::<u32>()).max(1).ilog2();
    match config.limits.table_memory {
        Some(bytes) => words_in(bytes),
        None => {
            let others = config
                .targets
                .members
                .as_ref()
                .filter(|members| members.has_others());
            let (min, headroom) = match config.targets.follow_fork || others.is_some() {
                true => (MIN_FOLLOWED_TABLE_WORDS, FOLLOWED_TABLES_HEADROOM),
                false => (MIN_TABLE_WORDS, TABLES_HEADROOM),
            };
            let words = (needed * headroom).max(min).next_power_of_two();
            words.min(words_in(TraceConfig::MAX_TABLE_MEMORY))
        }
    }
}
