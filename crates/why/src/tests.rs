//! Diagnoses of made-up processes.

use std::time::Duration;

use leak_report::model::diagnosis::{CauseKind, Certainty, Growth, Place};
use leak_report::model::{AllocatorName, Amount};

use super::*;

const KB: u64 = 1000;
const MB: u64 = 1000 * KB;

/// Readings of a minute, one each two seconds, of regions that begin with an amount and grow by a rate.
fn readings(regions: &[(Region, u64, u64)]) -> Vec<Reading> {
    let reading = |second: u64| {
        let mut bytes = Amounts::default();
        for &(region, begun, rate) in regions {
            bytes.add(region, begun + rate * second);
        }
        let at = Duration::from_secs(second);
        Reading { at, bytes }
    };
    (0..60).step_by(2).map(reading).collect()
}

fn amount(bytes: u64) -> Amount {
    Amount {
        bytes,
        blocks: bytes / 100,
    }
}

/// A site that takes `rate` bytes per second, of which a share in percent is lost.
fn site(function: &str, took: Took, rate: u64, lost: u64) -> Site {
    Site {
        place: Place {
            function: function.into(),
            ..Place::default()
        },
        took,
        outstanding: amount(40 * rate),
        before: amount(20 * rate),
        lost: amount(40 * rate * lost / 100),
        pinned: Amount::default(),
        holder: (lost < 50).then(|| format!("{function}s")),
    }
}

fn trace(sites: Vec<Site>) -> Trace {
    Trace {
        second_half: Duration::from_secs(20),
        sites,
        is_judged: true,
    }
}

fn heap(in_blocks: u64, pinned: u64, free: u64) -> HeapUse {
    HeapUse {
        in_blocks,
        pinned,
        free,
        trimmable: free,
        allocator: Some(AllocatorName::Glibc),
        ..HeapUse::default()
    }
}

/// Kind, function and share in percent of each cause.
fn found(observed: &Observed) -> (Option<bool>, Vec<(CauseKind, String, String)>) {
    let answer = diagnose(observed);
    let causes = answer.causes.iter().map(|cause| {
        let site = cause.site.as_ref();
        let function = site.map_or(String::new(), |site| site.function.to_string());
        (cause.kind, function, format!("{:.0}", 100.0 * cause.share))
    });
    (answer.growth.grows(), causes.collect())
}

/// A heap that leaks and a cache without bound, beside a cache that is only renewed, which takes no part.
#[test]
fn lost_and_kept() {
    let observed = Observed {
        readings: readings(&[(Region::Heap, 50 * MB, 1300 * KB), (Region::Files, 9 * MB, 0)]),
        heap: Some([heap(50 * MB, 0, 0), heap(50 * MB + 59 * 1300 * KB, 0, 0)]),
        traces: vec![trace(vec![
            site("lose", Took::Block, 1000 * KB, 100),
            site("session", Took::Block, 300 * KB, 0),
        ])],
        ..Observed::default()
    };
    let expected = vec![
        (CauseKind::Lost, "lose".to_owned(), "77".to_owned()),
        (CauseKind::Kept, "session".to_owned(), "23".to_owned()),
    ];
    assert_eq!(found(&observed), (Some(true), expected));
    let answer = diagnose(&observed);
    let [lost, kept] = &answer.causes[..] else {
        panic!("{answer:?}");
    };
    assert_eq!(
        (lost.certainty, kept.certainty),
        (Certainty::Certain, Certainty::Likely)
    );
    assert_eq!((&lost.holder, kept.holder.as_deref()), (&None, Some("sessions")));
    assert!((answer.bytes_per_second - 1.3e6).abs() < 1.0, "{answer:?}");
}

/// A cache that is renewed seems to grow as long as its old entries are not gone: what blocks take by the
/// allocator's own structures is the bound of all of them, and none is sure.
#[test]
fn renewed_caches() {
    let mut observed = Observed {
        readings: readings(&[(Region::Heap, 50 * MB, 100 * KB)]),
        traces: vec![trace(vec![
            site("renewed", Took::Block, 900 * KB, 0),
            site("grows", Took::Block, 100 * KB, 0),
        ])],
        ..Observed::default()
    };
    let answer = diagnose(&observed);
    assert!(
        answer
            .causes
            .iter()
            .all(|cause| cause.certainty == Certainty::Possible)
    );
    let sum: f64 = answer.causes.iter().map(|cause| cause.bytes_per_second).sum();
    assert!(sum <= 100.1e3, "{answer:?}");
    // What is lost explains it already.
    observed.traces[0].sites[1] = site("lose", Took::Block, 100 * KB, 100);
    assert_eq!(
        found(&observed).1,
        [(CauseKind::Lost, "lose".to_owned(), "100".to_owned())]
    );
}

/// Growth of the heap by memory that no block is in.
#[test]
fn free_and_pinned() {
    let observed = Observed {
        readings: readings(&[(Region::Heap, 10 * MB, 500 * KB)]),
        heap: Some([heap(10 * MB, 0, 0), heap(10 * MB, 24 * MB, 6 * MB)]),
        traces: vec![trace(vec![site("few", Took::Block, 10 * KB, 0)])],
        ..Observed::default()
    };
    let expected = vec![
        (CauseKind::Pinned, String::new(), "80".to_owned()),
        (CauseKind::FreeInAllocator, String::new(), "20".to_owned()),
    ];
    assert_eq!(found(&observed), (Some(true), expected));
}

/// Amounts that trimming and fewer arenas would give back are said, by the allocator's own call.
#[test]
fn advice_about_free_memory() {
    let mut last = heap(10 * MB, 0, 44 * MB);
    last.beyond_two = 36 * MB;
    let next = |last: HeapUse| {
        let answer = diagnose(&Observed {
            readings: readings(&[(Region::Heap, 54 * MB, 0)]),
            heap: Some([last; 2]),
            ..Observed::default()
        });
        answer.causes[0].next.clone()
    };
    let said = next(last);
    let expected =
        "`malloc_trim(0)` would give back about 41.9 MiB; `MALLOC_ARENA_MAX=2` would save about 34.3 MiB";
    assert!(said.starts_with(expected), "{said}");
    last.beyond_two = 0;
    last.allocator = Some(AllocatorName::Mimalloc);
    assert_eq!(next(last), "`mi_collect(true)` would give back about 41.9 MiB");
    last.allocator = Some(AllocatorName::Musl);
    assert_eq!(next(last), "tell the allocator to give memory back");
}

/// The place whose blocks pin most is named for pinned memory.
#[test]
fn pinned_by_place() {
    let mut pins = site("few", Took::Block, 10 * KB, 0);
    pins.pinned = amount(20 * MB);
    let observed = Observed {
        readings: readings(&[(Region::Heap, 10 * MB, 500 * KB)]),
        heap: Some([heap(10 * MB, 0, 0), heap(10 * MB, 30 * MB, 0)]),
        traces: vec![trace(vec![site("other", Took::Block, 10 * KB, 0), pins])],
        ..Observed::default()
    };
    let expected = vec![(CauseKind::Pinned, "few".to_owned(), "100".to_owned())];
    assert_eq!(found(&observed), (Some(true), expected));
    let answer = diagnose(&observed);
    let next = &answer.causes[0].next;
    assert!(next.starts_with("200000 blocks of `few` pin 19.0 MiB"), "{next}");
}

/// Every region has a cause of its own kind, with a site where one is known.
#[test]
fn regions() {
    for (region, took, kind) in [
        (Region::EndedStacks, Took::ThreadStack, CauseKind::ThreadStacks),
        (Region::LiveStacks, Took::ThreadStack, CauseKind::ThreadStacks),
        (Region::Mappings, Took::Mapping, CauseKind::Mappings),
        (Region::Shared, Took::MemoryFile, CauseKind::SharedMemory),
        (
            Region::Shared,
            Took::Page(Region::Shared),
            CauseKind::SharedMemory,
        ),
        (Region::Files, Took::Page(Region::Files), CauseKind::Files),
        (Region::Kernel, Took::Descriptor, CauseKind::Kernel),
        (
            Region::HugePages,
            Took::Page(Region::HugePages),
            CauseKind::HugePages,
        ),
        (Region::MainStack, Took::Page(Region::MainStack), CauseKind::Stack),
        (
            Region::Managed,
            Took::Page(Region::Managed),
            CauseKind::ManagedHeap,
        ),
    ] {
        let mut observed = Observed {
            readings: readings(&[(Region::Heap, 50 * MB, 0), (region, 0, 500 * KB)]),
            ..Observed::default()
        };
        assert_eq!(
            found(&observed),
            (Some(true), vec![(kind, String::new(), "100".to_owned())])
        );
        observed
            .traces
            .push(trace(vec![site("taker", took, 900 * KB, 0)]));
        assert_eq!(
            found(&observed),
            (Some(true), vec![(kind, "taker".to_owned(), "100".to_owned())])
        );
    }
}

/// Memory that does not grow has no cause, unless much of it is held without use.
#[test]
fn steady() {
    let steady = readings(&[(Region::Heap, 50 * MB, 0), (Region::Files, 9 * MB, 0)]);
    let mut observed = Observed {
        readings: steady,
        ..Observed::default()
    };
    assert_eq!(found(&observed), (Some(false), vec![]));
    observed.heap = Some([heap(9 * MB, 0, 41 * MB); 2]);
    let expected = vec![(CauseKind::FreeInAllocator, String::new(), "0".to_owned())];
    assert_eq!(found(&observed), (Some(false), expected));
    observed.heap = Some([heap(48 * MB, 0, 2 * MB); 2]);
    assert_eq!(found(&observed), (Some(false), vec![]));
}

/// Memory that goes up and down is not called growing, nor is it before there are enough readings.
#[test]
fn not_sure() {
    let mut observed = Observed {
        readings: readings(&[(Region::Heap, 50 * MB, 500 * KB)]),
        ..Observed::default()
    };
    observed.readings.truncate(MIN_READINGS - 1);
    let answer = diagnose(&observed);
    assert_eq!(
        answer.growth,
        Growth::NotSure {
            more: Duration::from_secs(2)
        }
    );
    for (index, reading) in observed.readings.iter_mut().enumerate() {
        reading.bytes = Amounts::default();
        reading
            .bytes
            .add(Region::Heap, 50 * MB + (index as u64 * 7919) % 5 * MB);
    }
    assert_ne!(diagnose(&observed).growth.grows(), Some(true));
    assert_eq!(diagnose(&Observed::default()).growth.grows(), None);
}

/// Where blocks cannot be traced, the places that touch new pages of the heap are named, and the blocks count
/// as lost if most of the heap's are.
#[test]
fn untraced_blocks() {
    let mut observed = Observed {
        readings: readings(&[(Region::Heap, 50 * MB, 500 * KB)]),
        heap: Some([heap(50 * MB, 0, 0), heap(80 * MB, 0, 0)]),
        traces: vec![trace(vec![
            site("taker", Took::Page(Region::Heap), 900 * KB, 0),
            site("other", Took::Page(Region::Files), 900 * KB, 0),
        ])],
        ..Observed::default()
    };
    let one = |kind| (Some(true), vec![(kind, "taker".to_owned(), "100".to_owned())]);
    assert_eq!(found(&observed), one(CauseKind::Kept));
    observed.lost = Some(60 * MB);
    assert_eq!(found(&observed), one(CauseKind::Lost));
    let answer = diagnose(&observed);
    assert_eq!(answer.causes[0].certainty, Certainty::Possible);
    assert_eq!(answer.causes[0].amount.bytes, 60 * MB);
}

/// Memory with a name is said to be held by it, and who makes files is named before who fills them.
#[test]
fn named_memory() {
    let mut observed = Observed {
        readings: readings(&[(Region::Shared, 0, 500 * KB)]),
        traces: vec![trace(vec![
            site("fill", Took::Page(Region::Shared), 900 * KB, 100),
            site("make", Took::MemoryFile, 100 * KB, 100),
        ])],
        names: [(Region::Shared, "memfd:frames".to_owned())].into(),
        ..Observed::default()
    };
    let first = |observed: &Observed| {
        let answer = diagnose(observed);
        let first = answer.causes.first().expect("a cause");
        let site = first.site.as_ref().expect("a site");
        (site.function.to_string(), first.holder.clone())
    };
    let holder = Some("memfd:frames".to_owned());
    assert_eq!(first(&observed), ("fill".to_owned(), holder.clone()));
    observed.traces[0].sites[1] = site("make", Took::MemoryFile, 400 * KB, 100);
    assert_eq!(first(&observed), ("make".to_owned(), holder));
}

/// A heap that grows at collections only grows; one that has settled does not.
#[test]
fn steps() {
    let heap = |bytes: fn(u64) -> u64| {
        let reading = |second: u64| {
            let mut amounts = Amounts::default();
            amounts.add(Region::Managed, bytes(second) * MB);
            let at = Duration::from_secs(second);
            Reading { at, bytes: amounts }
        };
        diagnose(&Observed {
            readings: (0..60).step_by(2).map(reading).collect(),
            ..Observed::default()
        })
    };
    let rising = heap(|second| 40 + second / 15 * 16);
    assert_eq!(rising.growth, Growth::Grows);
    assert!(
        (rising.bytes_per_second / 48e6 * 58.0 - 1.0).abs() < 0.01,
        "{rising:?}"
    );
    let settled = heap(|second| 40 + (second / 15).min(1) * 16);
    assert_ne!(settled.growth, Growth::Grows);
    let breathing = heap(|second| 40 + second / 15 * 16 - second / 25 * 4);
    assert_ne!(breathing.growth, Growth::Grows);
}
