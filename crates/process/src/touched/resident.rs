//! Reads which pages are resident: `/proc/PID/pagemap`, a word for each page, and `/proc/kpageflags`, a word
//! for each page frame.
//!
//! Formats: `Documentation/admin-guide/mm/pagemap.rst` of the kernel.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use memmap2::MmapOptions;

use super::scan::{self, Found};
use memleak_base::pages;

const WORD: usize = size_of::<u64>();
/// Number of pages whose states are read at once, on kernels without `PAGEMAP_SCAN`.
const PAGES_AT_ONCE: u64 = 1 << 17;

/// A page, as `/proc/PID/pagemap` describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageState(u64);

impl PageState {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    /// A page of a file, or of memory that others can map.
    const OF_FILE: u64 = 1 << 61;
    /// A guard: an access ends the program (Linux 6.15). Described as swapped, too.
    const GUARD: u64 = 1 << 58;
    const FRAME: u64 = (1 << 55) - 1;

    pub(super) fn new(word: u64) -> Self {
        Self(word)
    }

    fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    /// Number of its page frame; `None` if it has none, or if the kernel does not show it (without
    /// `CAP_SYS_ADMIN`).
    pub(super) fn frame(self) -> Option<u64> {
        let frame = self.0 & Self::FRAME;
        Some(frame).filter(|&frame| self.has(Self::PRESENT) && frame != 0)
    }

    /// Returns true if it is the process's own memory: private, resident or swapped, and not the kernel's
    /// page of zeros, `zero`, which stands for pages that were only read.
    pub(super) fn is_own(self, zero: Option<u64>) -> bool {
        let is_zero = zero.is_some() && self.frame() == zero;
        self.is_there() && !self.has(Self::OF_FILE) && !is_zero
    }

    /// Returns whether something is at its address, resident or swapped out, the process's own or not.
    fn is_there(self) -> bool {
        self.has(Self::PRESENT) || (self.has(Self::SWAPPED) && !self.is_guard())
    }

    /// Returns whether an access ends the program though its mapping allows it.
    fn is_guard(self) -> bool {
        self.has(Self::SWAPPED) && self.has(Self::GUARD)
    }

    /// Returns true if something is resident at its address, the process's own or not.
    pub(super) fn is_present(self) -> bool {
        self.has(Self::PRESENT)
    }
}

/// Consecutive pages, as they were at one time.
#[derive(Clone, Debug)]
pub struct Scan {
    /// Number of the first page.
    pub first: u64,
    pub states: Vec<PageState>,
    /// True if these pages are searched for unexplained ones.
    pub is_searched: bool,
}

/// The pages of one process. The file stays bound to the process's memory: after an exec, or its end, reads
/// fail.
#[derive(Debug)]
pub struct ResidentPages(File);

impl ResidentPages {
    /// Opens those of process `pid`.
    pub fn open(pid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{pid}/pagemap")).map(Self)
    }

    /// Checks that the process still has this memory.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub fn check(&self) -> io::Result<()> {
        self.read(&(0..1)).map(|_| ())
    }

    /// Calls `see` with the runs of pages at `addresses` that have content (of a private mapping, only the
    /// process's own pages), and with those that are guards.
    ///
    /// # Errors
    ///
    /// As [`Self::read`].
    pub fn find(
        &self,
        addresses: &Range<u64>,
        is_shared: bool,
        see: &mut dyn FnMut(Found),
    ) -> io::Result<()> {
        match scan::scan(&self.0, addresses, is_shared, see) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                self.find_by_page(addresses, is_shared, see)
            }
            result => result,
        }
    }

    /// Does the same as [`Self::find`], by reading the state of every page.
    fn find_by_page(
        &self,
        addresses: &Range<u64>,
        is_shared: bool,
        see: &mut dyn FnMut(Found),
    ) -> io::Result<()> {
        let size = pages::bytes();
        let (mut next, end) = (addresses.start / size, addresses.end / size);
        while next < end {
            let some = next..end.min(next + PAGES_AT_ONCE);
            for (page, state) in some.clone().zip(self.read(&some)?) {
                let addresses = page * size..(page + 1) * size;
                if state.is_guard() {
                    see(Found::Guard(addresses));
                } else if state.is_own(None) || (is_shared && state.is_there()) {
                    see(Found::Held(addresses));
                }
            }
            next = some.end;
        }
        Ok(())
    }

    /// Reads the states of `pages`, by number.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the process no longer has this memory.
    pub fn read(&self, pages: &Range<u64>) -> io::Result<Vec<PageState>> {
        let words = read_words(&self.0, pages)?;
        Ok(words.into_iter().map(PageState::new).collect())
    }
}

/// Reads words by their numbers.
fn read_words(file: &File, numbers: &Range<u64>) -> io::Result<Vec<u64>> {
    let count = numbers.end.saturating_sub(numbers.start);
    let count = usize::try_from(count).map_err(io::Error::other)?;
    let mut bytes = vec![0; count * WORD];
    file.read_exact_at(&mut bytes, numbers.start.saturating_mul(WORD as u64))?;
    let (words, _) = bytes.as_chunks::<WORD>();
    Ok(words.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

/// Extents of huge pages, by `/proc/kpageflags`, and the frame of the page of zeros.
#[derive(Debug)]
pub struct HugePages {
    flags: Option<File>,
    zero: Option<u64>,
    /// The block of frames that was read last, of the size of a huge page.
    block: Vec<u64>,
    block_at: u64,
}

impl HugePages {
    const HEAD: u64 = 1 << 15;
    const TAIL: u64 = 1 << 16;

    /// Opens them. Without `CAP_SYS_ADMIN`, no page counts as part of a huge one.
    pub fn open() -> Self {
        Self {
            flags: File::open("/proc/kpageflags").ok(),
            zero: zero_frame(),
            block: Vec::new(),
            block_at: 0,
        }
    }

    /// Reads extents from any file.
    #[cfg(test)]
    pub(super) fn of(flags: File, zero: u64) -> Self {
        Self {
            flags: Some(flags),
            zero: Some(zero),
            block: Vec::new(),
            block_at: 0,
        }
    }

    /// Frame of the page of zeros.
    pub(super) fn zero(&self) -> Option<u64> {
        self.zero
    }

    /// Forgets the block that was read, which may have changed.
    pub(super) fn forget(&mut self) {
        self.block.clear();
    }

    /// Frames of the huge page, of whatever size, that has `frame`; `None` if none has.
    pub(super) fn around(&mut self, frame: u64) -> Option<Range<u64>> {
        // A huge page is aligned to its size, and none is larger than this.
        let frames = pages::huge_bytes() / pages::bytes();
        let start = frame - frame % frames;
        if self.block.is_empty() || self.block_at != start {
            self.block = read_words(self.flags.as_ref()?, &(start..start + frames)).ok()?;
            self.block_at = start;
        }
        extent(&self.block, usize::try_from(frame - start).ok()?).map(|extent| {
            let at = |index: usize| start + index as u64;
            at(extent.start)..at(extent.end)
        })
    }
}

/// Finds the head and the tails around the word at `index`.
fn extent(flags: &[u64], index: usize) -> Option<Range<usize>> {
    let is = |index: usize, flag| flags.get(index).is_some_and(|flags| flags & flag != 0);
    let before = flags.get(..=index)?;
    let head = before.iter().rposition(|flags| flags & HugePages::TAIL == 0)?;
    if !is(head, HugePages::HEAD) {
        return None;
    }
    let tails = (head + 1..flags.len()).take_while(|&index| is(index, HugePages::TAIL));
    Some(head..head + 1 + tails.count())
}

/// Finds the frame of the page of zeros: that of memory of this process that was read and never written.
fn zero_frame() -> Option<u64> {
    let bytes = usize::try_from(pages::bytes()).ok()?;
    let map = MmapOptions::new().len(bytes).map_anon().ok()?;
    let content = std::hint::black_box(map.first()?);
    let page = (std::ptr::from_ref(content).addr() / bytes) as u64;
    let read = (*content == 0).then(|| ResidentPages::open(std::process::id()).ok())??;
    let states = read.read(&(page..page + 1)).ok()?;
    states.first()?.frame()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A huge page is found from each of its pages, and ends where the next one begins.
    #[test]
    fn extents() {
        let (head, tail) = (HugePages::HEAD, HugePages::TAIL);
        let flags = [0, head, tail, tail, head, tail, 0, tail];
        for (index, expected) in [
            (0, None),
            (1, Some(1..4)),
            (3, Some(1..4)),
            (4, Some(4..6)),
            (5, Some(4..6)),
            (6, None),
            // Its head is missing.
            (7, None),
            (8, None),
        ] {
            assert_eq!(extent(&flags, index), expected, "{index}");
        }
    }

    /// Both ways find the same pages of private and of shared memory, however many runs there are.
    #[test]
    fn pages_that_hold_something() {
        let size = pages::bytes();
        let bytes = usize::try_from(size).expect("small");
        let mut map = MmapOptions::new()
            .len(20_000 * bytes)
            .map_anon()
            .expect("a mapping");
        let is_touched = |page: u64| !page.is_multiple_of(2) || page % 1000 < 300 && page != 500;
        (0..20_000)
            .filter(|&page| is_touched(page))
            .for_each(|page| map[usize::try_from(page).expect("small") * bytes] = 1);
        let read_only = std::hint::black_box(map[500 * bytes]);
        assert_eq!(read_only, 0);
        let start = map.as_ptr().addr() as u64;
        let own = ResidentPages::open(std::process::id()).expect("our own");
        let whole = start..start + 20_000 * size;
        let numbers = |runs: Vec<Found>| -> Vec<u64> {
            let held = runs.into_iter().filter_map(|run| match run {
                Found::Held(run) => Some(run),
                Found::Guard(_) => None,
            });
            let pages = held.flat_map(|run| run.step_by(bytes));
            pages.map(|address| (address - start) / size).collect()
        };
        for is_shared in [false, true] {
            let (mut found, mut by_page) = (Vec::new(), Vec::new());
            own.find(&whole, is_shared, &mut |run| found.push(run))
                .expect("ours");
            own.find_by_page(&whole, is_shared, &mut |run| by_page.push(run))
                .expect("ours");
            // Ignore the page that was only read: one way cannot tell it from a written one.
            let written = |pages: Vec<u64>| pages.into_iter().filter(|&page| page != 500).collect::<Vec<_>>();
            let (found, by_page) = (written(numbers(found)), written(numbers(by_page)));
            assert_eq!(found.len(), by_page.len(), "{is_shared}");
            assert_eq!(found, by_page);
            assert!(
                (0..20_000_u64)
                    .filter(|&page| is_touched(page))
                    .all(|page| found.binary_search(&page).is_ok())
            );
        }
    }

    /// Guards within a mapping are found as such by both ways, over pages that were touched and others.
    #[test]
    fn guards_within_a_mapping() {
        const MADV_GUARD_INSTALL: i32 = 102;
        let size = pages::bytes();
        let bytes = usize::try_from(size).expect("small");
        let mut map = MmapOptions::new().len(8 * bytes).map_anon().expect("a mapping");
        map[..4 * bytes].fill(1);
        map[7 * bytes] = 1;
        let guards = map[2 * bytes..6 * bytes].as_mut_ptr();
        #[allow(unsafe_code, reason = "pages of a map that nothing refers to any more")]
        // SAFETY: they are in the map, and are not accessed before it ends.
        let refused = unsafe { libc::madvise(guards.cast(), 4 * bytes, MADV_GUARD_INSTALL) } != 0;
        let at = |page: u64| map.as_ptr().addr() as u64 + page * size;
        let own = ResidentPages::open(std::process::id()).expect("our own");
        let (mut found, mut by_page) = (Vec::new(), Vec::new());
        own.find(&(at(0)..at(8)), false, &mut |run| found.push(run))
            .expect("ours");
        own.find_by_page(&(at(0)..at(8)), false, &mut |run| by_page.push(run))
            .expect("ours");
        let held = |pages: Range<u64>| Found::Held(at(pages.start)..at(pages.end));
        if refused {
            // A kernel before 6.13 has none.
            assert_eq!(found, [held(0..4), held(7..8)]);
            return;
        }
        let guard = Found::Guard(at(2)..at(6));
        assert_eq!(found, [held(0..2), guard, held(7..8)]);
        let guards = (2..6).map(|page| Found::Guard(at(page)..at(page + 1)));
        let each = [held(0..1), held(1..2)]
            .into_iter()
            .chain(guards)
            .chain([held(7..8)]);
        assert_eq!(by_page, each.collect::<Vec<_>>());
    }

    /// A written page of this process is its own; one that was only read is the page of zeros; code is a
    /// file's.
    #[test]
    fn own_pages_as_root() {
        let bytes = usize::try_from(pages::bytes()).expect("small");
        let huge = HugePages::open();
        assert!(huge.zero().is_some(), "as root");
        let mut map = MmapOptions::new().len(3 * bytes).map_anon().expect("a mapping");
        map[bytes] = 1;
        assert_eq!(std::hint::black_box(map[2 * bytes]), 0);
        let first = (map.as_ptr().addr() / bytes) as u64;
        let code = (own_pages_as_root as *const () as usize / bytes) as u64;
        let own = ResidentPages::open(std::process::id()).expect("our own");
        let read = |page| own.read(&(page..page + 1)).expect("it is there")[0];
        let is_own = |page| read(page).is_own(huge.zero());
        assert!(!read(first).is_present(), "never touched");
        assert!(is_own(first + 1) && !is_own(first) && !is_own(first + 2) && !is_own(code));
        assert!(read(first + 2).is_present() && read(code).is_present());
    }
}
