//! Memory where the search for reachable blocks begins: everything that is in no block and is not known to be
//! dead.

use std::ops::Range;

use unwind_tables::addr::{Avma, contains};

use super::heap::Heap;
use super::ranges::without;
use memleak_process::maps::{MapsEntry, MapsName};

/// Bytes below the stack pointer that a function may use (x86-64 psABI, red zone).
const RED_ZONE: u64 = 128;
/// Bytes below the stack pointer that count as used while a thread runs: its registers are known from its
/// last entry into the kernel, and it may have called functions since.
const RUNNING: u64 = 64 << 10;

/// A thread, as far as its stack is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Stack pointer.
    pub sp: Avma,
    /// Thread pointer, which glibc and musl put at the outer end of the stacks that they make.
    pub tp: Avma,
    /// True unless it waits in the kernel.
    pub is_running: bool,
}

impl Thread {
    /// Lowest address of its stack that it may use.
    fn lowest(&self) -> Avma {
        let below = if self.is_running { RUNNING } else { RED_ZONE };
        Avma::new(self.sp.get().saturating_sub(below))
    }
}

/// Finds the dead parts of stacks, ascending: those below the threads' stack pointers.
///
/// Two kinds of mappings are known to be a single stack: the kernel's `[stack]`, and one that begins right
/// behind a guard without access rights and ends with the thread's own data. Any other mapping that a stack
/// pointer is in may hold several stacks, of coroutines for example.
pub fn dead_stacks(mappings: &[MapsEntry], threads: &[Thread]) -> Vec<Range<Avma>> {
    let mut before: Option<&MapsEntry> = None;
    let mut dead = Vec::new();
    for mapping in mappings {
        let guard = before.replace(mapping);
        let is_guarded = guard.is_some_and(|guard| {
            guard.range.end == mapping.range.start && !guard.readable && !guard.writable
        });
        let is_first = mapping.name == MapsName::Special("[stack]".into());
        let within = |address: &Avma| contains(&mapping.range, *address);
        let here = threads.iter().filter(|thread| within(&thread.sp));
        let Some(lowest) = here.min_by_key(|thread| thread.sp) else {
            continue;
        };
        // No other thread's data is below that of this thread.
        let first_data = threads.iter().map(|thread| thread.tp).filter(within).min();
        let is_made = is_guarded && lowest.sp < lowest.tp && first_data == Some(lowest.tp);
        let end = lowest.lowest();
        if (is_first || is_made) && mapping.range.start < end {
            dead.push(mapping.range.start..end);
        }
    }
    dead
}

/// Returns the memory that is a root: `pages` without the blocks of `heap`, memory `unused` by the allocator,
/// and `dead` stacks. All ranges ascend.
pub fn roots<'a>(
    pages: &'a [Range<Avma>],
    heap: &'a Heap,
    unused: &'a [Range<Avma>],
    dead: &'a [Range<Avma>],
) -> impl Iterator<Item = Range<Avma>> + 'a {
    let outside = without(pages.iter().cloned(), heap.ranges());
    without(without(outside, unused.iter().cloned()), dead.iter().cloned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use memleak_process::maps;

    const MAPS: &str = "\
55d0c0a00000-55d0c0a21000 rw-p 00000000 00:00 0   [heap]
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
7f0020000000-7f0020001000 ---p 00000000 00:00 0
7f0020001000-7f0020801000 rw-p 00000000 00:00 0
7f0020801000-7f0020802000 ---p 00000000 00:00 0
7f0020802000-7f0021002000 rw-p 00000000 00:00 0
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0   [stack]
";

    fn dead(threads: &[(u64, u64, bool)]) -> Vec<(u64, u64)> {
        let mappings: Vec<_> = maps::parse(MAPS.as_bytes()).filter_map(Result::ok).collect();
        let threads: Vec<_> = threads
            .iter()
            .map(|&(sp, tp, is_running)| Thread {
                sp: Avma::new(sp),
                tp: Avma::new(tp),
                is_running,
            })
            .collect();
        let dead = dead_stacks(&mappings, &threads);
        dead.iter()
            .map(|range| (range.start.get(), range.end.get()))
            .collect()
    }

    /// Memory below the stack pointer and its red zone is dead in stacks that the kernel or the C library has
    /// made.
    #[test]
    fn below_the_stack_pointer() {
        let first = (0x7ffd_0002_0000, 0x7f00_0000_0740, false);
        let second = (0x7f00_2080_0000, 0x7f00_2080_0700, false);
        assert_eq!(
            dead(&[first, second]),
            [
                (0x7f00_2000_1000, 0x7f00_207f_ff80),
                (0x7ffd_0000_0000, 0x7ffd_0001_ff80)
            ]
        );
        // A thread that runs may have called functions since.
        let running = (0x7f00_2080_0000, 0x7f00_2080_0700, true);
        assert_eq!(dead(&[running]), [(0x7f00_2000_1000, 0x7f00_207f_0000)]);
        // The stack can begin within that distance.
        assert_eq!(dead(&[(0x7f00_2000_2000, 0x7f00_2080_0700, true)]), []);
    }

    /// Memory that can be several stacks is not dead below a stack pointer.
    #[test]
    fn stacks_of_others() {
        // No guard before it; thread data elsewhere, as of a thread that runs a coroutine; another thread's
        // data below the pointer.
        assert_eq!(dead(&[(0x7f00_0070_0000, 0x7f00_0070_0700, false)]), []);
        assert_eq!(dead(&[(0x7f00_2080_0000, 0x7f00_2100_0700, false)]), []);
        let two = [
            (0x7f00_2090_0000, 0x7f00_20a0_0000, false),
            (0x7f00_20f0_0000, 0x7f00_2100_0000, false),
        ];
        assert_eq!(dead(&two), [(0x7f00_2080_2000, 0x7f00_208f_ff80)]);
        let one_waits_elsewhere = [(0x7f00_0001_0000, 0x7f00_20a0_0000, false), two[1]];
        assert_eq!(dead(&one_waits_elsewhere), []);
        // In the heap.
        assert_eq!(dead(&[(0x55d0_c0a1_0000, 0x7f00_0000_0740, false)]), []);
    }
}
