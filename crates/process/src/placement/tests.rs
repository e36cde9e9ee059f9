use unwind_tables::addr::Svma;

use super::*;

const PAGE: u64 = 4096;

fn segment(svma: u64, offset: Range<u64>, executable: bool) -> Segment {
    Segment {
        svma: Svma::new(svma)..Svma::new(svma + (offset.end - offset.start)),
        offset: FileOffset::new(offset.start)..FileOffset::new(offset.end),
        executable,
        writable: false,
    }
}

fn part(start: u64, pages: u64, offset: u64, executable: bool) -> Part {
    Part {
        range: Avma::new(start)..Avma::new(start + pages * PAGE),
        offset: FileOffset::new(offset),
        executable,
    }
}

fn layout(segments: &[Segment], is_fixed: bool) -> Layout<'_> {
    Layout {
        segments,
        is_fixed,
        page: PAGE,
    }
}

/// The layout of lld for code at a separate address: both executable segments begin in the file's page at
/// 0x1000.
fn two_in_a_page() -> [Segment; 4] {
    [
        segment(0, 0..0x8e0, false),
        segment(0x2200, 0x1200..0x1240, true),
        segment(0x10_4240, 0x1240..0x7400, true),
        segment(0x10_b400, 0x7400..0x7800, false),
    ]
}

/// The segments of [`two_in_a_page`] as a loader maps them.
fn loaded(bias: u64) -> [Part; 4] {
    [
        part(bias, 1, 0, false),
        part(bias + 0x2000, 1, 0x1000, true),
        part(bias + 0x10_4000, 7, 0x1000, true),
        part(bias + 0x10_b000, 1, 0x7000, false),
    ]
}

/// A mapping starts at the page that contains its segment's start; an executable mapping belongs to the
/// executable segment.
#[test]
fn one_candidate() {
    // The layout of lld: code at file offset 0x1740 is mapped with its page at address 0x2740.
    let lld = [
        segment(0, 0..0x1740, false),
        segment(0x2740, 0x1740..0x5000, true),
    ];
    // The layout of ld: everything page-aligned; then a file that is not position independent.
    let ld = [segment(0, 0..0x600, false), segment(0x1000, 0x1000..0x2000, true)];
    let fixed = [segment(0x40_0000, 0..0x2000, true)];
    let cases: &[(&[Segment], u64, Option<u64>)] = &[
        (&lld, 0x1000, Some(0x2000)),
        (&lld, 0x4000, Some(0x5000)),
        (&lld, 0x0, Some(0x0)),
        (&lld, 0x5000, None),
        (&ld, 0x1000, Some(0x1000)),
        (&ld, 0x2000, None),
        (&fixed, 0x1000, Some(0x40_1000)),
    ];
    for &(segments, offset, svma) in cases {
        let one = part(0x7000_0000, 1, offset, true);
        let expected = svma.map(|svma| Bias::between(one.range.start, Svma::new(svma)));
        for others in [Others::Unseen, Others::Unknown] {
            let found = layout(segments, false).bias(&one, others);
            assert_eq!(found, expected.ok_or(Unreadable::NoSegment), "{offset:#x}");
        }
    }
}

/// Where two executable segments begin in a page, the other mappings tell them apart, in each of two copies,
/// after parts were split off or unmapped.
#[test]
fn other_mappings_decide() {
    let segments = two_in_a_page();
    let layout = layout(&segments, false);
    let (first, second) = (0x7f00_0000_0000, 0x7f00_0020_0000);
    let whole = [loaded(first), loaded(second)].concat();
    // A page of the second one's code was made writable, and its first segment unmapped.
    let mut split = whole.clone();
    split[6] = part(second + 0x10_4000, 1, 0x1000, true);
    split[4] = part(second + 0x10_5000, 6, 0x2000, true);
    for parts in [whole, split] {
        let seen = Seen::of(&layout, parts.iter().cloned());
        for part in &parts {
            let bias = if part.range.start.get() < second {
                first
            } else {
                second
            };
            let found = layout.bias(part, Others::Seen(&seen));
            assert_eq!(found, Ok(Bias::from_raw(bias)), "{part:x?}");
        }
    }
}

/// A program that is not position-independent is at the addresses it states; parts that it has mapped
/// elsewhere are not.
#[test]
fn stated_addresses() {
    let segments = two_in_a_page();
    let layout = layout(&segments, true);
    for part in &loaded(0) {
        assert_eq!(
            layout.bias(part, Others::Unknown),
            Ok(Bias::default()),
            "{part:x?}"
        );
    }
    let elsewhere = part(0x7f00_0000_0000, 7, 0x1000, true);
    let parts = [&loaded(0)[..], std::slice::from_ref(&elsewhere)].concat();
    let bias = Bias::between(elsewhere.range.start, Svma::new(0x10_4000));
    assert_eq!(
        layout.bias(
            &elsewhere,
            Others::Seen(&Seen::of(&layout, parts.iter().cloned()))
        ),
        Ok(bias)
    );
}

/// A single page that was mapped by hand can belong to either segment, and is refused. If a loader has just
/// made the mapping, its length decides, if it can.
#[test]
fn undecided_mappings_are_refused() {
    let segments = two_in_a_page();
    let layout = layout(&segments, false);
    let one = part(0x7f00_0000_0000, 1, 0x1000, true);
    let alone = Seen::of(&layout, std::iter::once(one.clone()));
    assert_eq!(
        layout.bias(&one, Others::Seen(&alone)),
        Err(Unreadable::Ambiguous)
    );
    let as_first = Bias::between(one.range.start, Svma::new(0x2000));
    assert_eq!(layout.bias(&one, Others::Unknown), Ok(as_first));
    let mut alike = segments.clone();
    alike[2] = segment(0x10_4240, 0x1240..0x1400, true);
    let layout = Layout {
        segments: &alike,
        ..layout
    };
    assert_eq!(layout.bias(&one, Others::Unknown), Err(Unreadable::Ambiguous));
}
