//! Entries of all arrays, from the capacities that are asked for.

use leak_report::model::Sampling;

use super::load_error::LoadError;
use super::settings::Capacity;
use super::skeleton::types::{self, limits};

/// Capacity of the frame store, per stack.
const FRAMES_PER_STACK: u32 = 64;
// The verifier follows offsets of up to 512 MiB into an array; all of these stay below.
/// Maximum number of words of unwind tables: 256 MiB.
const MAX_TABLE_WORDS: u32 = 1 << 26;
/// Maximum number of mappings of one process, and of all lists: 256 MiB.
const MAX_MAPPINGS: u32 = 1 << 14;
const MAX_MAPPING_ENTRIES: u32 = 1 << 22;
/// Maximum number of stack records: 256 MiB.
const MAX_STACKS: u32 = 1 << 22;
/// Maximum number of stored frames: 256 MiB.
const MAX_FRAME_ENTRIES: u32 = 1 << 25;

/// Walk memos, shared by all threads: about 3 MiB.
const MEMOS: u32 = 1 << 11;
/// Maximum and minimum number of places for young blocks, 64 bytes each. With fewer than the minimum, blocks
/// leave their place too soon.
const MAX_YOUNG: u32 = 1 << 15;
const MIN_YOUNG: u32 = 1 << 6;
/// One young place per this many blocks of capacity: enough that hardly any place is empty when the capacity
/// is used up.
const YOUNG_SHARE: u32 = 32;

/// Records of code objects of Python, some 400 bytes each, and frames of all chains, 8 bytes each.
const PYTHON_CODES: u32 = 1 << 14;
const PYTHON_FRAMES: u32 = 1 << 20;
/// Words of all tables of lines: 4 MiB.
const PYTHON_LINES: u32 = 1 << 19;

/// Entries of the arrays; powers of two unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) table_words: u32,
    /// Mappings per list.
    pub(super) mappings: u32,
    /// Process slots, slot 0 included; not a power of two.
    pub(super) slots: u32,
    /// Mapping lists, two per slot.
    pub(super) lists: u32,
    pub(super) memos: u32,
    /// Stack records whose freed blocks' ages are counted; 1 for none.
    pub(super) spans: u32,
    /// Places for young blocks; 1 if young blocks are not kept apart.
    pub(super) young: u32,
    pub(super) stacks: u32,
    /// Stack records that may be used, the fixed ones included; not a power of two.
    pub(super) stack_capacity: u32,
    /// Stand-ins, whose records follow these.
    pub(super) stand_ins: u32,
    /// Equal to `stacks`, or 1 when every allocation is recorded.
    pub(super) variances: u32,
    pub(super) frames: u32,
    /// Frames that may be used; not a power of two.
    pub(super) frame_capacity: u32,
    pub(super) python: PythonSizes,
}

/// Entries of the arrays for Python; powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PythonSizes {
    pub(super) codes: u32,
    pub(super) chains: u32,
    pub(super) frames: u32,
    pub(super) lines: u32,
}

impl PythonSizes {
    /// Sizes without Python frames.
    pub(super) const NONE: Self = Self {
        codes: 1,
        chains: 1,
        frames: 1,
        lines: 1,
    };
    pub(super) const ALL: Self = Self {
        codes: PYTHON_CODES,
        chains: types::python_limits::PYTHON_CHAINS.0,
        frames: PYTHON_FRAMES,
        lines: PYTHON_LINES,
    };
}

impl Sizes {
    pub(super) fn new(capacity: &Capacity, sampling: Sampling) -> Result<Self, LoadError> {
        let stack_capacity = capacity.stacks.saturating_add(limits::FIRST_STACK.0);
        let frame_capacity = capacity
            .stacks
            .saturating_mul(FRAMES_PER_STACK)
            .clamp(1, MAX_FRAME_ENTRIES);
        let slots = capacity.processes.saturating_add(1);
        let lists = 2 * power_of_two("number of processes", slots, limits::MAX_PROCESSES.0)?;
        let mappings = power_of_two("number of mappings", capacity.mappings, MAX_MAPPINGS)?;
        let records = stack_capacity.saturating_add(capacity.stand_ins);
        let stacks = power_of_two("number of stacks", records, MAX_STACKS)?;
        Ok(Self {
            table_words: power_of_two("table memory", capacity.table_words.max(64), MAX_TABLE_WORDS)?,
            mappings: mappings.min(MAX_MAPPING_ENTRIES / lists),
            slots,
            lists,
            memos: MEMOS,
            spans: 1,
            young: 1,
            stacks,
            stack_capacity,
            stand_ins: capacity.stand_ins,
            variances: if sampling == Sampling::All { 1 } else { stacks },
            frames: power_of_two("number of frames", frame_capacity, MAX_FRAME_ENTRIES)?,
            frame_capacity,
            python: PythonSizes::NONE,
        })
    }

    /// Keeps young blocks apart. Their places count towards `blocks`, and are so few that all are in use when
    /// the capacity is used up.
    pub(super) fn keep_young(&mut self, blocks: u32) {
        let max = (blocks / YOUNG_SHARE).checked_ilog2();
        self.young = max.map_or(1, |bits| (1 << bits).min(MAX_YOUNG));
        if self.young < MIN_YOUNG {
            self.young = 1;
        }
    }

    /// Capacity of the block table, out of `blocks` in total.
    pub(super) fn table_blocks(&self, blocks: u32) -> u32 {
        match self.young {
            1 => blocks.max(1),
            young => blocks - young,
        }
    }

    pub(super) fn cache_slots(&self) -> u32 {
        self.lists << types::cache_shape::CACHE_BITS.0
    }
}

fn power_of_two(name: &'static str, value: u32, max: u32) -> Result<u32, LoadError> {
    value
        .checked_next_power_of_two()
        .filter(|&rounded| rounded <= max)
        .ok_or(LoadError::Capacity {
            name,
            value: value.into(),
            max: max.into(),
        })
}
