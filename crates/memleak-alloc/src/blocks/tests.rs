//! The set, used by many threads at once. There is one set for the program, so each test has its own blocks
//! and pages (modulo 256 MiB).

use std::collections::BTreeMap;
use std::thread;
use std::vec::Vec;

use super::*;

/// Each block is found, by the thread that added it, until it is removed, and not afterwards.
#[test]
fn threads_find_what_they_put_in() {
    thread::scope(|scope| {
        for number in 0..8_usize {
            scope.spawn(move || {
                // Its pages, modulo 256 MiB: 64 pages, from number 256 * (`number` + 1) on.
                let base = 0x1000_0000_0000 + (number << 36) + ((number + 1) << 20);
                let mut random = 0x9e37_79b9_u64.wrapping_mul(number as u64 + 1);
                let mut known = BTreeMap::new();
                for _ in 0..40_000 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let block = base + (random as usize & 0x3fff) * 16;
                    let announced = Announced::new(random as usize >> 8, random as u8);
                    if let Some(was) = known.remove(&block) {
                        assert!(may_have(block));
                        assert_eq!(remove(block), Some(was));
                    } else {
                        assert_eq!(remove(block), None);
                        assert!(insert(block, announced));
                        known.insert(block, announced);
                    }
                }
                for (block, was) in known {
                    assert_eq!(remove(block), Some(was));
                }
            });
        }
    });
}

/// The set grows far beyond its first table, and earlier blocks are still found. Once its blocks are removed,
/// a page counts as empty.
#[test]
fn tables_are_added() {
    let blocks: Vec<usize> = (0..100_000)
        .map(|number| 0x6000_0100_0000 + number * 2048)
        .collect();
    for &block in &blocks {
        assert!(insert(block, Announced::new(block & 0xffff, 2)));
    }
    assert!(table(2).is_some());
    for &block in &blocks {
        assert_eq!(remove(block), Some(Announced::new(block & 0xffff, 2)));
        assert_eq!(remove(block), None);
    }
    assert!(!blocks.iter().any(|&block| may_have(block)));
    assert_eq!(memleak_samples_not_announced.load(Relaxed), 0);
}

/// A block that is added twice is replaced; its page is empty after one removal. NULL is not a block, even if
/// its page has one.
#[test]
fn blocks_that_are_put_in_twice() {
    let block = 0x5555_0000_0000 - 4096;
    assert!(insert(block, Announced::new(1, 1)));
    assert!(insert(block, Announced::new(usize::MAX >> 3, 7)));
    let announced = remove(block).expect("it is there");
    assert_eq!((announced.size(), announced.chosen()), (usize::MAX >> 3, 7));
    assert!(!may_have(block));
    // A block in the page of NULL, modulo 256 MiB.
    assert!(insert(1 << 40, Announced::new(1, 1)));
    assert!(may_have(0));
    assert_eq!(remove(0), None);
    assert!(may_have(0));
    remove(1 << 40);
    assert!(!may_have(0));
}
