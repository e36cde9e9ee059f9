//! Places of roots: an object's data, a thread's own data or its stack, other memory. They name the
//! beginnings of chains, and roots with the best names are followed first.

use std::ops::Range;

use unwind_tables::addr::{Avma, contains};

use super::heap::Heap;
use super::ranges::{common, without};
use super::roots::Thread;
use memleak_process::maps::{MapsEntry, MapsName};

/// Bytes around a thread pointer that are the thread's own data: the C library's descriptor of the thread
/// behind it, storage of libraries before it. Memory further away counts as other memory.
const THREAD_DATA: u64 = 4096;

/// A kind of place, with the number of the object, of the thread or of the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Data of an object.
    Data(usize),
    /// A thread's own data.
    ThreadLocal(usize),
    /// A thread's stack.
    Stack(usize),
    /// Memory that the program mapped.
    Mapped(usize),
    /// The allocator's memory.
    Untraced,
}

/// Ranges of addresses with their places, ascending, without overlap.
#[derive(Debug, Default)]
pub struct Places(Vec<(Range<Avma>, Place)>);

impl Places {
    /// Assigns places to all of `mappings`. `data` is the memory of objects, ascending, `storage` the size in
    /// bytes of the program's thread-local variables.
    pub fn of(
        mappings: &[MapsEntry],
        data: &[(Range<Avma>, usize)],
        threads: &[Thread],
        storage: u64,
        heap: &Heap,
    ) -> Self {
        let mut places = Self::default();
        places.add(
            data.iter()
                .map(|(range, object)| (range.clone(), Place::Data(*object)))
                .collect(),
        );
        let mapping_of = |address: Avma| {
            let after = mappings.partition_point(|mapping| mapping.range.start <= address);
            let mapping = mappings.get(after.checked_sub(1)?)?;
            contains(&mapping.range, address).then_some(mapping)
        };
        let own = threads.iter().zip(0..).filter_map(|(thread, number)| {
            let within = &mapping_of(thread.tp)?.range;
            let first = Avma::new(thread.tp.get().saturating_sub(storage));
            let around = match contains(within, thread.sp) {
                // The C library puts a thread's data at the outer end of its stack.
                true => first..within.end,
                false => {
                    let end = Avma::new(thread.tp.get().saturating_add(THREAD_DATA));
                    Avma::new(first.get().saturating_sub(THREAD_DATA))..end
                }
            };
            let range = around.start.max(within.start)..around.end.min(within.end);
            Some((range, Place::ThreadLocal(number)))
        });
        places.add(own.collect());
        let stacks = threads.iter().zip(0..).filter_map(|(thread, number)| {
            let mapping = mapping_of(thread.sp)?;
            let is_stack = is_first_stack(mapping) || !has_blocks(heap, &mapping.range);
            is_stack.then(|| (mapping.range.clone(), Place::Stack(number)))
        });
        places.add(stacks.collect());
        let others = mappings.iter().zip(0..).map(|(mapping, number)| {
            let is_allocators =
                mapping.name == MapsName::Special("[heap]".into()) || has_blocks(heap, &mapping.range);
            let place = if is_allocators {
                Place::Untraced
            } else {
                Place::Mapped(number)
            };
            (mapping.range.clone(), place)
        });
        places.add(others.collect());
        places
    }

    /// Adds those parts of `some` that have no place yet.
    fn add(&mut self, mut some: Vec<(Range<Avma>, Place)>) {
        some.sort_unstable_by_key(|(range, place)| (range.start, *place));
        let mut end = Avma::new(0);
        for (range, _) in &mut some {
            range.start = range.start.max(end);
            end = end.max(range.end);
        }
        some.retain(|(range, _)| range.start < range.end);
        let taken: Vec<_> = self.0.iter().map(|(range, _)| range.clone()).collect();
        for free in without(some.iter().map(|(range, _)| range.clone()), taken) {
            let after = some.partition_point(|(range, _)| range.start <= free.start);
            if let Some((_, place)) = after.checked_sub(1).and_then(|at| some.get(at)) {
                self.0.push((free, *place));
            }
        }
        self.0.sort_unstable_by_key(|(range, _)| range.start);
    }

    /// The place of an address.
    pub fn find(&self, address: Avma) -> Option<Place> {
        let after = self.0.partition_point(|(range, _)| range.start <= address);
        let (range, place) = self.0.get(after.checked_sub(1)?)?;
        contains(range, address).then_some(*place)
    }

    /// Returns the parts of `ranges`, which ascend, whose place `is_of_kind`.
    pub fn within(&self, ranges: &[Range<Avma>], is_of_kind: impl Fn(Place) -> bool) -> Vec<Range<Avma>> {
        let places = self.0.iter().filter(|(_, place)| is_of_kind(*place));
        let places: Vec<_> = places.map(|(range, _)| range.clone()).collect();
        common(&places, ranges)
    }
}

fn is_first_stack(mapping: &MapsEntry) -> bool {
    mapping.name == MapsName::Special("[stack]".into())
}

/// Returns true if a block begins in the mapping.
fn has_blocks(heap: &Heap, mapping: &Range<Avma>) -> bool {
    let blocks = heap.blocks();
    let first = blocks.partition_point(|block| block.address < mapping.start);
    blocks.get(first).is_some_and(|block| block.address < mapping.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::Block;
    use memleak_process::maps;

    const MAPS: &str = "\
400000-402000 rw-p 00000000 08:01 7   /app
402000-404000 rw-p 00000000 00:00 0
10000000-10100000 rw-p 00000000 00:00 0   [heap]
20000000-20010000 rw-p 00000000 00:00 0
30000000-30001000 ---p 00000000 00:00 0
30001000-30801000 rw-p 00000000 00:00 0
40000000-40100000 rw-p 00000000 00:00 0
50000000-50010000 rw-s 00000000 00:01 9   /dev/shm/x
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0   [stack]
";

    /// Each address has its most specific place: data of objects includes the memory that follows, a thread's
    /// own data comes first, in its stack as in memory of the C library; mappings with blocks are the
    /// allocator's.
    #[test]
    fn places() {
        let mappings: Vec<_> = maps::parse(MAPS.as_bytes()).filter_map(Result::ok).collect();
        let at = |address: u64| Avma::new(address);
        let heap = Heap::new(vec![Block {
            address: at(0x4000_0010),
            size: 64,
            allocated_at: 1,
            stack: 1,
        }]);
        let thread = |sp, tp| Thread {
            sp: at(sp),
            tp: at(tp),
            is_running: false,
        };
        let threads = [
            thread(0x7ffd_0002_0000, 0x2000_4000),
            thread(0x3080_0000, 0x3080_0700),
            // A coroutine's stack in a block.
            thread(0x4000_0040, 0x2000_4000),
        ];
        let data = [(at(0x40_1000)..at(0x40_3000), 5)];
        let places = Places::of(&mappings, &data, &threads, 0x100, &heap);
        for (address, expected) in [
            (0x40_0fff, Some(Place::Mapped(0))),
            (0x40_1000, Some(Place::Data(5))),
            (0x40_2fff, Some(Place::Data(5))),
            (0x40_3000, Some(Place::Mapped(1))),
            (0x1000_0000, Some(Place::Untraced)),
            (0x2000_0000, Some(Place::Mapped(3))),
            (0x2000_2f00, Some(Place::ThreadLocal(0))),
            (0x2000_4fff, Some(Place::ThreadLocal(0))),
            (0x2000_5000, Some(Place::Mapped(3))),
            (0x3000_1000, Some(Place::Stack(1))),
            (0x3080_05ff, Some(Place::Stack(1))),
            (0x3080_0600, Some(Place::ThreadLocal(1))),
            (0x3080_0fff, Some(Place::ThreadLocal(1))),
            (0x4000_0000, Some(Place::Untraced)),
            (0x5000_0000, Some(Place::Mapped(7))),
            (0x7ffd_0000_0000, Some(Place::Stack(0))),
            (0x6000_0000, None),
        ] {
            assert_eq!(places.find(at(address)), expected, "{address:#x}");
        }
        let ranges = [at(0x40_0000)..at(0x40_4000), at(0x3080_0000)..at(0x3080_0800)];
        let within = places.within(&ranges, |place| matches!(place, Place::ThreadLocal(_)));
        assert_eq!(within, [at(0x3080_0600)..at(0x3080_0800)]);
    }
}
