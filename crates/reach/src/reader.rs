//! Reads the memory of a running process, without writing to it and without stopping it.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use unwind_tables::addr::Avma;

use super::Memory;
use super::pages::Pages;
use memleak_base::pages;

const WORD_BYTES: usize = size_of::<u64>();
const WORD: u64 = WORD_BYTES as u64;
/// Bytes and ranges that one system call reads. The kernel's own limit is 1024 ranges (`IOV_MAX`).
const BYTES_AT_ONCE: usize = 1 << 20;
const RANGES_AT_ONCE: usize = 512;
/// Ranges, each of at most `BYTES_AT_ONCE` bytes, that one call copies.
const SPANS_AT_ONCE: usize = 64;
/// Gap in bytes up to which two ranges are cheaper to read as one.
const GAP: u64 = 1024;

/// Memory of a process, found by its pid: the caller makes sure that the process has not ended meanwhile.
#[derive(Debug)]
pub struct Reader {
    pid: Pid,
    /// `/proc/PID/mem`, which also reads pages that the process itself cannot access (`PROT_NONE`).
    file: Option<File>,
    pages: Pages,
    buffer: RefCell<Vec<u8>>,
    read: Cell<u64>,
    unreadable: Cell<u64>,
}

/// Ranges that are read together: `spans` of memory, consecutive in the buffer, and the requested `pieces` of
/// these.
#[derive(Debug, Default)]
struct Batch {
    spans: Vec<Range<Avma>>,
    /// Each with the offset of its first byte in the buffer.
    pieces: Vec<(usize, Range<Avma>)>,
    bytes: usize,
}

impl Reader {
    /// Memory of process `pid`, of which only `pages` are read.
    pub fn new(pid: u32, pages: Pages) -> Self {
        Self {
            pid: Pid::from_raw(i32::try_from(pid).unwrap_or(-1)),
            file: File::open(format!("/proc/{pid}/mem")).ok(),
            pages,
            buffer: RefCell::new(vec![0; BYTES_AT_ONCE]),
            read: Cell::new(0),
            unreadable: Cell::new(0),
        }
    }

    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    pub(super) fn into_pages(self) -> Pages {
        self.pages
    }

    /// Fills `bytes` with the contents of all pages, consecutively, as far as they fit.
    pub(super) fn read_all(&self, mut bytes: &mut [u8]) {
        let mut spans = Vec::new();
        for run in self.pages.runs() {
            let mut start = run.start;
            while start < run.end {
                let together: usize = spans.iter().map(length).sum();
                let room = bytes.len() - together;
                if room == 0 {
                    break;
                }
                let end = start.wrapping_add(room.min(BYTES_AT_ONCE) as u64).min(run.end);
                spans.push(start..end);
                if spans.len() == SPANS_AT_ONCE {
                    bytes = self.fill_first(&mut spans, bytes);
                }
                start = end;
            }
        }
        self.fill_first(&mut spans, bytes);
    }

    /// Reads `spans` to the start of `bytes`, clears `spans`, and returns the rest of `bytes`.
    fn fill_first<'a>(&self, spans: &mut Vec<Range<Avma>>, bytes: &'a mut [u8]) -> &'a mut [u8] {
        let together = spans.iter().map(length).sum();
        let (these, rest) = bytes.split_at_mut(together);
        self.fill(spans, these);
        self.read.set(self.read.get() + these.len() as u64);
        spans.clear();
        rest
    }

    /// Bytes read so far.
    pub fn read(&self) -> u64 {
        self.read.get()
    }

    /// Bytes that could not be read, and count as zeros; included in [`read`](Self::read).
    pub fn unreadable(&self) -> u64 {
        self.unreadable.get()
    }

    /// Reads a batch, and calls `see` with the words of each of its pieces.
    fn flush(&self, batch: &mut Batch, see: &mut dyn FnMut(Avma, &[u64])) {
        let mut buffer = self.buffer.borrow_mut();
        let bytes = &mut buffer[..batch.bytes];
        self.fill(&batch.spans, bytes);
        self.read.set(self.read.get() + batch.bytes as u64);
        let mut words = Vec::new();
        for (place, piece) in batch.pieces.drain(..) {
            let bytes = &bytes[place..place + length(&piece)];
            let (chunks, _) = bytes.as_chunks();
            words.clear();
            words.extend(chunks.iter().map(|word| u64::from_ne_bytes(*word)));
            see(piece.start, &words);
        }
        batch.spans.clear();
        batch.bytes = 0;
    }

    /// Fills `bytes` with the memory of `spans`. Memory that cannot be read becomes zeros, which lead
    /// nowhere.
    fn fill(&self, spans: &[Range<Avma>], mut bytes: &mut [u8]) {
        let mut spans = spans.iter().cloned();
        let mut left: Vec<Range<Avma>> = spans.by_ref().collect();
        while !left.is_empty() {
            let remote: Vec<_> = left.iter().filter_map(remote).collect();
            let read = process_vm_readv(self.pid, &mut [IoSliceMut::new(bytes)], &remote).unwrap_or(0);
            bytes = &mut bytes[read..];
            let mut read = read as u64;
            let mut rest = left.into_iter();
            left = Vec::new();
            for span in rest.by_ref() {
                let bytes_of = span.end.offset_from(span.start);
                if read < bytes_of {
                    let failed = span.start.wrapping_add(read);
                    // Read up to the end of the page through `/proc/PID/mem`, then go on with the rest.
                    let page_end = (failed.get() / pages::bytes() + 1).saturating_mul(pages::bytes());
                    let end = Avma::new(page_end).min(span.end);
                    let (these, others) = bytes.split_at_mut(length(&(failed..end)));
                    self.fill_hidden(failed, these);
                    bytes = others;
                    if end < span.end {
                        left.push(end..span.end);
                    }
                    break;
                }
                read -= bytes_of;
            }
            left.extend(rest);
        }
    }

    /// Fills `bytes` with memory that `process_vm_readv` cannot read.
    fn fill_hidden(&self, from: Avma, bytes: &mut [u8]) {
        let file = self.file.as_ref();
        let is_read = file.is_some_and(|file| file.read_exact_at(bytes, from.get()).is_ok());
        if !is_read {
            bytes.fill(0);
            self.unreadable.set(self.unreadable.get() + bytes.len() as u64);
        }
    }
}

impl Memory for Reader {
    fn visit(&self, ranges: &[Range<Avma>], see: &mut dyn FnMut(Avma, &[u64])) {
        let runs = self.pages.runs();
        let mut run = ranges
            .first()
            .map_or(0, |first| runs.partition_point(|run| run.end <= first.start));
        let mut batch = Batch::default();
        for range in ranges {
            run += runs[run..].partition_point(|run| run.end <= range.start);
            let touched = runs[run..].iter().take_while(|run| run.start < range.end);
            for run in touched {
                let mut next = up(run.start.max(range.start));
                let end = down(run.end.min(range.end));
                while next < end {
                    let room = BYTES_AT_ONCE - batch.bytes;
                    if batch.spans.len() == RANGES_AT_ONCE || room < WORD_BYTES {
                        self.flush(&mut batch, see);
                        continue;
                    }
                    next = batch.add(next..end, run.start);
                }
            }
        }
        self.flush(&mut batch, see);
    }

    /// Reads pages that were never touched as zeros.
    fn read(&self, at: Avma, words: &mut [u64]) -> bool {
        let bytes = words.len() as u64 * WORD;
        let Some(end) = at.checked_add(bytes) else {
            return false;
        };
        words.fill(0);
        let runs = self.pages.runs();
        let first = runs.partition_point(|run| run.end <= at);
        let touched = runs[first..].iter().take_while(|run| run.start < end);
        let spans: Vec<_> = touched.map(|run| run.start.max(at)..run.end.min(end)).collect();
        let before = self.unreadable.get();
        self.visit(&spans, &mut |start, found| {
            let place = length(&(at..start)) / WORD_BYTES;
            if let Some(words) = words.get_mut(place..place + found.len()) {
                words.copy_from_slice(found);
            }
        });
        self.unreadable.get() == before
    }
}

impl Batch {
    /// Adds as much of `range` as there is room for, and returns the end of that part. Memory from `readable`
    /// up to `range` can be read, too.
    fn add(&mut self, range: Range<Avma>, readable: Avma) -> Avma {
        let near = self.spans.last_mut().filter(|last| {
            last.end <= range.start && last.end >= readable && range.start.offset_from(last.end) <= GAP
        });
        let between = near.as_ref().map_or(0, |last| length(&(last.end..range.start)));
        let room = BYTES_AT_ONCE - self.bytes;
        let (between, near) = match between < room {
            true => (between, near),
            false => (0, None),
        };
        let bytes = length(&range).min(room - between);
        let end = range.start.wrapping_add(bytes as u64);
        match near {
            Some(last) => last.end = end,
            None => self.spans.push(range.start..end),
        }
        self.pieces.push((self.bytes + between, range.start..end));
        self.bytes += between + bytes;
        end
    }
}

fn remote(span: &Range<Avma>) -> Option<RemoteIoVec> {
    Some(RemoteIoVec {
        base: usize::try_from(span.start.get()).ok()?,
        len: length(span),
    })
}

pub(super) fn length(range: &Range<Avma>) -> usize {
    usize::try_from(range.end.get().saturating_sub(range.start.get())).unwrap_or(usize::MAX)
}

/// Address of the first word at or behind `address`.
pub(super) fn up(address: Avma) -> Avma {
    Avma::new(address.get().next_multiple_of(WORD))
}

/// The address of the word that `address` is in.
pub(super) fn down(address: Avma) -> Avma {
    Avma::new(address.get() / WORD * WORD)
}

#[cfg(test)]
mod tests {
    use memmap2::MmapOptions;

    use super::*;
    use memleak_process::maps_of;
    use memleak_process::touched::ResidentPages;

    /// Each word of some ranges is seen once, at its address, whatever lies between the ranges; memory that
    /// was never touched is left out.
    #[test]
    fn own_memory() {
        let page = usize::try_from(pages::bytes()).expect("small");
        let length = 700 * page;
        let mut memory = MmapOptions::new().len(length).map_anon().expect("a mapping");
        let start = memory.as_ptr().addr() as u64;
        let touched = |at: u64| at / pages::bytes() % 7 != 3;
        for (place, at) in memory.chunks_exact_mut(8).zip((0..).step_by(8)) {
            if touched(at) {
                place.copy_from_slice(&((start + at) ^ 0x55).to_ne_bytes());
            }
        }
        let pid = std::process::id();
        let resident = ResidentPages::open(pid).expect("our own");
        let maps = maps_of(pid).expect("our own");
        let reader = Reader::new(pid, Pages::read(&resident, &maps).expect("our own"));
        // Nearly two of every four pages, at unaligned addresses; and all of the rest.
        let (size, end) = (pages::bytes(), length as u64);
        let parts = (0..50).map(|number| number * 4 * size + 1..(number * 4 + 2) * size - 100);
        let parts: Vec<Range<u64>> = parts.chain(std::iter::once(200 * size..end)).collect();
        let ranges = parts
            .iter()
            .map(|part| Avma::new(start + part.start)..Avma::new(start + part.end));
        let mut seen = Vec::new();
        reader.visit(&ranges.collect::<Vec<_>>(), &mut |first, words| {
            let places = (first.get() - start..).step_by(8);
            seen.extend(places.zip(words.iter().copied()));
        });
        let is_asked = |at: &u64| {
            let within = |part: &Range<u64>| part.start <= *at && at + 8 <= part.end;
            touched(*at) && parts.iter().any(within)
        };
        let expected = (0..end).step_by(8).filter(is_asked);
        let expected: Vec<_> = expected.map(|at| (at, (start + at) ^ 0x55)).collect();
        assert_eq!(seen.len(), expected.len());
        assert_eq!(seen, expected);
        assert_eq!(reader.unreadable(), 0);
    }

    /// Memory that cannot be read is counted and read as zeros; memory behind it is read.
    #[test]
    fn unreadable_memory() {
        let page = usize::try_from(pages::bytes()).expect("small");
        let mut memory = MmapOptions::new().len(3 * page).map_anon().expect("a mapping");
        memory.fill(0x77);
        let start = memory.as_ptr().addr() as u64;
        let at = |page_number: u64| Avma::new(start + page_number * pages::bytes());
        let gone = Avma::new(16 * pages::bytes())..Avma::new(17 * pages::bytes());
        let all = Pages::of(vec![gone.clone(), at(0)..at(3)]);
        let reader = Reader::new(std::process::id(), all);
        let mut sum = [0, 0];
        reader.visit(&[gone, at(0)..at(3)], &mut |_, words| {
            for word in words {
                sum[usize::from(*word == 0x7777_7777_7777_7777)] += 1;
            }
        });
        let words = pages::bytes() / 8;
        assert_eq!(sum, [words, 3 * words]);
        assert_eq!(reader.unreadable(), pages::bytes());
    }
}
