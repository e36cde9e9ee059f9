//! Stacks of exited threads, as the C library describes them ([`memleak_process::census::stacks`]). Their
//! contents are dead.

use std::ops::Range;

use memleak_process::census::stacks;
use memleak_process::maps::MapsEntry;
use unwind_tables::addr::{Avma, contains};

use super::Memory;
use super::roots::Thread;

/// Finds the stacks of exited threads behind a guard, ascending. `usual` is the size of stacks if the program
/// asks for none. Leaves out the threads' own data: another thread can still join one, and get its result
/// from there.
pub fn stacks(
    memory: &dyn Memory,
    mappings: &[MapsEntry],
    threads: &[Thread],
    usual: u64,
) -> Vec<Range<Avma>> {
    if threads.is_empty() {
        // A process has at least one thread: none are known.
        return Vec::new();
    }
    let read = |address: u64, words: &mut [u64]| memory.read(Avma::new(address), words);
    let found = stacks::find(&read, mappings.iter(), usual);
    let unused = found.into_iter().filter(|stack| {
        let mapping = mappings.get(stack.mapping).map(|mapping| &mapping.range);
        let has = |address: Avma| mapping.is_some_and(|range| contains(range, address));
        let is_used = threads.iter().any(|thread| has(thread.sp) || has(thread.tp));
        stack.guard > 0 && !is_used
    });
    unused.filter_map(|stack| stack.dead()).collect()
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
    /// Words from a thread's own data to its id.
    const TO_ID: u64 = 90;

    /// Memory with a few words in it, all on one page.
    struct Words(Vec<(u64, u64)>);

    impl Memory for Words {
        fn visit(&self, _: &[Range<Avma>], _: &mut dyn FnMut(Avma, &[u64])) {}

        fn read(&self, at: Avma, words: &mut [u64]) -> bool {
            let page = OWN & !0xfff;
            if at.get() < page || at.get() + 8 * words.len() as u64 > page + 4096 {
                return false;
            }
            words.fill(0);
            for &(address, word) in self.0.iter().filter(|&&(address, _)| address >= at.get()) {
                let number = usize::try_from((address - at.get()) / 8).expect("on the page");
                if let Some(place) = words.get_mut(number) {
                    *place = word;
                }
            }
            true
        }
    }

    fn ended() -> Words {
        let described = OWN + 0x690;
        Words(vec![
            (OWN, OWN),
            (OWN + 16, OWN),
            (described, 0x7f00_0000_0000),
            (described + 8, 0x80_1000),
        ])
    }

    fn found(words: &Words, threads: &[Thread]) -> Vec<(u64, u64)> {
        let mappings: Vec<_> = maps::parse(MAPS).filter_map(Result::ok).collect();
        let found = stacks(words, &mappings, threads, 8 << 20);
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
        for left_out in 0..4 {
            let mut words = ended();
            words.0.remove(left_out);
            assert_eq!(found(&words, &[other]), [], "without word {left_out}");
        }
        for (id, is_ended) in [(0xffff_ffff, true), (4711, false)] {
            let mut words = ended();
            words.0.push((OWN + 8 * TO_ID, id));
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
