//! Transparent huge pages, and the memory in them that was never used.
//!
//! The kernel gives a huge page whole to a program that touches one byte of it. The rest is zero: pages of
//! zeros within huge pages are what the process would not have without them, or was given and has only
//! cleared. The kernel itself finds underused huge pages in the same way (`mm/huge_memory.c`, since Linux
//! 6.12).
//!
//! `smaps` says how much of a mapping is in huge pages, not which: aligned ranges whose pages are all
//! resident are taken for them. If there are more of these than huge pages, some are many small pages, which
//! were all touched, and the estimate is too low.

use std::ops::Range;

use memleak_base::pages;
use unwind_tables::addr::Avma;

use super::contents::{Contents, MOST_PAGES};
use crate::smaps::{Resident, share};

/// Effort for an estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A quarter of the time, and twice the error.
    Report,
    Full,
}

impl Effort {
    /// Maximum number of pages that are read; one takes 7 µs.
    fn most_read(self) -> u64 {
        match self {
            Self::Report => 1024,
            Self::Full => 4096,
        }
    }
}

/// Maximum number of ranges whose pages are asked for: those of 32 GiB.
const MOST_RANGES: usize = 1 << 14;

/// Huge pages of a process, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HugeSurplus {
    /// Anonymous memory in huge pages, by the kernel.
    pub huge: u64,
    /// Pages of zeros in them, estimated.
    pub zero: u64,
    /// Distance from `zero` within which the true value is in 95 of 100 estimates, by the number of pages
    /// that were read; 0 if all were read.
    pub error: u64,
    /// Pages that were read.
    pub pages_read: u64,
    /// Pages that were read in each mapping, ascending.
    pub sampled: Vec<Sampled>,
}

/// Pages of a mapping that were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampled {
    /// Start of the mapping.
    pub start: Avma,
    pub read: u64,
    /// Pages of zeros among them.
    pub zero: u64,
}

/// Estimates the pages of zeros in the huge pages of all mappings. `seed` decides which pages are read.
pub fn surplus(contents: &dyn Contents, mappings: &[Resident], (effort, seed): (Effort, u64)) -> HugeSurplus {
    let huge = mappings.iter().map(|mapping| mapping.amounts.huge);
    let huge = huge.fold(0, u64::saturating_add);
    let ranges = ranges(contents, mappings);
    let in_one = pages::huge_bytes() / pages::bytes();
    let all = (ranges.len() as u64).saturating_mul(in_one);
    let mut sample = HugeSurplus {
        huge,
        ..HugeSurplus::default()
    };
    if all == 0 || huge == 0 {
        return sample;
    }
    let (mut read, mut zero) = (0, 0);
    let mut random = Random(seed);
    let wanted = all.min(effort.most_read());
    for number in 0..wanted {
        // One page of each of equal parts.
        let part = number * all / wanted..(number + 1) * all / wanted;
        let page = part.start + random.next() % (part.end - part.start).max(1);
        let range = usize::try_from(page / in_one)
            .ok()
            .and_then(|range| ranges.get(range));
        let Some(&HugeRange { start, mapping }) = range else {
            continue;
        };
        if let Some(is_zero) = is_zero(contents, start + page % in_one * pages::bytes()) {
            read += 1;
            zero += u64::from(is_zero);
            sample.note(mapping, is_zero);
        }
    }
    sample.pages_read = read;
    sample.zero = share(huge, (zero, read));
    sample.error = if read == all { 0 } else { error(huge, zero, read) };
    sample
}

impl HugeSurplus {
    /// Notes a page of the mapping that begins at `start`. Mappings ascend.
    fn note(&mut self, start: Avma, is_zero: bool) {
        match self.sampled.last_mut().filter(|last| last.start == start) {
            Some(last) => {
                last.read += 1;
                last.zero += u64::from(is_zero);
            }
            None => self.sampled.push(Sampled {
                start,
                read: 1,
                zero: u64::from(is_zero),
            }),
        }
    }
}

/// Aligned range of the size of a huge page.
struct HugeRange {
    start: u64,
    /// Start of the mapping that it is in.
    mapping: Avma,
}

/// Aligned ranges of the size of a huge page, all of whose pages are resident, in mappings with huge pages,
/// ascending.
fn ranges(contents: &dyn Contents, mappings: &[Resident]) -> Vec<HugeRange> {
    let size = pages::huge_bytes();
    let count = usize::try_from(size / pages::bytes()).unwrap_or(MOST_PAGES);
    let with_huge = mappings.iter().filter(|mapping| mapping.amounts.huge > 0);
    let aligned = with_huge.flat_map(|mapping| {
        let range: Range<u64> = mapping.entry.range.start.get()..mapping.entry.range.end.get();
        let first = range.start.next_multiple_of(size);
        let whole = range.end.saturating_sub(first) / size;
        (0..whole).map(move |number| HugeRange {
            start: first + number * size,
            mapping: mapping.entry.range.start,
        })
    });
    let seen = aligned.take(MOST_RANGES);
    seen.filter(|range| contents.resident(range.start, count) == count.min(MOST_PAGES))
        .collect()
}

/// Returns whether a page has only zeros; `None` if it cannot be read.
fn is_zero(contents: &dyn Contents, address: u64) -> Option<bool> {
    let mut page = vec![0; usize::try_from(pages::bytes()).ok()?];
    let is_read = contents.read(address, &mut page);
    is_read.then(|| page.iter().all(|&byte| byte == 0))
}

/// Two standard deviations of the estimate that `count` of `sum` random pages are zero, in bytes.
fn error(bytes: u64, count: u64, sum: u64) -> u64 {
    // A sample without exceptions proves little: one page more or less is always possible.
    let (count, others) = (u128::from(count.max(1)), u128::from((sum - count).max(1)));
    let sum = u128::from(sum.max(1));
    // 2 b sqrt(p (1 - p) / n) = 2 b sqrt(k (n - k) / n) / n
    let root = (count * others * 1_000_000 / sum).isqrt();
    let error = 2 * u128::from(bytes) * root / sum / 1000;
    u64::try_from(error).unwrap_or(bytes)
}

/// Random numbers by `xorshift64*` with a fixed start.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        let mut state = self.0 | 1;
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        self.0 = state;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smaps;

    /// Memory in which every page whose number is a multiple of `0` has content.
    struct Every(u64);

    impl Contents for Every {
        fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
            bytes.fill(u8::from((address / pages::bytes()).is_multiple_of(self.0)));
            true
        }

        fn resident(&self, _: u64, count: usize) -> usize {
            count
        }
    }

    fn mappings(kilobytes: u64) -> Vec<Resident> {
        let end = 0x7f00_0000_0000 + kilobytes * 1024;
        let text = format!("7f0000000000-{end:x} rw-p 00000000 00:00 0\nAnonHugePages: {kilobytes} kB\n");
        smaps::parse(text.as_bytes())
    }

    /// A few huge pages are read whole; of many, a sample has the stated error.
    #[test]
    fn estimates() {
        let few = surplus(&Every(4), &mappings(8 << 10), (Effort::Full, 1));
        let expected = HugeSurplus {
            huge: 8 << 20,
            zero: 6 << 20,
            error: 0,
            pages_read: 2048,
            sampled: vec![Sampled {
                start: Avma::new(0x7f00_0000_0000),
                read: 2048,
                zero: 1536,
            }],
        };
        assert_eq!(few, expected);
        for seed in 0..20 {
            let many = surplus(&Every(3), &mappings(1 << 20), (Effort::Full, seed));
            let truth = (1 << 30) / 3 * 2;
            assert!(many.zero.abs_diff(truth) <= 2 * many.error, "{many:?}");
            assert!(many.error < (1 << 30) / 50, "{many:?}");
        }
    }

    /// Without huge pages nothing is read, and hostile sizes take no time.
    #[test]
    fn without() {
        assert_eq!(surplus(&Every(1), &[], (Effort::Full, 1)), HugeSurplus::default());
        let text = "1000-ffffffffffff0000 rw-p 00000000 00:00 0\nAnonHugePages: 18446744073709551615 kB\n";
        let hostile = surplus(&Every(1), &smaps::parse(text.as_bytes()), (Effort::Report, 1));
        assert_eq!((hostile.huge, hostile.pages_read), (u64::MAX, 1024));
    }
}
