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
    /// The page that was read last: structures are looked for at several places of one page.
    last: RefCell<Option<Page>>,
}

/// A page that was read.
#[derive(Debug)]
struct Page {
    address: u64,
    /// Its bytes; `None` if it is not resident, or cannot be read.
    bytes: Option<Vec<u8>>,
}

impl ProcessContents {
    pub(super) fn open(pid: u32) -> io::Result<Self> {
        Ok(Self {
            memory: ProcessMemory::open(pid)?,
            pagemap: File::open(format!("/proc/{pid}/pagemap"))?,
            last: RefCell::new(None),
        })
    }

    /// Fills `bytes` from a place within a page on.
    fn read_within(&self, page: u64, at: usize, bytes: &mut [u8]) -> bool {
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|last| last.address != page) {
            let mut whole = vec![0; usize::try_from(pages::bytes()).unwrap_or(0)];
            let is_read =
                self.resident(page, 1) == 1 && self.memory.read_exact_at(&mut whole, Avma::new(page)).is_ok();
            *last = Some(Page {
                address: page,
                bytes: is_read.then_some(whole),
            });
        }
        let whole = last.as_ref().and_then(|last| last.bytes.as_deref());
        let wanted = whole.and_then(|whole| whole.get(at..at.checked_add(bytes.len())?));
        wanted.map(|wanted| bytes.copy_from_slice(wanted)).is_some()
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
        let at = address / pages::bytes() * 8;
        let read = self.pagemap.read_at(wanted, at).unwrap_or(0);
        let entries = wanted.get(..read).unwrap_or_default().chunks_exact(8);
        let is_present = |entry: &&[u8]| (**entry).try_into().map_or(0, u64::from_ne_bytes) & PRESENT != 0;
        entries.filter(is_present).count()
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
}
