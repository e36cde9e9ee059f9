//! Copy of a process's memory from a time when none of its threads ran.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use unwind_tables::addr::Avma;

use super::Memory;
use super::pages::Pages;
use super::reader::{Reader, down, length, up};

const WORD_BYTES: usize = size_of::<u64>();
/// Number of words that are shown at once.
const WORDS_AT_ONCE: usize = 1 << 14;
/// Bytes of extra room, for memory that the process takes before it is stopped and copied.
const SPARE_BYTES: u64 = 16 << 20;
/// Bytes of a sample by which the time of a copy is estimated.
const SAMPLE_BYTES: u64 = 64 << 20;

/// Memory of this process with room for a copy. All of it was touched: a copy must not wait for pages while
/// the other process is stopped.
#[derive(Debug)]
pub struct Room(Vec<u8>);

impl Room {
    /// Makes room for a copy of `pages`.
    ///
    /// # Errors
    ///
    /// `OutOfMemory` if that is more than `available` bytes, with both figures.
    pub fn new(pages: &Pages, available: u64) -> io::Result<Self> {
        let bytes = pages.bytes();
        let bytes = bytes.saturating_add(bytes / 16).saturating_add(SPARE_BYTES);
        let refuse = || {
            let text = format!("a copy needs {bytes} bytes of memory, {available} are available");
            io::Error::new(io::ErrorKind::OutOfMemory, text)
        };
        if bytes > available {
            return Err(refuse());
        }
        let mut room = Vec::new();
        let length = usize::try_from(bytes).map_err(|_| refuse())?;
        room.try_reserve_exact(length).map_err(|_| refuse())?;
        // Zeros might leave the pages untouched.
        room.resize(length, 0xff);
        Ok(Self(room))
    }

    /// Estimates how long it takes to copy all pages of `reader`, by a sample of them.
    pub fn expected_time(&mut self, reader: &Reader) -> Duration {
        let all = reader.pages().bytes();
        let some = all.clamp(1, SAMPLE_BYTES);
        let began = Instant::now();
        let end = usize::try_from(some).unwrap_or(0).min(self.0.len());
        reader.read_all(&mut self.0[..end]);
        began.elapsed().mul_f64(all as f64 / some as f64)
    }

    /// Returns the room's memory, resized to `length`.
    fn of(mut self, length: usize) -> Vec<u8> {
        self.0.resize(length, 0);
        self.0
    }
}

/// Contents of some pages.
#[derive(Debug)]
pub struct Copy {
    pages: Pages,
    /// Index in `bytes` of each run of pages.
    places: Vec<usize>,
    bytes: Vec<u8>,
}

impl Copy {
    /// Copies all pages of `reader`. Also returns the number of bytes that could not be read.
    pub fn of(reader: Reader, room: Room) -> (Self, u64) {
        let runs = reader.pages().runs();
        let mut end = 0;
        let mut places = Vec::with_capacity(runs.len());
        for run in runs {
            places.push(end);
            end += length(run);
        }
        let mut bytes = room.of(end);
        reader.read_all(&mut bytes);
        let unreadable = reader.unreadable();
        let copy = Self {
            pages: reader.into_pages(),
            places,
            bytes,
        };
        (copy, unreadable)
    }

    /// Pages that were copied.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Calls `see` with each part of `range` that was copied, and its address.
    fn parts<'a>(&'a self, range: &Range<Avma>, mut see: impl FnMut(Avma, &'a [u8])) {
        let runs = self.pages.runs();
        let first = runs.partition_point(|run| run.end <= range.start);
        let runs = runs.iter().zip(&self.places).skip(first);
        for (run, &place) in runs.take_while(|(run, _)| run.start < range.end) {
            let start = up(run.start.max(range.start));
            let end = down(run.end.min(range.end));
            if start < end {
                let place = place + length(&(run.start..start));
                see(start, &self.bytes[place..place + length(&(start..end))]);
            }
        }
    }
}

impl Memory for Copy {
    fn visit(&self, ranges: &[Range<Avma>], see: &mut dyn FnMut(Avma, &[u64])) {
        let mut words = Vec::with_capacity(WORDS_AT_ONCE);
        for range in ranges {
            self.parts(range, |mut at, bytes| {
                for part in bytes.chunks(WORDS_AT_ONCE * WORD_BYTES) {
                    let (chunks, _) = part.as_chunks();
                    words.clear();
                    words.extend(chunks.iter().map(|word| u64::from_ne_bytes(*word)));
                    see(at, &words);
                    at = at.wrapping_add(part.len() as u64);
                }
            });
        }
    }

    /// Reads pages that are not in the copy, or that could not be copied, as zeros.
    fn read(&self, at: Avma, words: &mut [u64]) -> bool {
        let Some(end) = at.checked_add((words.len() * WORD_BYTES) as u64) else {
            return false;
        };
        words.fill(0);
        self.parts(&(at..end), |start, bytes| {
            let (chunks, _) = bytes.as_chunks();
            let place = length(&(at..start)) / WORD_BYTES;
            for (word, chunk) in words.iter_mut().skip(place).zip(chunks) {
                *word = u64::from_ne_bytes(*chunk);
            }
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use memmap2::MmapOptions;

    use super::*;
    use memleak_base::pages;

    /// A copy shows memory as it was when the copy was made, for each range that is asked for, and zeros
    /// where there was none.
    #[test]
    fn of_own_memory() {
        let page = usize::try_from(pages::bytes()).expect("small");
        let mut memory = MmapOptions::new().len(8 * page).map_anon().expect("a mapping");
        for (place, number) in memory.chunks_exact_mut(8).zip(1_u64..) {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        let start = memory.as_ptr().addr() as u64;
        let at = |bytes: u64| Avma::new(start + bytes);
        let (size, words) = (pages::bytes(), pages::bytes() / 8);
        let both = vec![at(0)..at(2 * size), at(4 * size)..at(8 * size)];
        let reader = || Reader::new(std::process::id(), Pages::of(both.clone()));
        assert!(
            Room::new(reader().pages(), 6 * size).is_err(),
            "there is no spare"
        );
        let room = Room::new(reader().pages(), u64::MAX).expect("little");
        let (copy, unreadable) = Copy::of(reader(), room);
        assert_eq!(unreadable, 0);
        memory.fill(0x55);
        let mut seen = Vec::new();
        copy.visit(&[at(3)..at(20), at(size)..at(5 * size)], &mut |first, words| {
            seen.extend((first.get() - start..).step_by(8).zip(words.iter().copied()));
        });
        let expected = std::iter::once(8).chain((size..2 * size).step_by(8));
        let expected = expected.chain((4 * size..5 * size).step_by(8));
        assert_eq!(seen, expected.map(|at| (at, at / 8 + 1)).collect::<Vec<_>>());
        let mut words_read = [7; 4];
        assert!(copy.read(at(2 * size - 16), &mut words_read));
        assert_eq!(words_read, [2 * words - 1, 2 * words, 0, 0]);
        assert!(!copy.read(Avma::new(u64::MAX - 7), &mut words_read));
    }
}
