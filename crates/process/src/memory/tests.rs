//! Tests of the division of resident memory, by recorded text.

use unwind_tables::addr::contains;

use super::*;
use crate::census::Known;
use crate::census::mounts::Mounts;
use crate::census::tests::Words;
use crate::smaps;

/// Recorded from a small program with two threads, and shortened.
const TEXT: &str = "\
55d0c0900000-55d0c0901000 r-xp 00000000 fe:00 7   /bin/program
Rss: 4 kB
VmFlags: rd ex mr mw me
55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0   [heap]
Rss: 100 kB
VmFlags: rd wr mr mw me ac
7f0000000000-7f0000021000 rw-p 00000000 00:00 0
Rss: 40 kB
VmFlags: rd wr mr mw me nr
7f0000021000-7f0004000000 ---p 00000000 00:00 0
Rss: 0 kB
VmFlags: mr mw me nr
7f0010000000-7f0010100000 rw-p 00000000 00:00 0
Rss: 1000 kB
Swap: 20 kB
VmFlags: rd wr mr mw me
7f0020000000-7f0020800000 rw-p 00000000 00:00 0
Rss: 24 kB
VmFlags: rd wr mr mw me
7f0030000000-7f0030001000 rw-s 00000000 00:01 9   /dev/zero (deleted)
Rss: 4 kB
VmFlags: rd wr sh mr mw me
7f0040000000-7f0040400000 rw-p 00000000 00:00 0
Rss: 512 kB
AnonHugePages: 400 kB
VmFlags: rd wr mr mw me
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0   [stack]
Rss: 12 kB
VmFlags: rd wr mr mw me gd ac
7ffd00100000-7ffd00101000 r-xp 00000000 00:00 0   [vdso]
Rss: 4 kB
VmFlags: rd ex mr mw me
";

const KB: u64 = 1024;
const OWN: u64 = 0x7f00_4000_0000;

fn divided(text: &str) -> Divided {
    let mut words = Words::default();
    // An arena of glibc.
    words.put(0x7f00_0000_0000, &[0x7f00_0000_0030, 0, 0x2_1000, 0x2_1000]);
    let known = Known {
        heaps: &[],
        stack_pointers: &[Avma::new(0x7f00_207f_f000)],
    };
    let mappings = smaps::parse(text.as_bytes());
    Divided::of(mappings, &known, &words, (Mounts::default(), 8 << 20))
}

fn sums(tracks: Tracks, live: u64) -> Sums {
    let inside = Avma::new(match tracks {
        Tracks::Blocks => 0x7f00_1000_0010,
        Tracks::Mappings | Tracks::Pages => OWN,
    });
    let live_in = |range: &Range<Avma>| if contains(range, inside) { live } else { 0 };
    Sums::of(&divided(TEXT), &[], tracks, live_in)
}

/// Sums at the attach: these bytes in the allocator's mappings, and nothing else.
fn before(allocator: u64) -> Sums {
    let mut sums = Sums::default();
    sums.allocator.resident = allocator;
    sums
}

/// Bytes by kind, which add up to the parts that kinds divide.
#[track_caller]
fn kinds(parts: &Parts) -> Vec<(MemoryKind, u64)> {
    let sum: u64 = parts.kinds.iter().map(|kind| kind.bytes).sum();
    assert_eq!(
        sum,
        parts.thread_stacks + parts.files + parts.shared + parts.unexplained
    );
    let kinds = parts.kinds.iter();
    kinds.map(|each| (each.kind, each.bytes / KB)).collect()
}

/// Each mapping is in exactly one part, and the parts add up.
#[test]
fn parts_add_up() {
    let parts =
        sums(Tracks::Blocks, 900 * KB).parts(Tracks::Blocks, Live::ByPortion, Some(&before(150 * KB)));
    let of = |kind, kilobytes: u64| KindBytes {
        kind,
        bytes: kilobytes * KB,
    };
    let expected = Parts {
        rss: 1700 * KB,
        tracked: 900 * KB,
        before_attach_at_most: 150 * KB,
        slack_at_least: 90 * KB,
        thread_stacks: 36 * KB,
        files: 4 * KB,
        shared: 4 * KB,
        unexplained: 516 * KB,
        not_resident: 0,
        growth_elsewhere: Some(Elsewhere {
            thread_stacks: 36 * KB,
            files: 4 * KB,
            shared: 4 * KB,
            unexplained: 516 * KB,
        }),
        kinds: vec![
            of(MemoryKind::RunningStacks, 36),
            of(MemoryKind::Files, 4),
            of(MemoryKind::Shared, 4),
            of(MemoryKind::KernelPages, 4),
            of(MemoryKind::Mappings, 512),
        ],
        named_shared: Vec::new(),
        beside: Beside {
            swapped: 20 * KB,
            ..Beside::default()
        },
    };
    kinds(&parts);
    assert_eq!(parts, expected);
}

/// Outstanding memory that was never touched is in no sum, and no part becomes negative.
#[test]
fn untouched_outstanding_memory_is_in_no_sum() {
    let sums = sums(Tracks::Blocks, u64::MAX);
    let parts = sums.parts(Tracks::Blocks, Live::ByPortion, None);
    // The mapping that contains it counts for no more than its resident bytes.
    assert_eq!(
        (parts.tracked, parts.before_attach_at_most),
        (1000 * KB, 140 * KB)
    );
    assert_eq!(parts.not_resident, u64::MAX - 1000 * KB);
    let parts = sums.parts(Tracks::Blocks, Live::Total(u64::MAX), None);
    assert_eq!((parts.tracked, parts.before_attach_at_most), (1140 * KB, 0));
    let parts = sums.parts(Tracks::Blocks, Live::Total(0), None);
    assert_eq!(parts.before_attach_at_most, 1140 * KB);
}

/// With `--mmap`, traced mappings explain the memory that blocks do not.
#[test]
fn traced_mappings() {
    let sums = sums(Tracks::Mappings, 500 * KB);
    let parts = sums.parts(Tracks::Mappings, Live::ByPortion, Some(&before(0)));
    assert_eq!((parts.tracked, parts.unexplained), (500 * KB, 1016 * KB));
    assert_eq!(parts.slack_at_least, 140 * KB);
    let own = [(MemoryKind::KernelPages, 4), (MemoryKind::Mappings, 1012)];
    assert_eq!(kinds(&parts)[3..], own);
    // Bytes without a place are taken from the program's own mappings first.
    let parts = sums.parts(Tracks::Mappings, Live::Total(1514 * KB), Some(&before(0)));
    assert_eq!(kinds(&parts)[3..], [(MemoryKind::KernelPages, 2)]);
}

/// With `--faults`, pages are taken out of whatever mappings they are in.
#[test]
fn traced_pages() {
    let parts = sums(Tracks::Pages, 500 * KB).parts(Tracks::Pages, Live::ByPortion, Some(&before(50 * KB)));
    assert_eq!(parts.rss, 1700 * KB);
    assert_eq!((parts.tracked, parts.unexplained), (500 * KB, 1016 * KB));
    assert_eq!(
        (parts.before_attach_at_most, parts.slack_at_least),
        (50 * KB, 90 * KB)
    );
    let own = [(MemoryKind::KernelPages, 4), (MemoryKind::Mappings, 1012)];
    assert_eq!(kinds(&parts)[3..], own);
    // Some are swapped.
    let parts = sums(Tracks::Pages, 600 * KB).parts(Tracks::Pages, Live::ByPortion, Some(&before(0)));
    assert_eq!((parts.tracked, parts.not_resident), (512 * KB, 88 * KB));
    kinds(&parts);
}

/// Zeros in huge pages are a part of their own outside the allocator, up to what is not tracked.
#[test]
fn zeros_in_huge_pages() {
    let sampled = [Sampled {
        start: Avma::new(OWN),
        read: 4,
        zero: 3,
    }];
    let parts = |tracks, live: u64| {
        let live_in = |range: &Range<Avma>| if contains(range, Avma::new(OWN)) { live } else { 0 };
        let sums = Sums::of(&divided(TEXT), &sampled, tracks, live_in);
        sums.parts(tracks, Live::ByPortion, None)
    };
    let zeros = |parts: &Parts| {
        let kinds = kinds(parts).into_iter();
        kinds
            .filter(|&(kind, _)| kind == MemoryKind::HugeZeros)
            .map(|(_, bytes)| bytes)
            .sum::<u64>()
    };
    let outside = parts(Tracks::Blocks, 0);
    assert_eq!((zeros(&outside), outside.beside.allocator_zeros), (300, 0));
    let inside = parts(Tracks::Blocks, 1);
    assert_eq!((zeros(&inside), inside.beside.allocator_zeros), (0, 300 * KB));
    assert_eq!(zeros(&parts(Tracks::Mappings, 400 * KB)), 112);
    assert_eq!(zeros(&parts(Tracks::Mappings, u64::MAX)), 0);
}

/// The largest shared memory is named, whatever its names are.
#[test]
fn names_of_shared_memory() {
    let long = "x".repeat(300) + "\u{e9}";
    let text: String = [
        "/memfd:a",
        "/dev/shm/b",
        "/SYSV00000000",
        &format!("/dev/shm/{long}"),
        "/dev/zero",
    ]
    .iter()
    .zip(1..)
    .map(|(name, number)| {
        let start = 0x7f00_0000_0000_u64 + number * 0x1000_0000;
        format!(
            "{start:x}-{:x} rw-s 00000000 00:01 {number} {name}\nRss: {number} kB\n",
            start + 0x10_0000
        )
    })
    .collect();
    let parts =
        Sums::of(&divided(&text), &[], Tracks::Blocks, |_| 0).parts(Tracks::Blocks, Live::ByPortion, None);
    assert_eq!(parts.shared, 15 * KB);
    let named: Vec<_> = parts
        .named_shared
        .iter()
        .map(|named| (named.name.as_str(), named.bytes / KB))
        .collect();
    let cut = format!("/dev/shm/{long}");
    assert_eq!(
        named,
        [
            (&cut[..Parts::MAX_NAME], 4),
            ("/SYSV00000000", 3),
            ("/dev/shm/b", 2)
        ]
    );
}
