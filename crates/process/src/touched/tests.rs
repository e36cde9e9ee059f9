use std::io::Write;

use super::resident::HugePages;
use super::*;

const PAGE: u64 = 4096;
const ALL: Choice = Choice { interval: 1, seed: 0 };
/// Frame of the page of zeros.
const ZERO: u64 = 3;
/// Bits of `/proc/PID/pagemap`.
const PRESENT: u64 = 1 << 63;
const OF_FILE: u64 = 1 << 61;

/// Pages at 16 MiB, by number from there.
const BASE: u64 = 4096;

fn pages() -> Pages {
    Pages::with_page_bytes(ALL, 1 << 20, PAGE)
}

fn touch(pages: &mut Pages, page: u64, stack: u32) {
    let address = Avma::new((BASE + page) * PAGE + 123);
    pages.touch(&Fault {
        instance: 1,
        address,
        stack,
    });
}

fn touch_all(pages: &mut Pages, range: Range<u64>, stack: u32) {
    range.for_each(|page| touch(pages, page, stack));
}

fn address(page: u64) -> u64 {
    (BASE + page) * PAGE
}

/// Both events of a call; `meanwhile` comes between them.
fn call_with(
    pages: &mut Pages,
    call: RegionCall,
    arguments: [u64; 5],
    result: u64,
    meanwhile: impl FnOnce(&mut Pages),
) {
    let event = |moment| RegionEvent {
        instance: 1,
        thread: 1,
        call,
        arguments,
        time: 0,
        moment,
    };
    let program_break = if call == RegionCall::Brk { address(100) } else { 0 };
    pages.apply(&event(CallMoment::Begins { program_break }));
    meanwhile(pages);
    pages.apply(&event(CallMoment::Ended { result, stack: 99 }));
}

fn call(pages: &mut Pages, name: RegionCall, arguments: [u64; 5], result: u64) {
    call_with(pages, name, arguments, result, |_| ());
}

/// Outstanding pages of a stack.
#[track_caller]
fn held(pages: &Pages, stack: u32) -> u64 {
    let totals: BTreeMap<_, _> = pages.totals().collect();
    let known = pages.table.iter().filter_map(|(_, entry)| entry.counted());
    let known = known.filter(|&of| of == stack).count() as u64;
    let totals = totals.get(&stack).copied().unwrap_or_default();
    assert_eq!(totals.touched - totals.gone, known, "{totals:?}");
    known
}

fn huge_pages(flags: &[u64]) -> HugePages {
    let mut file = tempfile::tempfile().expect("a file");
    let bytes: Vec<u8> = flags.iter().flat_map(|word| word.to_ne_bytes()).collect();
    file.write_all(&bytes).expect("it can be written");
    HugePages::of(file, ZERO)
}

fn no_huge_pages() -> HugePages {
    huge_pages(&[0; 512])
}

/// Compares with words of pagemap, which follow one another from page `first` on.
fn settle(pages: &mut Pages, first: u64, words: &[u64], huge: &mut HugePages) -> u64 {
    pages.mark();
    settle_marked(pages, first, words, huge)
}

fn settle_marked(pages: &mut Pages, first: u64, words: &[u64], huge: &mut HugePages) -> u64 {
    let scan = Scan {
        first: BASE + first,
        states: words.iter().map(|&word| PageState::new(word)).collect(),
        is_searched: true,
    };
    pages.settle(&[scan], Unexplained::Lost, huge)
}

/// The first fault of a page counts, and no other.
#[test]
fn the_first_fault_counts() {
    let mut pages = pages();
    touch_all(&mut pages, 0..1000, 1);
    touch_all(&mut pages, 500..1500, 2);
    assert_eq!((held(&pages, 1), held(&pages, 2)), (1000, 500));
}

/// Each call that discards removes its pages, and a page that is touched again belongs to the newer stack.
#[test]
fn discarded_pages_begin_anew() {
    for (name, arguments) in [
        (RegionCall::Munmap, [address(10), 20 * PAGE - 5, 0, 0, 0]),
        (RegionCall::Madvise, [address(10), 20 * PAGE, 4, 0, 0]),
        // MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS.
        (RegionCall::Mmap, [address(10), 20 * PAGE, 3, 0x32, 0]),
    ] {
        let mut pages = pages();
        touch_all(&mut pages, 0..100, 1);
        let result = if name == RegionCall::Mmap { address(10) } else { 0 };
        call(&mut pages, name, arguments, result);
        assert_eq!(held(&pages, 1), 80, "{name:?}");
        touch_all(&mut pages, 0..100, 2);
        assert_eq!((held(&pages, 1), held(&pages, 2)), (80, 20), "{name:?}");
    }
    let mut pages = pages();
    touch_all(&mut pages, 0..100, 1);
    // The page that the new break is in stays.
    call(
        &mut pages,
        RegionCall::Brk,
        [address(60) + 1, 0, 0, 0, 0],
        address(60) + 1,
    );
    assert_eq!(held(&pages, 1), 61);
}

/// Discarded pages are put back if the call fails; those that were touched meanwhile are not lost by either.
#[test]
fn failed_calls_discard_nothing() {
    let mut pages = pages();
    touch_all(&mut pages, 0..100, 1);
    let failed = 12_u64.wrapping_neg();
    call_with(
        &mut pages,
        RegionCall::Munmap,
        [address(0), 50 * PAGE, 0, 0, 0],
        failed,
        |pages| {
            touch(pages, 7, 2);
        },
    );
    assert_eq!((held(&pages, 1), held(&pages, 2)), (99, 1));
    // Another thread has memory there again before the call has ended.
    call_with(
        &mut pages,
        RegionCall::Munmap,
        [address(50), 50 * PAGE, 0, 0, 0],
        0,
        |pages| {
            touch(pages, 60, 3);
        },
    );
    assert_eq!((held(&pages, 1), held(&pages, 3)), (49, 1));
}

/// `mremap` moves pages along, discards those beyond the new length, and replaces those at a given place.
#[test]
fn moved_pages_keep_their_stack() {
    let mut pages = pages();
    touch_all(&mut pages, 0..10, 1);
    touch_all(&mut pages, 100..110, 2);
    // MREMAP_MAYMOVE | MREMAP_FIXED.
    let arguments = [address(0), 10 * PAGE, 8 * PAGE, 3, address(104)];
    call(&mut pages, RegionCall::Mremap, arguments, address(104));
    assert_eq!((held(&pages, 1), held(&pages, 2)), (8, 4));
    touch_all(&mut pages, 0..10, 3);
    touch_all(&mut pages, 104..112, 4);
    assert_eq!((held(&pages, 3), held(&pages, 4)), (10, 0));
}

/// Pages given up by `MADV_FREE` stay until they are touched again, or are gone.
#[test]
fn lazily_freed_pages() {
    let mut pages = pages();
    touch_all(&mut pages, 0..3, 1);
    call(
        &mut pages,
        RegionCall::Madvise,
        [address(0), 2 * PAGE, 8, 0, 0],
        0,
    );
    assert_eq!(held(&pages, 1), 3);
    touch(&mut pages, 0, 2);
    assert_eq!((held(&pages, 1), held(&pages, 2)), (2, 1));
    settle(
        &mut pages,
        0,
        &[PRESENT | 8, PRESENT | 9, PRESENT | 10],
        &mut no_huge_pages(),
    );
    settle(
        &mut pages,
        0,
        &[PRESENT | 8, 0, PRESENT | 10],
        &mut no_huge_pages(),
    );
    assert_eq!((held(&pages, 1), held(&pages, 2)), (1, 1));
    // Its end was expected.
    assert_eq!(pages.ends_not_seen(), 0);
}

/// Shared memory does not count, and private mappings of files only once they are copies.
#[test]
fn memory_of_others() {
    let mut pages = pages();
    // MAP_SHARED | MAP_ANONYMOUS, MAP_PRIVATE.
    call(
        &mut pages,
        RegionCall::Mmap,
        [0, 10 * PAGE, 3, 0x21, 0],
        address(0),
    );
    call(
        &mut pages,
        RegionCall::Mmap,
        [0, 2 * PAGE, 3, 0x02, 0],
        address(10),
    );
    touch_all(&mut pages, 0..12, 1);
    assert_eq!(held(&pages, 1), 0);
    settle(
        &mut pages,
        10,
        &[PRESENT | OF_FILE | 20, PRESENT | 21],
        &mut no_huge_pages(),
    );
    assert_eq!(held(&pages, 1), 1);
    call(
        &mut pages,
        RegionCall::Munmap,
        [address(0), 12 * PAGE, 0, 0, 0],
        0,
    );
    call(
        &mut pages,
        RegionCall::Mmap,
        [0, 12 * PAGE, 3, 0x22, 0],
        address(0),
    );
    touch_all(&mut pages, 0..12, 2);
    assert_eq!((held(&pages, 1), held(&pages, 2)), (0, 12));
}

/// `MAP_POPULATE` makes pages resident without a fault: they belong to the call's stack.
#[test]
fn populated_mappings() {
    let mut pages = pages();
    call(
        &mut pages,
        RegionCall::Mmap,
        [0, 10 * PAGE, 3, 0x8022, 0],
        address(0),
    );
    assert_eq!(held(&pages, 99), 10);
}

/// Pages that are not resident are removed, once that is certain; the page of zeros belongs to no stack;
/// resident pages without a fault are counted once, and belong to no stack.
#[test]
fn what_is_resident_decides() {
    let mut pages = pages();
    touch_all(&mut pages, 0..3, 1);
    let words = [PRESENT | 8, PRESENT | ZERO, 0, PRESENT | 9];
    assert_eq!(settle(&mut pages, 0, &words, &mut no_huge_pages()), 1);
    assert_eq!((held(&pages, 1), pages.unexplained()), (2, 1));
    assert_eq!(settle(&mut pages, 0, &words, &mut no_huge_pages()), 0);
    assert_eq!((held(&pages, 1), pages.unexplained()), (1, 1));
    touch_all(&mut pages, 0..4, 2);
    assert_eq!((held(&pages, 1), held(&pages, 2)), (1, 2));
    assert_eq!(pages.ends_not_seen(), 0);
}

/// A reading proves nothing about pages that were touched or discarded since.
#[test]
fn changes_since_the_mark() {
    let mut pages = pages();
    touch_all(&mut pages, 0..2, 1);
    pages.mark();
    touch(&mut pages, 2, 2);
    call(&mut pages, RegionCall::Munmap, [address(0), PAGE, 0, 0, 0], 0);
    let words = [PRESENT | 8, PRESENT | 9, 0, PRESENT | 10];
    assert_eq!(settle_marked(&mut pages, 0, &words, &mut no_huge_pages()), 0);
    assert_eq!((held(&pages, 1), held(&pages, 2), pages.unexplained()), (1, 1, 1));
}

/// The pages of a huge page belong to the stack of its only touch, or to the nearest if the kernel has joined
/// small pages.
#[test]
fn rest_of_huge_pages() {
    let (head, tail) = (1 << 15, 1 << 16);
    let mut flags = vec![0; 512];
    flags[16] = head;
    flags[17..32].fill(tail);
    let mut huge = huge_pages(&flags);
    let words: Vec<u64> = (16..33).map(|frame| PRESENT | frame).collect();
    let mut pages = pages();
    touch(&mut pages, 5, 1);
    settle(&mut pages, 0, &words, &mut huge);
    // The last page is not part of it.
    assert_eq!((held(&pages, 1), pages.unexplained()), (16, 1));
    let totals: BTreeMap<_, _> = pages.totals().collect();
    assert_eq!(totals[&1].squares, 16 * 16);

    let mut pages = self::pages();
    touch(&mut pages, 0, 1);
    touch(&mut pages, 11, 2);
    settle(&mut pages, 0, &words, &mut huge);
    assert_eq!((held(&pages, 1), held(&pages, 2)), (6, 10));
}

/// Where pages are not searched, huge pages still belong to the stacks that touched them; other pages belong
/// to none, and are not lost.
#[test]
fn huge_pages_of_large_mappings() {
    let mut flags = vec![0; 512];
    flags[16] = 1 << 15;
    flags[17..32].fill(1 << 16);
    let mut pages = pages();
    touch(&mut pages, 5, 1);
    pages.mark();
    let scan = Scan {
        first: BASE,
        states: (16..40).map(|frame| PageState::new(PRESENT | frame)).collect(),
        is_searched: false,
    };
    pages.settle(&[scan], Unexplained::Lost, &mut huge_pages(&flags));
    assert_eq!((held(&pages, 1), pages.unexplained()), (16, 0));
}

/// A child of fork begins without pages of any stack: the pages that it copies were there before.
#[test]
fn children_of_fork() {
    let mut pages = pages();
    touch_all(&mut pages, 0..10, 1);
    let mut child = pages.forked();
    touch_all(&mut child, 0..12, 2);
    assert_eq!((held(&child, 1), held(&child, 2)), (0, 2));
    touch_all(&mut pages, 0..10, 3);
    assert_eq!((held(&pages, 1), held(&pages, 3)), (10, 0));
}

/// Pages beyond the capacity are lost, at their stacks.
#[test]
fn capacity() {
    let mut pages = Pages::with_page_bytes(ALL, 1, PAGE);
    touch_all(&mut pages, 0..600, 1);
    assert_eq!(held(&pages, 1), CHUNK_PAGES);
    let totals: BTreeMap<_, _> = pages.totals().collect();
    assert_eq!(totals[&1].lost, 600 - CHUNK_PAGES);
}

/// Everything is read once, in pieces of bounded size; around known pages also where nothing is searched.
#[test]
fn what_is_read() {
    let text = "\
1000000-1400000 rw-p 00000000 00:00 0
2000000-2001000 r-xp 00000000 fe:00 7   /bin/program
3000000-3400000 rw-s 00000000 00:01 7   /dev/zero (deleted)
100000000-400000000 rw-p 00000000 00:00 0
1000000000-1800000000 rw-p 00000000 00:00 0
";
    let maps: Vec<_> = crate::maps::parse(text.as_bytes())
        .collect::<Result<_, _>>()
        .expect("maps");
    let mut pages = pages();
    touch(&mut pages, 0, 1);
    pages.touch(&Fault {
        instance: 1,
        address: Avma::new(0x900_0000_0000),
        stack: 1,
    });
    let batches = pages.batches(&maps);
    let all: Vec<_> = batches.iter().flatten().cloned().collect();
    let far = 0x900_0000_0000 / PAGE;
    assert_eq!(all[0], (far..far + CHUNK_PAGES, false));
    assert_eq!(all[1], (0x1000..0x1400, true));
    let searched: u64 = all[2..].iter().map(|(range, _)| range.end - range.start).sum();
    assert_eq!(searched * PAGE, 0x3_0000_0000);
    for batch in &batches {
        assert!(
            batch
                .iter()
                .map(|(range, _)| range.end - range.start)
                .sum::<u64>()
                <= 1 << 18
        );
    }
}
