//! Reads the block table and the young blocks, block by block, while the target runs. Totals of stacks need
//! no such walk (`snapshot`); this is for facts of single blocks: age and address.
//!
//! A block that is outstanding throughout the walk is seen exactly once, others at most once (`bpf::batch`).
//! Only sums are kept, so memory is bounded by the number of stacks and of young blocks, or, where single
//! blocks are requested, by the limits of the request (`listing`).

use std::collections::{HashMap, HashSet};
use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;

use unwind_tables::addr::Avma;

use super::judged::{Judged, JudgedBlocks};
use super::listing::{BlockPlace, ListRequest, Listing};
use super::makeup::MakeupSums;
use crate::bpf::types::{block, block_key};
use crate::bpf::{
    Batch, HashTable, Kernel, KernelTrace, NAME_MASK, Recorded, YoungBlocks, monotonic_nanoseconds,
};
use leak_report::model::{
    BlockList, LifeSpans, Makeup, StackBlocks, TextId, ThreadBlocks, Weight, WeightedAmount,
};

/// Words of a key and of a value of the block table.
const KEY_WORDS: usize = size_of::<block_key>() / size_of::<u64>();
const VALUE_WORDS: usize = size_of::<block>() / size_of::<u64>();

/// A time on the clock that blocks are timestamped with, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(u64);

impl Moment {
    /// Maximum time by which the timestamp of a block is early: 10 ms, a timer tick where there are 100 a
    /// second, and 66 µs, since its low 16 bits have the number of a thread's name.
    pub const PRECISION: Duration = Duration::from_micros(10_066);

    pub fn now() -> Self {
        Self(monotonic_nanoseconds())
    }

    /// The moment `time` before now.
    pub fn ago(time: Duration) -> Self {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self(monotonic_nanoseconds().saturating_sub(nanoseconds))
    }

    /// The moment as a time on the clock.
    pub fn since_boot(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Time from this moment to `at`, in nanoseconds of the same clock; 0 if `at` is earlier.
    pub fn until(self, at: u64) -> Duration {
        Duration::from_nanos(at.saturating_sub(self.0))
    }

    /// Time from `at` to this moment; 0 if `at` is later.
    pub(crate) fn age(self, at: u64) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(at))
    }
}

/// An outstanding block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub instance: u32,
    pub address: Avma,
    /// Requested size in bytes.
    pub size: u64,
    /// Nanoseconds of the kernel's monotonic clock.
    pub allocated_at: u64,
    /// Number of the name of the thread that allocated it; has no meaning in kernel mode.
    pub thread: u16,
    /// Number of its stack record, as [`StackTotals::record`](leak_report::model::StackTotals::record).
    pub stack: u32,
    /// Number of blocks that it stands for.
    pub weight: Weight,
}

impl Block {
    /// Amount that it adds to the totals of its stack.
    pub fn amount(&self) -> WeightedAmount {
        self.weight.of(self.size)
    }

    /// Decodes an element of the table, in the layout of `struct block_key` and `struct block`.
    fn decode(key: &[u64; KEY_WORDS], value: &[u64; VALUE_WORDS]) -> Self {
        let time = whole(value, offset_of!(block, allocated_at));
        Self {
            instance: half(key, offset_of!(block_key, instance)),
            address: Avma::new(whole(key, offset_of!(block_key, address))),
            size: whole(value, offset_of!(block, size)),
            allocated_at: time & !NAME_MASK,
            thread: u16::try_from(time & NAME_MASK).unwrap_or_default(),
            stack: half(value, offset_of!(block, stack)),
            weight: Weight::stored(half(value, offset_of!(block, weight))),
        }
    }
}

/// The `u64` at byte `at`.
fn whole(words: &[u64], at: usize) -> u64 {
    words.get(at / size_of::<u64>()).copied().unwrap_or_default()
}

/// The `u32` at byte `at`.
fn half(words: &[u64], at: usize) -> u32 {
    let bytes = whole(words, at).to_ne_bytes();
    let half = bytes
        .get(at % size_of::<u64>()..)
        .and_then(|bytes| bytes.first_chunk());
    half.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Handles of the block table and the young blocks. Any thread can read them, also after the rest of the
/// kernel side is unloaded.
pub struct BlockTable {
    table: HashTable,
    young: YoungBlocks,
    /// Names of threads, by their numbers.
    names: HashMap<u16, Arc<str>>,
    /// Record numbers of the stacks that stand-ins stand for.
    found: HashMap<u32, u32>,
}

impl BlockTable {
    /// Handles of `kernel`'s blocks.
    ///
    /// # Errors
    ///
    /// The process is out of file descriptors.
    pub fn of(kernel: &Kernel<'_>) -> Result<Self, libbpf_rs::Error> {
        Self::of_recorded(&kernel.recorded)
    }

    /// Handles of kernel mode's blocks.
    pub fn of_kernel_mode(trace: &KernelTrace<'_>) -> Result<Self, libbpf_rs::Error> {
        Self::of_recorded(&trace.recorded)
    }

    fn of_recorded(recorded: &Recorded) -> Result<Self, libbpf_rs::Error> {
        Ok(Self {
            table: recorded.blocks.try_clone()?,
            young: recorded.young.try_clone()?,
            names: recorded.thread_names(),
            found: recorded.finished().records(),
        })
    }

    /// Calls `see` with every block.
    pub fn visit(&self, mut see: impl FnMut(Block)) -> Result<(), libbpf_rs::Error> {
        // Young blocks first: they can move to the table meanwhile, never back.
        let mut young = HashSet::new();
        let decode = |key: &_, value: &_| {
            let block = Block::decode(key, value);
            let stack = self.found.get(&block.stack).copied();
            Block {
                stack: stack.unwrap_or(block.stack),
                ..block
            }
        };
        for (key, value) in self.young.blocks() {
            let block = decode(&key, &value);
            young.insert((block.instance, block.address));
            see(block);
        }
        self.table.walk(|Batch { keys, values }| {
            for (key, value) in words(keys).zip(words(values)) {
                let block = decode(&key, &value);
                if !young.contains(&(block.instance, block.address)) {
                    see(block);
                }
            }
        })
    }
}

/// Elements of `N` words each.
fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u64; N]> {
    let (words, _) = bytes.as_chunks();
    let (elements, _) = words.as_chunks();
    elements
        .iter()
        .map(|element: &[_; N]| element.map(u64::from_ne_bytes))
}

/// Outstanding blocks of a stack record.
#[derive(Clone, Debug, Default)]
struct RecordBlocks {
    by_age: StackBlocks<WeightedAmount>,
    makeup: MakeupSums,
}

/// Outstanding blocks at a moment, by stack.
#[derive(Clone, Debug, Default)]
pub struct LiveBlocks {
    /// Indexed by the number of the stack record.
    by_stack: Vec<Option<Box<RecordBlocks>>>,
    /// Names of threads, by their numbers.
    names: HashMap<u16, Arc<str>>,
    /// Single blocks, if requested.
    listing: Option<Box<Listing>>,
    judged: Option<JudgedBlocks>,
}

impl LiveBlocks {
    /// Reads all blocks, and separates those younger than `older` at `moment` from the others. Leaves out
    /// blocks allocated after `moment`, since the totals that were read then lack them, too. Lists the single
    /// blocks that `list` requests, and asks `judge`, if there is one, for the verdict on each.
    pub fn read(
        table: &BlockTable,
        moment: Moment,
        older: Duration,
        list: Option<ListRequest>,
        mut judge: Option<&mut dyn FnMut(&Block) -> Judged>,
    ) -> Result<Self, libbpf_rs::Error> {
        let mut live = Self {
            listing: list.map(|list| Box::new(Listing::new(list))),
            judged: judge.as_ref().map(|_| JudgedBlocks::default()),
            names: table.names.clone(),
            ..Self::default()
        };
        table.visit(|block| {
            live.add(&block, moment, older);
            if let (Some(judge), Some(judged)) = (judge.as_mut(), &mut live.judged) {
                let verdict = judge(&block);
                if block.allocated_at <= moment.0 {
                    judged.add(block.stack, verdict, block.amount());
                }
            }
        })?;
        Ok(live)
    }

    fn add(&mut self, block: &Block, moment: Moment, older: Duration) {
        // Cannot fail: the kernel side has fewer stack records.
        let Ok(number) = usize::try_from(block.stack) else {
            return;
        };
        if block.allocated_at > moment.0 {
            return;
        }
        if self.by_stack.len() <= number {
            self.by_stack.resize(number + 1, None);
        }
        let stack = self.by_stack[number].get_or_insert_default();
        let age = moment.age(block.allocated_at);
        stack.by_age.count(age, older, block.amount());
        stack.makeup.add(block);
        if let Some(listing) = &mut self.listing {
            listing.add(block, age, older);
        }
    }

    /// Sums of the blocks of a stack record.
    pub fn of(&self, record: u32) -> StackBlocks {
        let stack = self.record(record);
        stack.map(|stack| stack.by_age.rounded()).unwrap_or_default()
    }

    fn record(&self, record: u32) -> Option<&RecordBlocks> {
        let number = usize::try_from(record).unwrap_or(usize::MAX);
        self.by_stack.get(number)?.as_deref()
    }

    /// Blocks of the stack with these records, by size and by thread; `text_of` enters names of threads.
    pub fn makeup(&self, records: &[u32], mut text_of: impl FnMut(&str) -> TextId) -> Makeup {
        let mut sums = MakeupSums::default();
        let stacks = records.iter().filter_map(|&record| self.record(record));
        stacks.for_each(|stack| sums.add_all(&stack.makeup));
        let threads = sums.by_thread(&self.names).into_iter();
        let threads = threads.map(|(name, amount)| ThreadBlocks {
            name: name.map(&mut text_of),
            amount,
        });
        Makeup {
            sizes: sums.size_classes(),
            threads: threads.collect(),
            freed: LifeSpans::default(),
        }
    }

    /// Blocks by the verdict on them; `None` if not requested.
    pub fn judged(&self) -> Option<&JudgedBlocks> {
        self.judged.as_ref()
    }

    /// Single blocks of the stack with these records, with their classes; `text_of` enters names of classes.
    /// `None` if not requested.
    pub fn listed(&self, records: &[u32], text_of: impl FnMut(&str) -> TextId) -> Option<BlockList> {
        let listing = self.listing.as_ref();
        listing.map(|listing| listing.of(records, text_of))
    }

    /// Places of all blocks that are listed, each with its age.
    pub fn listed_places(&self) -> impl Iterator<Item = (BlockPlace, Duration)> {
        self.listing.iter().flat_map(|listing| listing.places())
    }

    /// Sets the C++ classes of listed blocks.
    pub fn set_classes(&mut self, classes: HashMap<BlockPlace, String>) {
        if let Some(listing) = &mut self.listing {
            listing.set_classes(classes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leak_report::model::{Amount, Estimate, Spread};

    fn block(stack: u32, size: u64, allocated_at: u64) -> Block {
        Block {
            instance: 1,
            address: Avma::new(0x1000),
            size,
            allocated_at,
            thread: 0,
            stack,
            weight: Weight::stored(1f32.to_bits()),
        }
    }

    fn amount(bytes: u64, blocks: u64) -> Estimate {
        let recorded = blocks;
        Estimate {
            amount: Amount { bytes, blocks },
            spread: Spread {
                recorded,
                ..Spread::default()
            },
        }
    }

    /// A block of exactly the given age is old; a younger one is not, even shortly after boot; blocks
    /// allocated after the moment are left out.
    #[test]
    fn young_and_old() {
        let older = Duration::from_nanos(500);
        let read = |now, blocks: &[Block]| {
            let mut live = LiveBlocks::default();
            blocks
                .iter()
                .for_each(|block| live.add(block, Moment(now), older));
            live
        };
        let live = read(
            1000,
            &[
                block(3, 1, 500),
                block(3, 2, 501),
                block(3, 4, 1000),
                block(3, 8, 1001),
                block(9, 16, 0),
            ],
        );
        assert_eq!((live.of(3).old, live.of(3).young), (amount(1, 1), amount(6, 2)));
        assert_eq!(
            live.of(3).ages.classes().next().map(|(_, amount)| amount),
            Some(amount(7, 3))
        );
        assert_eq!(live.of(9).old, amount(16, 1));
        assert_eq!(live.of(4), StackBlocks::default());
        assert_eq!(live.of(u32::MAX), StackBlocks::default());
        let booted = read(100, &[block(0, 1, 0), block(0, 1, 100)]);
        assert_eq!(
            (booted.of(0).old, booted.of(0).young),
            (amount(0, 0), amount(2, 2))
        );
    }

    /// Fields are read from their offsets in the kernel side's structs.
    #[test]
    fn a_block_is_decoded() {
        let bytes = |parts: &[&[u8]]| parts.concat();
        let key = bytes(&[&0x7f00_1234_u64.to_ne_bytes(), &7_u32.to_ne_bytes(), &[0xff; 4]]);
        let value = bytes(&[
            &(5_u64 << 40).to_ne_bytes(),
            &(77_u64 << 16 | 5).to_ne_bytes(),
            &11_u32.to_ne_bytes(),
            &2.5f32.to_ne_bytes(),
        ]);
        let expected = Block {
            instance: 7,
            address: Avma::new(0x7f00_1234),
            weight: Weight::stored(2.5f32.to_bits()),
            thread: 5,
            ..block(11, 5 << 40, 77 << 16)
        };
        let decoded = words(&key).zip(words(&value));
        let decoded: Vec<_> = decoded.map(|(key, value)| Block::decode(&key, &value)).collect();
        assert_eq!(decoded, [expected]);
    }
}
