//! Reading of a process's memory without an effect on it: only pages that are resident are read. A read of
//! an absent page would make the kernel map a page of zeros there, or fetch one from swap.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use memleak_base::pages;
use unwind_tables::addr::Avma;

use crate::process_memory::ProcessMemory;

/// Bit of an entry of `/proc/PID/pagemap`: the page is resident (`Documentation/admin-guide/mm/pagemap.rst`).
const PRESENT: u64 = 1 << 63;
/// Maximum number of pages whose entries one read can ask for: those of a huge page.
pub(super) const MOST_PAGES: usize = 512;

/// Memory of a process, as far as it is resident.
pub trait Contents {
    /// Fills `bytes` from `address` on; false if a page of them is not resident, or cannot be read.
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool;

    /// Number of resident pages among `count` pages from `address` on, at most `MOST_PAGES`.
    fn resident(&self, address: u64, count: usize) -> usize;
}

/// Reads words from `address` on.
pub(super) fn words<const COUNT: usize>(contents: &dyn Contents, address: u64) -> Option<[u64; COUNT]> {
    let mut words = [0; COUNT];
    fill(contents, address, &mut words).then_some(words)
}

/// Fills `words` from `address` on.
pub(super) fn fill(contents: &dyn Contents, address: u64, words: &mut [u64]) -> bool {
    let mut bytes = vec![0; size_of_val(words)];
    if !contents.read(address, &mut bytes) {
        return false;
    }
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = chunk.try_into().map_or(0, u64::from_ne_bytes);
    }
    true
}

/// Contents of a running process.
#[derive(Debug)]
pub(super) struct ProcessContents {
    memory: ProcessMemory,
    pagemap: File,
    /// Pages that were read last: structures are looked for at several places of one, and then on the next.
    last: RefCell<Window>,
}

/// Pages that follow each other and were read together.
#[derive(Debug, Default)]
struct Window {
    start: u64,
    /// Its bytes; none if its first page is not resident, or cannot be read.
    bytes: Vec<u8>,
}

impl Window {
    fn has(&self, page: u64) -> bool {
        (self.start..self.end()).contains(&page)
    }

    /// Address behind it; that of a page which cannot be read counts as well.
    fn end(&self) -> u64 {
        self.start
            .saturating_add((self.bytes.len() as u64).max(pages::bytes()))
    }
}

/// Pages that are read together if each page is looked at after the one before it.
const AHEAD: usize = 16;

impl ProcessContents {
    pub(super) fn open(pid: u32) -> io::Result<Self> {
        Ok(Self {
            memory: ProcessMemory::open(pid)?,
            pagemap: File::open(format!("/proc/{pid}/pagemap"))?,
            last: RefCell::new(Window::default()),
        })
    }

    /// Fills `bytes` from a place within a page on.
    fn read_within(&self, page: u64, at: usize, bytes: &mut [u8]) -> bool {
        let mut last = self.last.borrow_mut();
        if !last.has(page) {
            let count = if last.end() == page { AHEAD } else { 1 };
            *last = Window {
                start: page,
                bytes: self
                    .pages(page, count)
                    .or_else(|| self.pages(page, 1))
                    .unwrap_or_default(),
            };
        }
        let at = usize::try_from(page - last.start).map_or(usize::MAX, |before| before.saturating_add(at));
        let wanted = at
            .checked_add(bytes.len())
            .and_then(|end| last.bytes.get(at..end));
        wanted.map(|wanted| bytes.copy_from_slice(wanted)).is_some()
    }

    /// Reads those of `count` pages that are resident up to the first that is not; `None` if none is, or if
    /// they cannot be read.
    fn pages(&self, page: u64, count: usize) -> Option<Vec<u8>> {
        let mut entries = [0; AHEAD * 8];
        let is_present = self.present(page, entries.get_mut(..count * 8)?);
        let first = is_present.take_while(|is_present| *is_present).count();
        let length = usize::try_from(pages::bytes()).ok()?.checked_mul(first)?;
        let mut bytes = vec![0; length];
        let is_read = first > 0 && self.memory.read_exact_at(&mut bytes, Avma::new(page)).is_ok();
        is_read.then_some(bytes)
    }

    /// Reads the entries of pages from `address` on; returns for each whether it is resident.
    fn present<'a>(&self, address: u64, entries: &'a mut [u8]) -> impl Iterator<Item = bool> + use<'a> {
        let at = address / pages::bytes() * 8;
        let read = self.pagemap.read_at(entries, at).unwrap_or(0);
        let (entries, _) = entries.get(..read).unwrap_or_default().as_chunks();
        entries
            .iter()
            .map(|entry| u64::from_ne_bytes(*entry) & PRESENT != 0)
    }
}

impl Contents for ProcessContents {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let page = pages::bytes();
        let Some(last) = (bytes.len() as u64)
            .checked_sub(1)
            .and_then(|length| address.checked_add(length))
        else {
            return false;
        };
        let first = address / page * page;
        if last / page == address / page {
            let at = usize::try_from(address - first).unwrap_or(usize::MAX);
            return self.read_within(first, at, bytes);
        }
        let count = usize::try_from(last / page - address / page).map_or(usize::MAX, |pages| pages + 1);
        count <= MOST_PAGES
            && self.resident(address, count) == count
            && self.memory.read_exact_at(bytes, Avma::new(address)).is_ok()
    }

    fn resident(&self, address: u64, count: usize) -> usize {
        let mut entries = [0; MOST_PAGES * 8];
        let Some(wanted) = entries.get_mut(..count.min(MOST_PAGES) * 8) else {
            return 0;
        };
        self.present(address, wanted)
            .filter(|is_present| *is_present)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of this process is read where it is resident; elsewhere not, and not made resident.
    #[test]
    fn own_contents() {
        let page = usize::try_from(pages::bytes()).unwrap();
        let contents = ProcessContents::open(std::process::id()).unwrap();
        let mut map = memmap2::MmapMut::map_anon(4 * page).unwrap();
        map[page..page + 5].copy_from_slice(b"bytes");
        let start = map.as_ptr().addr() as u64;
        let second = start + pages::bytes();
        let mut read = [0; 5];
        assert!(contents.read(second, &mut read));
        assert_eq!(&read, b"bytes");
        assert!(!contents.read(second - 1, &mut read), "the page before is absent");
        assert!(!contents.read(u64::MAX - 2, &mut read));
        assert!(!contents.read(second, &mut []));
        assert_eq!(contents.resident(start, 4), 1);
        assert_eq!(contents.resident(u64::MAX - 7, 4), 0);
    }
    /// Pages that are looked at one after the other have what they have one by one; absent ones stay absent.
    #[test]
    fn pages_in_order() {
        let page = usize::try_from(pages::bytes()).unwrap();
        let contents = ProcessContents::open(std::process::id()).unwrap();
        let mut map = memmap2::MmapMut::map_anon(100 * page).unwrap();
        let is_touched = |number: usize| number % 37 != 5;
        for number in (0..100).filter(|&number| is_touched(number)) {
            map[number * page] = u8::try_from(number).unwrap();
        }
        let start = map.as_ptr().addr() as u64;
        for number in 0..100 {
            let mut read = [0];
            let address = start + number as u64 * pages::bytes();
            assert_eq!(contents.read(address, &mut read), is_touched(number), "{number}");
            assert!(!is_touched(number) || usize::from(read[0]) == number, "{number}");
        }
        let touched = (0..100).filter(|&number| is_touched(number)).count();
        assert_eq!(contents.resident(start, 100), touched);
    }
}
