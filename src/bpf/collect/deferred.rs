//! Parses walks for user space to finish (`bpf/calls/deferral.h`). The session finishes them.

use std::collections::TryReserveError;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;

use unwind_tables::addr::Avma;
use unwind_tables::program::REGISTERS;
use unwind_tables::walk::{End, Frame, Registers};

use super::fields::{half, whole};
use super::snapshot::decode_frame;
use crate::bpf::types::{deferral, deferred_walk};

/// Bytes before the copy of the stack.
const HEADER_BYTES: usize = size_of::<deferred_walk>();
const WORD: usize = size_of::<u64>();
const PIECE: usize = deferral::STACK_PIECE.0 as usize;

/// A walk that the kernel side did not finish, as something that it needs was not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferredWalk {
    /// Nanoseconds of the kernel's monotonic clock.
    pub at: u64,
    pub instance: u32,
    /// Stack record of its block.
    pub stand_in: u32,
    pub function: u8,
    /// Epoch of the mappings that the kernel side knew.
    pub epoch: u32,
    /// Cause of its end in the kernel, and where.
    pub end: End,
    pub end_pc: Avma,
    /// Number of frames found in the kernel, and the first of them.
    pub frame_count: usize,
    pub frames: Vec<Frame>,
    pub start: Registers,
    /// Link register at the start, if known (AArch64).
    pub link: Option<u64>,
    pub stack: StackCopy,
    /// Trampoline of return probes; 0 for none. And the addresses that were replaced by it, each with its slot.
    pub trampoline: Avma,
    pub replaced: Vec<(Avma, Avma)>,
}

/// Bytes of the parts of a stack that copies share: from one walk to the next, mostly the innermost frames change.
const PART: usize = 512;
/// Part of a stack.
type Part = [u8; PART];

/// Copy of a part of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackCopy {
    /// Where its first byte was: a multiple of a part.
    pub start: Avma,
    /// Index in `all` of each part; `None` for those that could not be read.
    parts: Vec<Option<u32>>,
    /// Parts of all copies that were received together, which share most of them.
    all: Arc<Vec<Part>>,
}

impl StackCopy {
    /// Returns the 8 bytes at an address, a multiple of 8; `None` if they are not in the copy.
    pub fn word(&self, at: Avma) -> Option<u64> {
        let offset = usize::try_from(at.get().checked_sub(self.start.get())?).ok()?;
        let number = (*self.parts.get(offset / PART)?)?;
        let part = self.all.get(usize::try_from(number).ok()?)?;
        let word = part.get(offset % PART..)?.first_chunk()?;
        Some(u64::from_ne_bytes(*word))
    }

    /// Address behind the last byte.
    pub fn end(&self) -> Avma {
        self.start.wrapping_add((self.parts.len() * PART) as u64)
    }
}

/// A walk as it was received.
#[derive(Clone, Debug)]
struct RawWalk {
    header: [u8; HEADER_BYTES],
    start: u64,
    /// Its parts in [`RawWalks::numbers`].
    parts: Range<usize>,
}

/// Walks as they were received. All memory is there from the beginning: whoever adds one never waits for some.
#[derive(Debug, Default)]
pub(super) struct RawWalks {
    walks: Vec<RawWalk>,
    /// Index in `parts` of each part of each walk; [`UNREAD`] for those that could not be read.
    numbers: Vec<u32>,
    parts: Vec<Part>,
}

const UNREAD: u32 = u32::MAX;
/// Maximum number of walks, and of parts that are not shared, which are 64 MiB.
const MAX_WALKS: usize = 1 << 14;
const MAX_PARTS: usize = 1 << 17;
/// Parts of the longest copy.
const LONGEST: usize = deferral::LONGEST_COPY.0 as usize / PART;

impl RawWalks {
    /// Room for walks. The memory is used only when they are added.
    ///
    /// # Errors
    ///
    /// There is not so much.
    pub(super) fn with_room() -> Result<Self, TryReserveError> {
        let mut room = Self::default();
        room.walks.try_reserve_exact(MAX_WALKS)?;
        room.numbers.try_reserve_exact(MAX_WALKS * LONGEST)?;
        room.parts.try_reserve_exact(MAX_PARTS)?;
        Ok(room)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.walks.is_empty()
    }

    /// Returns whether so many more walks fit in.
    pub(super) fn have_room(&self, more: usize) -> bool {
        self.walks.capacity() - self.walks.len() >= more
            && self.numbers.capacity() - self.numbers.len() >= more * LONGEST
            && self.parts.capacity() - self.parts.len() >= more * LONGEST
    }

    /// Adds a record of the queue. Leaves out one that is too short.
    pub(super) fn add(&mut self, record: &[u8]) {
        let Some((header, stack)) = record.split_first_chunk::<HEADER_BYTES>() else {
            return;
        };
        let start = whole(header, offset_of!(deferred_walk, stack_start));
        let read = whole(header, offset_of!(deferred_walk, stack_pieces));
        let (parts, _) = stack.as_chunks::<PART>();
        let before = self.walks.last().map(|walk| (walk.start, walk.parts.clone()));
        let first = self.numbers.len();
        let pieces = usize::try_from(u64::BITS - read.leading_zeros()).unwrap_or_default();
        for (part, number) in parts.iter().take(pieces * (PIECE / PART)).zip(0_usize..) {
            let offset = number * PART;
            let index = match read >> (offset / PIECE) & 1 {
                0 => UNREAD,
                _ => {
                    let at = start.wrapping_add(offset as u64);
                    self.same_part(before.as_ref(), at, part).unwrap_or_else(|| {
                        self.parts.push(*part);
                        u32::try_from(self.parts.len() - 1).unwrap_or(UNREAD)
                    })
                }
            };
            self.numbers.push(index);
        }
        self.walks.push(RawWalk {
            header: *header,
            start,
            parts: first..self.numbers.len(),
        });
    }

    /// Index of the part at `at` of the walk before, if it is the same.
    fn same_part(&self, before: Option<&(u64, Range<usize>)>, at: u64, part: &Part) -> Option<u32> {
        let (start, parts) = before?;
        let offset = usize::try_from(at.checked_sub(*start)?).ok()?;
        let number = *self.numbers.get(parts.clone())?.get(offset / PART)?;
        let known = self.parts.get(usize::try_from(number).ok()?)?;
        (known == part).then_some(number)
    }

    /// All walks, without those that make no sense.
    pub(super) fn walks(self) -> Vec<DeferredWalk> {
        let all = Arc::new(self.parts);
        let stack_of = |walk: &RawWalk| {
            let numbers = self.numbers.get(walk.parts.clone()).unwrap_or_default();
            let index = |&number: &u32| (number != UNREAD).then_some(number);
            StackCopy {
                start: Avma::new(walk.start),
                parts: numbers.iter().map(index).collect(),
                all: Arc::clone(&all),
            }
        };
        let walks = self.walks.iter();
        walks
            .filter_map(|walk| DeferredWalk::parse(&walk.header, stack_of(walk)))
            .collect()
    }
}

impl DeferredWalk {
    /// Parses what comes before the copy of the stack; `None` if it makes no sense.
    fn parse(header: &[u8; HEADER_BYTES], stack: StackCopy) -> Option<Self> {
        let half = |at| half(header, at);
        let whole = |at| whole(header, at);
        let words = |at: usize, count: usize| (0..count).map(move |number| whole(at + number * WORD));
        let count = |value: u64, max: u32| usize::try_from(value.min(max.into())).unwrap_or_default();
        let frame_count = half(offset_of!(deferred_walk, frame_count));
        let kept = count(frame_count.into(), deferral::DEFERRED_FRAMES.0);
        let replaced = count(
            whole(offset_of!(deferred_walk, replaced_count)),
            deferral::DEFERRED_RETURN_PROBES.0,
        );
        let mut general = [0; REGISTERS as usize];
        let registers = words(offset_of!(deferred_walk, registers), general.len());
        general
            .iter_mut()
            .zip(registers)
            .for_each(|(to, value)| *to = value);
        let pairs: Vec<u64> = words(offset_of!(deferred_walk, replaced), 2 * replaced).collect();
        let (pairs, _) = pairs.as_chunks();
        let has_link = whole(offset_of!(deferred_walk, link_known)) != 0;
        Some(Self {
            at: whole(offset_of!(deferred_walk, at)),
            instance: half(offset_of!(deferred_walk, instance)),
            stand_in: half(offset_of!(deferred_walk, stand_in)),
            function: u8::try_from(half(offset_of!(deferred_walk, function))).ok()?,
            epoch: half(offset_of!(deferred_walk, epoch)),
            end: End::from_number(half(offset_of!(deferred_walk, end)))?,
            end_pc: Avma::new(whole(offset_of!(deferred_walk, end_pc))),
            frame_count: usize::try_from(frame_count).ok()?,
            frames: words(offset_of!(deferred_walk, frames), kept)
                .map(decode_frame)
                .collect(),
            start: Registers {
                pc: Avma::new(whole(offset_of!(deferred_walk, pc))),
                general,
            },
            link: has_link.then(|| whole(offset_of!(deferred_walk, link))),
            stack,
            trampoline: Avma::new(whole(offset_of!(deferred_walk, trampoline))),
            replaced: pairs
                .iter()
                .map(|&[slot, address]| (Avma::new(slot), Avma::new(address)))
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unwind_tables::program::{FP, SP};
    use unwind_tables::walk::FoundBy;

    /// Fields are read from their offsets in the kernel side's struct, and of the copy only what could be read.
    #[test]
    fn a_walk_is_decoded() {
        let mut record = vec![0; HEADER_BYTES + 3 * PIECE];
        let mut put = |at: usize, bytes: &[u8]| record[at..at + bytes.len()].copy_from_slice(bytes);
        for (at, value) in [
            (offset_of!(deferred_walk, at), 77_u64),
            (offset_of!(deferred_walk, end_pc), 0x7001),
            (offset_of!(deferred_walk, pc), 0x6001),
            (
                offset_of!(deferred_walk, registers) + WORD * usize::from(SP),
                0x9008,
            ),
            (
                offset_of!(deferred_walk, registers) + WORD * usize::from(FP),
                0x9100,
            ),
            (offset_of!(deferred_walk, stack_pieces), 0b101),
            (offset_of!(deferred_walk, stack_start), 0x9000),
            (offset_of!(deferred_walk, trampoline), 0x5000),
            (offset_of!(deferred_walk, replaced_count), 1),
            (offset_of!(deferred_walk, replaced), 0x9010),
            (offset_of!(deferred_walk, replaced) + WORD, 0x6009),
            (offset_of!(deferred_walk, frames), 0x6001),
            (HEADER_BYTES + 8, 0x1234),
            (HEADER_BYTES + 2 * PIECE, 0x5678),
        ] {
            put(at, &value.to_ne_bytes());
        }
        for (at, value) in [
            (offset_of!(deferred_walk, instance), 3_u32),
            (offset_of!(deferred_walk, stand_in), 4711),
            (offset_of!(deferred_walk, function), 5),
            (offset_of!(deferred_walk, epoch), 6),
            (offset_of!(deferred_walk, end), 8),
            (offset_of!(deferred_walk, frame_count), 1),
        ] {
            put(at, &value.to_ne_bytes());
        }
        let mut received = RawWalks::with_room().expect("there is memory");
        assert!(received.is_empty() && received.have_room(1) && !received.have_room(MAX_WALKS));
        received.add(&record[..HEADER_BYTES - 1]);
        received.add(&record);
        // Of the next copy, one part is another, and the others are the same.
        record[HEADER_BYTES + 8] = 0x35;
        received.add(&record);
        assert_eq!(received.parts.len(), 2 * (PIECE / PART) + 1);
        let walks = received.walks();
        let [walk, next] = &walks[..] else {
            panic!("{walks:?}");
        };
        assert_eq!(
            (walk.at, walk.instance, walk.stand_in, walk.function, walk.epoch),
            (77, 3, 4711, 5, 6)
        );
        assert_eq!((walk.end, walk.end_pc), (End::TableNotLoaded, Avma::new(0x7001)));
        assert_eq!(
            walk.start,
            Registers::new(Avma::new(0x6001), Avma::new(0x9008), Avma::new(0x9100))
        );
        assert_eq!(walk.link, None);
        assert_eq!(
            walk.frames,
            [Frame {
                pc: Avma::new(0x6001),
                found_by: FoundBy::Probe,
                exact: false
            }]
        );
        assert_eq!(walk.replaced, [(Avma::new(0x9010), Avma::new(0x6009))]);
        let words = |walk: &DeferredWalk| {
            let addresses = [0x8ff8, 0x9008, 0x9ff8, 0xa000, 0xaff8, 0xb000, 0xbff8, 0xc000];
            addresses.map(|at| walk.stack.word(Avma::new(at)))
        };
        let mut expected = [
            None,
            Some(0x1234),
            Some(0),
            None,
            None,
            Some(0x5678),
            Some(0),
            None,
        ];
        assert_eq!(words(walk), expected);
        expected[1] = Some(0x1235);
        assert_eq!(words(next), expected);
        assert_eq!(walk.stack.end(), Avma::new(0xc000));
    }
}
