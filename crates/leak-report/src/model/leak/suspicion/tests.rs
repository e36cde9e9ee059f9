use proptest::prelude::*;

use super::super::tests::totals;
use super::*;
use crate::model::{Amount, Estimate};

/// Seconds at which a block is allocated and freed.
struct Life {
    born: f64,
    dies: f64,
}

/// Blocks of 100 bytes: `per_second` are allocated evenly from `from` to `to`, and each lives `lifetime`
/// seconds.
fn lives(per_second: f64, from: f64, to: f64, lifetime: f64) -> Vec<Life> {
    let born = |number: u32| from + (f64::from(number) + 0.5) / per_second;
    (0..)
        .map(born)
        .take_while(|&born| born < to)
        .map(|born| Life {
            born,
            dies: born + lifetime,
        })
        .collect()
}

fn point(lives: &[Life], now: f64) -> (f64, Point) {
    let born = lives.iter().filter(|life| life.born <= now);
    let live = born.clone().filter(|life| life.dies > now).count();
    let point = Point {
        bytes: 100 * live as u64,
        allocated: born.count() as u64,
    };
    (now, point)
}

fn ages(lives: &[Life], now: f64) -> Ages {
    let mut ages = Ages::default();
    let live = lives.iter().filter(|life| life.born <= now && life.dies > now);
    for life in live {
        let one = Amount {
            bytes: 100,
            blocks: 1,
        };
        ages.count(Duration::from_secs_f64(now - life.born), Estimate::from(one));
    }
    ages
}

/// Suspicion at the last of `reports` reports, `interval` seconds apart.
fn after(reports: usize, interval: f64, lives: &[Life]) -> Suspicion {
    let course: Vec<_> = (1..=reports)
        .map(|report| point(lives, report as f64 * interval))
        .collect();
    let (now, _) = *course.last().expect("a report");
    let live = ages(lives, now)
        .classes()
        .map(|(_, class)| class.amount.blocks)
        .sum();
    judge(&course, live, Some(ages(lives, now)))
}

/// A leak that frees nothing scores at least 9 by the fourth report and 10 by the sixth; two reports score 0.
#[test]
fn a_leak_is_suspected() {
    let leak = lives(20.0, 0.0, 1000.0, f64::INFINITY);
    for (reports, min) in [(1, 0), (2, 0), (3, 6), (4, 9), (6, 10), (12, 10), (100, 10)] {
        let found = after(reports, 5.0, &leak);
        assert!(found.score() >= min, "{reports} reports: {found:?}");
        if reports <= 2 {
            assert_eq!(found.score(), 0, "{found:?}");
        }
    }
    let found = after(6, 5.0, &leak);
    assert!((found.growth - 2000.0).abs() < 1.0, "{found:?}");
    assert!(
        found.kept > Some(0.95) && found.age_spread > Some(0.95),
        "{found:?}"
    );
}

/// Start-up data, full caches and churn score at most 2 in six reports.
#[test]
fn non_leaks_score_low() {
    let start = lives(500.0, 0.0, 2.0, f64::INFINITY);
    let settled = lives(300.0, 0.0, 1000.0, 8.0);
    let filled_once = lives(300.0, 0.0, 11.0, f64::INFINITY);
    let churn = lives(1000.0, 0.0, 1000.0, 0.05);
    for (case, lives) in [
        ("start", start),
        ("settled", settled),
        ("filled", filled_once),
        ("churn", churn),
    ] {
        let found = after(6, 5.0, &lives);
        assert!(found.score() <= 2, "{case}: {found:?}");
    }
}

/// A cache whose growth slows down as it fills ranks below a leak of a hundredth of its speed; a site that
/// frees nearly all and leaks a little scores below one that leaks all, and at least 4.
#[test]
fn slowing_and_partial() {
    let mut slowing = Vec::new();
    for second in 0..60 {
        let per_second = 400.0 * (-f64::from(second) / 12.0_f64).exp();
        slowing.extend(lives(
            per_second.max(1.0),
            f64::from(second),
            f64::from(second) + 1.0,
            f64::INFINITY,
        ));
    }
    let leak = lives(4.0, 0.0, 60.0, f64::INFINITY);
    let (slowing, leak) = (after(6, 5.0, &slowing), after(6, 5.0, &leak));
    assert!(leak.rank() > slowing.rank(), "{leak:?} {slowing:?}");
    assert!(slowing.growth > 10.0 * leak.growth);
    let mut partial = lives(100.0, 0.0, 60.0, 0.3);
    partial.extend(lives(1.0, 0.0, 60.0, f64::INFINITY));
    let partial = after(6, 5.0, &partial);
    assert!((4..leak.score()).contains(&partial.score()), "{partial:?}");
}

/// Invalid parts in a recording give a score within bounds.
#[test]
fn invalid_parts_score_within_bounds() {
    for part in [f64::NAN, f64::INFINITY, -1.0, 7.0] {
        let made_up = Suspicion {
            reports: 3,
            growth: part,
            certainty: part,
            steadiness: part,
            kept: Some(part),
            age_spread: Some(part),
        };
        assert!(made_up.score() <= Suspicion::MAX_SCORE, "{made_up:?}");
        made_up.rank();
    }
}

fn snapshot(second: u64, stacks: &[(u32, u64)]) -> Snapshot {
    let stack = |&(record, blocks): &(u32, u64)| {
        let allocated = Amount {
            bytes: 10 * blocks,
            blocks,
        };
        totals(record, allocated, Amount::default())
    };
    Snapshot {
        elapsed: Duration::from_secs(second),
        stacks: stacks.iter().map(stack).collect(),
        ..Snapshot::default()
    }
}

/// A site is judged by the sum of its records at each moment; a later record was zero before, and the number
/// of moments of a long trace is bounded.
#[test]
fn records_add_up() {
    let mut course = Course::default();
    for second in 1..=1000 {
        let mut stacks = vec![(7, second)];
        if second > 500 {
            stacks.push((8, 3 * (second - 500)));
        }
        course.note(&snapshot(second, &stacks), |stack| stack.allocated.amount.bytes);
    }
    assert!(course.moments.seconds().len() <= MAX_MOMENTS);
    assert!(
        course
            .records
            .values()
            .all(|points| points.len() == course.moments.seconds().len())
    );
    let now = |records, blocks| SiteState {
        elapsed: Duration::from_secs(1001),
        records,
        kind: None,
        point: Point {
            bytes: 10 * blocks,
            allocated: blocks,
        },
        blocks,
        ages: None,
    };
    let one = course.suspicion(&now(&[7], 1001));
    assert!((one.growth - 10.0).abs() < 1e-9, "{one:?}");
    assert_eq!((one.score(), one.kept), (9, Some(1.0)), "{one:?}");
    let late = course.suspicion(&now(&[8], 3 * 501));
    let at_400 = course
        .moments
        .seconds()
        .iter()
        .position(|&at| at >= 400.0)
        .expect("kept");
    assert_eq!(course.records[&(8, None)][at_400], Point::default());
    let both = course.suspicion(&now(&[7, 8], 1001 + 3 * 501));
    assert!(
        both.growth > one.growth && late.steadiness > 0.99,
        "{both:?} {late:?}"
    );
}

proptest! {
    /// Every course has a score within bounds; one that never rises scores 0.
    #[test]
    fn scores_are_bounded(bytes in prop::collection::vec(0_u64..1 << 50, 1..40), falling in any::<bool>()) {
        let mut bytes = bytes;
        if falling {
            bytes.sort_unstable_by(|a, b| b.cmp(a));
        }
        let course: Vec<_> = (1..).map(f64::from).zip(bytes.into_iter().map(|bytes| Point { bytes, allocated: bytes })).collect();
        let found = judge(&course, 1, None);
        prop_assert!(found.score() <= Suspicion::MAX_SCORE);
        if falling {
            prop_assert_eq!(found.score(), 0);
        }
    }
}
