//! Stacks of exited threads in glibc's stack cache. Their contents are dead.
//!
//! glibc describes a stack in the thread's own data, at the outer end of the stack: by the start of the
//! mapping with its guard, its size, and the guard's size (`stackblock`, `stackblock_size` and `guardsize` of
//! `struct pthread`, `nptl/descr.h`). A stack that the program made itself is not described like that.

use std::ops::Range;

use unwind_tables::addr::{Avma, contains};

use super::Memory;
use super::roots::Thread;
use memleak_process::maps::{MapsEntry, MapsName};

/// Bytes of a mapping that are searched for the description of its stack. Other memory can follow the stack
/// in the same mapping.
const SEARCHED: u64 = 64 << 20;
/// Maximum number of words of a thread's data before the description: all of the data is some 2300 bytes.
const BEFORE: usize = 512;
/// Words from a thread pointer, which points to itself, to the second word that does (`tcbhead_t` on x86-64:
/// `tcb`, `dtv`, `self`).
const TO_SELF: usize = 2;

/// Words from a thread pointer to the thread's id. The id of an exited thread is 0, written by the kernel, or
/// -1, written by glibc.
const TO_ID: usize = 90;
const NO_ID: [u64; 2] = [0, ID];
const ID: u64 = 0xffff_ffff;

/// Finds the stacks of exited threads, ascending. Leaves out the threads' own data: another thread can still
/// join one, and get its result from there.
pub fn stacks(memory: &dyn Memory, mappings: &[MapsEntry], threads: &[Thread]) -> Vec<Range<Avma>> {
    if threads.is_empty() {
        // A process has at least one thread: none are known.
        return Vec::new();
    }
    let pairs = mappings.windows(2);
    let found = pairs.filter_map(|pair| {
        let [guard, stack] = pair else {
            return None;
        };
        let is_stack = guard.range.end == stack.range.start
            && !guard.readable
            && !guard.writable
            && stack.readable
            && stack.writable
            && !stack.shared
            && stack.name == MapsName::Anonymous;
        let has = |address: Avma| contains(&stack.range, address);
        if !is_stack || threads.iter().any(|thread| has(thread.sp) || has(thread.tp)) {
            return None;
        }
        let data = own_data(memory, &guard.range, &stack.range)?;
        Some(stack.range.start..data)
    });
    found.collect()
}

/// Finds the own data of an exited thread whose stack begins with `stack`, behind a guard in `guard`.
fn own_data(memory: &dyn Memory, guard: &Range<Avma>, stack: &Range<Avma>) -> Option<Avma> {
    let end = stack.end.min(stack.start.wrapping_add(SEARCHED));
    let mut found = None;
    memory.visit(&[stack.start..end], &mut |first, words| {
        let describes = |words: &[u64]| {
            let &[block, size, guard_size] = words else {
                return false;
            };
            let ends = (block.checked_add(guard_size), block.checked_add(size));
            contains(guard, Avma::new(block))
                && ends.0 == Some(stack.start.get())
                && ends
                    .1
                    .is_some_and(|end| end <= stack.end.get() && first.get() < end)
        };
        for described in (0..words.len()).filter(|&at| words.get(at..at + 3).is_some_and(describes)) {
            let before = described.saturating_sub(BEFORE);
            let address = |place: usize| first.get() + 8 * place as u64;
            let is_own = |&place: &usize| {
                words[place] == address(place) && words.get(place + TO_SELF) == Some(&address(place))
            };
            let own = (before..described).find(is_own);
            let id = own.and_then(|place| words.get(place + TO_ID));
            if id.is_some_and(|&id| NO_ID.contains(&(id & ID))) {
                found = own.map(address);
            }
        }
    });
    found.map(Avma::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memleak_process::maps;

    const MAPS: &[u8] = b"\
7f0000000000-7f0000001000 ---p 00000000 00:00 0
7f0000001000-7f0000801000 rw-p 00000000 00:00 0
7f0000900000-7f0000901000 ---p 00000000 00:00 0
7f0000901000-7f0000a01000 rw-p 00000000 00:00 0
";
    const OWN: u64 = 0x7f00_0080_06c0;

    /// Memory with a few words in it.
    struct Words(Vec<(u64, u64)>);

    impl Memory for Words {
        fn visit(&self, ranges: &[Range<Avma>], see: &mut dyn FnMut(Avma, &[u64])) {
            let page = Avma::new(OWN & !0xfff);
            let mut words = [0; 512];
            for &(address, word) in &self.0 {
                words[usize::try_from((address - page.get()) / 8).expect("in the page")] = word;
            }
            if ranges.iter().any(|range| contains(range, page)) {
                see(page, &words);
            }
        }

        fn read(&self, _: Avma, _: &mut [u64]) -> bool {
            false
        }
    }

    fn ended() -> Words {
        let described = OWN + 0x690;
        Words(vec![
            (OWN, OWN),
            (OWN + 16, OWN),
            (described, 0x7f00_0000_0000),
            (described + 8, 0x80_1000),
            (described + 16, 0x1000),
        ])
    }

    fn found(words: &Words, threads: &[Thread]) -> Vec<(u64, u64)> {
        let mappings: Vec<_> = maps::parse(MAPS).filter_map(Result::ok).collect();
        let found = stacks(words, &mappings, threads);
        found
            .iter()
            .map(|range| (range.start.get(), range.end.get()))
            .collect()
    }

    /// A stack ends before the thread's own data; one that is described otherwise, or that a thread uses, is
    /// not found.
    #[test]
    fn stacks_of_ended_threads() {
        let thread = |sp, tp| Thread {
            sp: Avma::new(sp),
            tp: Avma::new(tp),
            is_running: false,
        };
        let other = thread(0x7ffd_0000_0000, 0x7f12_0000_0000);
        assert_eq!(found(&ended(), &[other]), [(0x7f00_0000_1000, OWN)]);
        for left_out in 0..5 {
            let mut words = ended();
            words.0.remove(left_out);
            assert_eq!(found(&words, &[other]), [], "without word {left_out}");
        }
        for (id, is_ended) in [(0xffff_ffff, true), (4711, false)] {
            let mut words = ended();
            words.0.push((OWN + 8 * TO_ID as u64, id));
            assert_eq!(!found(&words, &[other]).is_empty(), is_ended, "{id}");
        }
        assert_eq!(found(&ended(), &[]), [], "nothing is known of threads");
        assert_eq!(found(&ended(), &[thread(0x7f00_0000_2000, 1)]), []);
        assert_eq!(found(&ended(), &[thread(1, OWN)]), []);
        assert_eq!(
            found(&ended(), &[thread(0x7f00_0095_0000, 2)]),
            [(0x7f00_0000_1000, OWN)]
        );
    }
}
