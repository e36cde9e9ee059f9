//! Stacks of threads, by the records that the C library keeps at their outer ends.
//!
//! glibc's `struct pthread` (`nptl/descr.h`, x86-64) begins with its own address, twice. It has the thread's
//! id, a pointer `joinid`, and 14 words behind that (2.36, by its debug information; the sources of 2.33
//! agree) the stack's address and size with the guard. The kernel clears the id when the thread ends;
//! `pthread_join` sets it to -1. `joinid` of a detached thread leads to itself. So:
//!
//! - an id: the thread runs;
//! - no id, not detached: ended, and not joined;
//! - no id and detached, or -1: ended, and kept in the cache of stacks.
//!
//! Another version may have `joinid` elsewhere: if some other word near it leads to the record, it is not
//! known which of the last two it is.
//!
//! musl's `struct pthread` (`pthread_impl.h`, 1.2) has its own address once, and the id, the
//! state, and the stack's mapping at fixed distances. musl keeps no stacks: one without a running thread
//! waits for `pthread_join`.
//!
//! Stacks that a program makes itself are not described like that, and neither are those on other
//! architectures, where the record is not at the outer end.

use std::ops::Range;

use unwind_tables::addr::Avma;

use crate::maps::{MapsEntry, MapsName};
use crate::smaps::Resident;

/// Bytes at the end of a stack that are searched for its record. The record has 2304 to 2496 bytes in glibc,
/// and some more of thread-local storage are behind that of musl.
const SEARCHED: u64 = 8192;
const WORDS: usize = 1024;

/// Size of the smallest stacks in bytes: musl's minimum is 2 KiB, and the thread's own data is beside it.
const SMALLEST: u64 = 8192;

/// State of a stack's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ThreadState {
    Running,
    /// Ended, neither joined nor detached.
    Unjoined,
    /// Ended; the C library keeps the stack for the next thread.
    Cached,
    /// Ended; it is not known whether it was joined or detached.
    Ended,
}

/// Stack of a thread, as the C library made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadStack {
    /// Index of its mapping.
    pub mapping: usize,
    pub state: ThreadState,
    /// The stack without its guard.
    pub range: Range<Avma>,
    /// Bytes without access below it.
    pub guard: u64,
    /// Address of its thread's record, which another thread can still read after the end of this one.
    pub record: Avma,
}

impl ThreadStack {
    /// Part of the stack that nothing uses any longer; `None` while its thread runs.
    pub fn dead(&self) -> Option<Range<Avma>> {
        match self.state {
            ThreadState::Running => None,
            ThreadState::Unjoined | ThreadState::Cached | ThreadState::Ended => {
                Some(self.range.start..self.record)
            }
        }
    }
}

/// Fills aligned words from an address on; false if not all of them can be read.
pub type ReadWords<'a> = &'a dyn Fn(u64, &mut [u64]) -> bool;

/// Finds the stacks that the C library describes in `mappings`, which ascend. `usual` is the size of stacks
/// if nothing else is said: the soft limit of the process.
pub fn find<'a>(
    read: ReadWords<'_>,
    mappings: impl Iterator<Item = &'a MapsEntry>,
    usual: u64,
) -> Vec<ThreadStack> {
    let mut stacks = Vec::new();
    // Another mapping can have become one with a stack that is below it: then the stack ends where stacks of
    // this process do.
    let mut sizes = vec![usual];
    sizes.extend(OF_MUSL);
    let mut last: Option<&MapsEntry> = None;
    for (index, mapping) in mappings.enumerate() {
        let before = last.replace(mapping);
        if !may_be(mapping) {
            continue;
        }
        let range = &mapping.range;
        let guard = before.filter(|before| is_guard(before) && before.range.end == range.start);
        let outer = guard.map_or(range.start, |guard| guard.range.start);
        let length = range.end.offset_from(range.start);
        let within = sizes.iter().filter(|&&size| size < length);
        let ends = within.map(|&size| (range.start.get() + size) & !7);
        let ends: Vec<u64> = [range.end.get()].into_iter().chain(ends).collect();
        let place = Place { range, outer };
        let found = ends.into_iter().find_map(|end| place.record(read, end));
        let Some(Described { state, stack, record }) = found else {
            continue;
        };
        let size = stack.end.offset_from(stack.start);
        if !sizes.contains(&size) && sizes.len() < MOST_SIZES {
            sizes.push(size);
        }
        stacks.push(ThreadStack {
            mapping: index,
            state,
            guard: range.start.offset_from(outer),
            range: stack,
            record,
        });
    }
    stacks
}

/// Sizes of stacks that musl makes: 128 KiB and the thread's own data.
const OF_MUSL: [u64; 3] = [132 << 10, 136 << 10, 140 << 10];
/// Maximum number of sizes of stacks that are tried.
const MOST_SIZES: usize = 8;

fn may_be(mapping: &MapsEntry) -> bool {
    let is_plain = mapping.readable && mapping.writable && !mapping.shared;
    let is_large = mapping.range.end.offset_from(mapping.range.start) >= SMALLEST;
    is_plain && is_large && mapping.name == MapsName::Anonymous
}

fn is_guard(mapping: &MapsEntry) -> bool {
    !mapping.readable && !mapping.writable && mapping.name == MapsName::Anonymous
}

/// Stack that a record describes.
struct Described {
    state: ThreadState,
    stack: Range<Avma>,
    record: Avma,
}

/// A mapping that may begin with a stack.
struct Place<'a> {
    range: &'a Range<Avma>,
    /// Start of the guard before it.
    outer: Avma,
}

impl Place<'_> {
    /// Finds the record of a stack that ends at `end`.
    fn record(&self, read: ReadWords<'_>, end: u64) -> Option<Described> {
        let mut words = [0; WORDS];
        let start = end.saturating_sub(SEARCHED).max(self.range.start.get());
        // The last page alone may be resident.
        let tries = [start, end.saturating_sub(SEARCHED / 2).max(start)];
        let (first, count) = tries.into_iter().find_map(|start| {
            let count = usize::try_from((end - start) / 8).ok()?;
            read(start, words.get_mut(..count)?).then_some((start, count))
        })?;
        let words = words.get(..count)?;
        let own = |&at: &usize| words.get(at) == Some(&(first + 8 * at as u64));
        (0..count).filter(own).find_map(|at| {
            let record = Record {
                words,
                at,
                address: first + 8 * at as u64,
            };
            let (state, stack) = record.of_glibc(self).or_else(|| record.of_musl(self))?;
            Some(Described {
                state,
                stack,
                record: Avma::new(record.address),
            })
        })
    }

    /// The stack, if memory of `size` bytes from `block` on is described that begins with the guard or in it.
    fn stack(&self, block: u64, size: u64) -> Option<Range<Avma>> {
        let end = Avma::new(block.checked_add(size)?);
        let may_begin = self.outer.get() <= block && block <= self.range.start.get();
        let may_end = self.range.start < end && end <= self.range.end;
        (may_begin && may_end).then_some(self.range.start..end)
    }
}

/// Words that may be the record of a thread, from one on that has its own address.
struct Record<'a> {
    words: &'a [u64],
    at: usize,
    address: u64,
}

impl Record<'_> {
    fn word(&self, number: usize) -> Option<u64> {
        self.words.get(self.at.checked_add(number)?).copied()
    }

    fn of_glibc(&self, place: &Place<'_>) -> Option<(ThreadState, Range<Avma>)> {
        const SELF: usize = 2;
        const ID: usize = 90;
        const DESCRIBED: Range<usize> = 150..280;
        const TO_JOIN_ID: usize = 14;
        /// Words before the description in which `joinid` of any version is.
        const NEAR: usize = 24;
        if self.word(SELF)? != self.address {
            return None;
        }
        let stack = |number: usize| place.stack(self.word(number)?, self.word(number + 1)?);
        let (described, stack) = DESCRIBED
            .into_iter()
            .find_map(|number| Some((number, stack(number)?)))?;
        let leads_back = |number: usize| self.word(number) == Some(self.address);
        let is_detached = leads_back(described - TO_JOIN_ID);
        let state = match low(self.word(ID)?) {
            u32::MAX => ThreadState::Cached,
            0 if is_detached => ThreadState::Cached,
            0 if (described - NEAR..described).any(leads_back) => ThreadState::Ended,
            0 => ThreadState::Unjoined,
            _ => ThreadState::Running,
        };
        Some((state, stack))
    }

    fn of_musl(&self, place: &Place<'_>) -> Option<(ThreadState, Range<Avma>)> {
        const STATE: usize = 7;
        const MAPPING: usize = 9;
        const EXITED: u32 = 0;
        let stack = place.stack(self.word(MAPPING)?, self.word(MAPPING + 1)?)?;
        let is_ended = low(self.word(STATE)?) == EXITED;
        let state = match is_ended {
            true => ThreadState::Unjoined,
            false => ThreadState::Running,
        };
        Some((state, stack))
    }
}

/// Lower half of a word.
fn low(word: u64) -> u32 {
    u32::try_from(word & 0xffff_ffff).unwrap_or_default()
}

/// Stacks of one state together, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackSum {
    pub count: u64,
    /// Address space without guards.
    pub reserved: u64,
    pub guards: u64,
    /// Resident bytes of their mappings.
    pub resident: u64,
    pub swapped: u64,
}

impl StackSum {
    /// Sums up the stacks of one state.
    pub fn of(stacks: &[ThreadStack], mappings: &[Resident], state: ThreadState) -> Self {
        let mut sum = Self::default();
        for stack in stacks.iter().filter(|stack| stack.state == state) {
            let mapping = mappings.get(stack.mapping);
            sum.count += 1;
            for (field, bytes) in [
                (&mut sum.reserved, stack.range.end.offset_from(stack.range.start)),
                (&mut sum.guards, stack.guard),
                (
                    &mut sum.resident,
                    mapping.map_or(0, |mapping| mapping.amounts.resident),
                ),
                (
                    &mut sum.swapped,
                    mapping.map_or(0, |mapping| mapping.amounts.swapped),
                ),
            ] {
                *field = field.saturating_add(bytes);
            }
        }
        sum
    }
}

/// Returns whether one of these addresses, which ascend, is in the mapping.
pub(super) fn has_pointer(mapping: &Resident, pointers: &[Avma]) -> bool {
    let range = &mapping.entry.range;
    let first = pointers.partition_point(|&pointer| pointer < range.start);
    pointers.get(first).is_some_and(|&pointer| pointer < range.end)
}
