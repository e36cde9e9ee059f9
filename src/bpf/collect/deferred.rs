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
use crate::bpf::types::{deferral, deferred_walk, stack_part};

/// Bytes before the parts of the stack.
const HEADER_BYTES: usize = size_of::<deferred_walk>();
const WORD: usize = size_of::<u64>();
/// Bytes of a part of a stack.
const PART: usize = deferral::STACK_PART.0 as usize;
/// Parts of the longest copy.
const PARTS: usize = deferral::STACK_PARTS.0 as usize;
/// Bytes of a part with its place.
const SENT_PART: usize = size_of::<stack_part>();
const PARTS_PER_WORD: usize = u64::BITS as usize;

/// A walk that the kernel side did not finish, since something that it needs was not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferredWalk {
    /// Nanoseconds of the kernel's monotonic clock.
    pub at: u64,
    pub instance: u32,
    /// Stack record of its block.
    pub stand_in: u32,
    pub function: u8,
    /// Number of the chain of Python frames; 0 for none.
    pub python: u32,
    /// Epoch of the mappings that the kernel side knew.
    pub epoch: u32,
    /// Cause of its end in the kernel, and the address where it ended.
    pub end: End,
    pub end_pc: Avma,
    /// Number of frames found in the kernel, and the first of them.
    pub frame_count: usize,
    pub frames: Vec<Frame>,
    pub start: Registers,
    /// Link register at the start, if known (AArch64).
    pub link: Option<u64>,
    pub stack: StackCopy,
    /// Trampoline of return probes; 0 for none. `replaced` has the slots that point to it, each with the
    /// address that it replaced there.
    pub trampoline: Avma,
    pub replaced: Vec<(Avma, Avma)>,
}

/// Part of a stack.
type Part = [u8; PART];

/// Copy of the inner part of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackCopy {
    /// Address of its first byte, a multiple of the size of a part.
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

/// Parts of stacks that the kernel side sent last, each at its place. For the next walk, it sends only parts
/// that differ from these.
#[derive(Clone, Debug)]
struct SentStack {
    parts: Box<[Part]>,
    /// Index of each part in [`RawWalks::parts`]; [`ABSENT`] if it is not there.
    numbers: [u32; PARTS],
}

/// Walks as they were received. All memory is reserved at the start, so that adding a walk never waits for
/// memory.
#[derive(Debug, Default)]
pub(super) struct RawWalks {
    walks: Vec<RawWalk>,
    /// Index in `parts` of each part of each walk; [`ABSENT`] for those that could not be read.
    numbers: Vec<u32>,
    parts: Vec<Part>,
}

/// Receives the records of the queue, in their order.
#[derive(Debug)]
pub(super) struct Receiver {
    sent: Vec<SentStack>,
    received: RawWalks,
}

/// Index of a part that is not there.
const ABSENT: u32 = u32::MAX;
/// Maximum number of walks, as many as a JVM makes in a second; and of distinct parts, which take 64 MiB.
const MAX_WALKS: usize = 1 << 16;
const MAX_PARTS: usize = 1 << 17;

impl Receiver {
    /// Receives from a kernel side that keeps `sent` stacks.
    ///
    /// # Errors
    ///
    /// There is not enough memory.
    pub(super) fn new(sent: usize) -> Result<Self, TryReserveError> {
        Ok(Self {
            sent: (0..sent).map(|_| SentStack::nothing()).collect(),
            received: RawWalks::with_room()?,
        })
    }

    /// Adds a record. Leaves out a malformed one.
    pub(super) fn add(&mut self, record: &[u8]) {
        let Some((header, changed)) = record.split_first_chunk::<HEADER_BYTES>() else {
            return;
        };
        let sent = half(header, offset_of!(deferred_walk, sent_stack));
        let sent = usize::try_from(sent)
            .ok()
            .and_then(|number| self.sent.get_mut(number));
        let Some(sent) = sent else {
            return;
        };
        let (changed, _) = changed.as_chunks::<SENT_PART>();
        for part in changed {
            sent.change(part);
        }
        let walks = &mut self.received;
        let start = whole(header, offset_of!(deferred_walk, stack_start));
        let first = walks.numbers.len();
        let count = half(header, offset_of!(deferred_walk, parts)) as usize;
        for number in 0..count.min(PARTS) {
            let word = whole(
                header,
                offset_of!(deferred_walk, unread) + number / PARTS_PER_WORD * WORD,
            );
            let is_unread = word >> (number % PARTS_PER_WORD) & 1 != 0;
            let at = start.wrapping_add((number * PART) as u64);
            walks.numbers.push(match is_unread {
                true => ABSENT,
                false => sent.number_at(at, &mut walks.parts),
            });
        }
        walks.walks.push(RawWalk {
            header: *header,
            start,
            parts: first..walks.numbers.len(),
        });
    }

    pub(super) fn received(&self) -> &RawWalks {
        &self.received
    }

    /// Returns the walks received so far; the next ones go to `room`. The kernel side's stacks remain known.
    pub(super) fn replace(&mut self, room: RawWalks) -> RawWalks {
        self.sent.iter_mut().for_each(|sent| sent.numbers.fill(ABSENT));
        std::mem::replace(&mut self.received, room)
    }
}

impl RawWalks {
    /// Reserves room for walks. Memory is used only as they are added.
    ///
    /// # Errors
    ///
    /// There is not enough memory.
    pub(super) fn with_room() -> Result<Self, TryReserveError> {
        let mut room = Self::default();
        room.walks.try_reserve_exact(MAX_WALKS)?;
        room.numbers.try_reserve_exact(MAX_WALKS * PARTS)?;
        room.parts.try_reserve_exact(MAX_PARTS)?;
        Ok(room)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.walks.is_empty()
    }

    /// Returns whether there is room for `more` walks.
    pub(super) fn have_room(&self, more: usize) -> bool {
        self.walks.capacity() - self.walks.len() >= more
            && self.numbers.capacity() - self.numbers.len() >= more * PARTS
            && self.parts.capacity() - self.parts.len() >= more * PARTS
    }

    /// All walks, without malformed ones.
    pub(super) fn walks(self) -> Vec<DeferredWalk> {
        let all = Arc::new(self.parts);
        let stack_of = |walk: &RawWalk| {
            let numbers = self.numbers.get(walk.parts.clone()).unwrap_or_default();
            let index = |&number: &u32| (number != ABSENT).then_some(number);
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

impl SentStack {
    /// Creates a stack of zeros, as those of the kernel side are at first.
    fn nothing() -> Self {
        Self {
            parts: vec![[0; PART]; PARTS].into_boxed_slice(),
            numbers: [ABSENT; PARTS],
        }
    }

    /// Stores a part that was sent at its place.
    fn change(&mut self, part: &[u8; SENT_PART]) {
        let place = place_of(whole(part, offset_of!(stack_part, place)));
        let words = part.last_chunk::<PART>();
        if let (Some(to), Some(words)) = (self.parts.get_mut(place), words) {
            *to = *words;
        }
        if let Some(number) = self.numbers.get_mut(place) {
            *number = ABSENT;
        }
    }

    /// Returns the index in `all` of the part that was at an address; adds it if it is not there.
    fn number_at(&mut self, at: u64, all: &mut Vec<Part>) -> u32 {
        let place = place_of(at / PART as u64);
        let (Some(part), Some(number)) = (self.parts.get(place), self.numbers.get_mut(place)) else {
            return ABSENT;
        };
        if *number == ABSENT {
            all.push(*part);
            *number = u32::try_from(all.len() - 1).unwrap_or(ABSENT);
        }
        *number
    }
}

/// Place of the part at the address `parts * PART`.
fn place_of(parts: u64) -> usize {
    usize::try_from(parts % PARTS as u64).unwrap_or_default()
}

impl DeferredWalk {
    /// Parses what comes before the copy of the stack; `None` if it is malformed.
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
            python: half(offset_of!(deferred_walk, python)),
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

    fn put(record: &mut [u8], at: usize, bytes: &[u8]) {
        record[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A record of a walk in stack 1 of the kernel side. The copy has six parts from 0x9000 on; the third
    /// could not be read.
    fn record() -> Vec<u8> {
        let mut record = vec![0; HEADER_BYTES];
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
            (offset_of!(deferred_walk, unread), 0b100),
            (offset_of!(deferred_walk, stack_start), 0x9000),
            (offset_of!(deferred_walk, trampoline), 0x5000),
            (offset_of!(deferred_walk, replaced_count), 1),
            (offset_of!(deferred_walk, replaced), 0x9010),
            (offset_of!(deferred_walk, replaced) + WORD, 0x6009),
            (offset_of!(deferred_walk, frames), 0x6001),
        ] {
            put(&mut record, at, &value.to_ne_bytes());
        }
        for (at, value) in [
            (offset_of!(deferred_walk, instance), 3_u32),
            (offset_of!(deferred_walk, stand_in), 4711),
            (offset_of!(deferred_walk, function), 5),
            (offset_of!(deferred_walk, epoch), 6),
            (offset_of!(deferred_walk, end), 8),
            (offset_of!(deferred_walk, frame_count), 1),
            (offset_of!(deferred_walk, parts), 6),
            (offset_of!(deferred_walk, sent_stack), 1),
        ] {
            put(&mut record, at, &value.to_ne_bytes());
        }
        record
    }

    /// A part of the stack, in its place, with one word that is not zero.
    fn part(at: u64, word: u64) -> Vec<u8> {
        let mut part = vec![0; SENT_PART];
        let place = at / PART as u64 % PARTS as u64;
        put(&mut part, offset_of!(stack_part, place), &place.to_ne_bytes());
        let offset = usize::try_from(at % PART as u64).expect("small");
        put(
            &mut part,
            offset_of!(stack_part, words) + offset,
            &word.to_ne_bytes(),
        );
        part
    }

    fn words<const N: usize>(walk: &DeferredWalk, addresses: [u64; N]) -> [Option<u64>; N] {
        addresses.map(|at| walk.stack.word(Avma::new(at)))
    }

    /// Fields are read from their offsets in the kernel side's struct.
    #[test]
    fn a_walk_is_decoded() {
        let mut receiver = Receiver::new(2).expect("there is memory");
        let received = receiver.received();
        assert!(received.is_empty() && received.have_room(1) && !received.have_room(MAX_WALKS));
        let record = record();
        receiver.add(&record[..HEADER_BYTES - 1]);
        receiver.add(&record);
        let walks = receiver.replace(RawWalks::default()).walks();
        let [walk] = &walks[..] else {
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
        assert_eq!(walk.stack.end(), Avma::new(0x9c00));
    }

    /// The kernel side sends only what has changed of a stack; each walk still has the words of its moment,
    /// and shares parts with others.
    #[test]
    fn stacks_are_put_together() {
        let mut receiver = Receiver::new(2).expect("there is memory");
        let addresses = [0x8ff8, 0x9008, 0x9208, 0x9408, 0x9608, 0x9bf8, 0x9c00];
        receiver.add(&[record(), part(0x9008, 0x1234), part(0x9608, 0x5678)].concat());
        receiver.add(&[record(), part(0x9008, 0x1235)].concat());
        let mut other_stack = record();
        put(
            &mut other_stack,
            offset_of!(deferred_walk, sent_stack),
            &0_u32.to_ne_bytes(),
        );
        receiver.add(&other_stack);
        put(
            &mut other_stack,
            offset_of!(deferred_walk, sent_stack),
            &2_u32.to_ne_bytes(),
        );
        receiver.add(&other_stack);
        assert_eq!(receiver.received().parts.len(), 5 + 1 + 5);
        let walks = receiver
            .replace(RawWalks::with_room().expect("there is memory"))
            .walks();
        let [first, second, other] = &walks[..] else {
            panic!("{walks:?}");
        };
        let expected = |words: [u64; 2]| [None, Some(words[0]), Some(0), None, Some(words[1]), Some(0), None];
        assert_eq!(words(first, addresses), expected([0x1234, 0x5678]));
        assert_eq!(words(second, addresses), expected([0x1235, 0x5678]));
        assert_eq!(words(other, addresses), expected([0, 0]));

        // Stacks remain known after the walks were taken.
        receiver.add(&[record(), part(0x9008 + (PARTS * PART) as u64, 0x4321)].concat());
        let walks = receiver.replace(RawWalks::default()).walks();
        assert_eq!(words(&walks[0], addresses), expected([0x4321, 0x5678]));
    }
}
