//! Divides a process's resident memory into parts that add up to the whole: traced memory, the rest of the
//! allocator's, and everything else. Pure: mappings and numbers in, parts out.
//!
//! The allocator's mappings minus the outstanding blocks are either blocks from before the attach, or free
//! memory and the allocator's own data. Only the allocator could distinguish the two: the resident size at
//! the attach is the maximum for the former.

use std::ops::Range;

use unwind_tables::addr::{Avma, contains};

use crate::maps::MapsName;
use crate::smaps::Resident;
use leak_report::model::{Elsewhere, Parts};

/// Size and alignment of glibc's arenas other than the first.
const ARENA_BYTES: u64 = 64 << 20;

/// Resident bytes by the purpose of the mappings; without tracked pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub allocator: u64,
    thread_stacks: u64,
    files: u64,
    shared: u64,
    other: u64,
    /// Outstanding bytes in the mappings of each tracked kind, at most the resident bytes of each mapping.
    covered: u64,
    /// All outstanding bytes in them.
    live: u64,
}

/// Kind of memory that the trace accounts for. It decides which mappings have outstanding bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tracks {
    /// Blocks of an allocator.
    Blocks,
    /// Anonymous mappings.
    Mappings,
    /// Pages, of all mappings.
    Pages,
}

/// Outstanding bytes as accounted by the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Live {
    /// Per mapping, as given to [`Sums::of`].
    ByMapping,
    /// Bytes in total; their distribution over the mappings is not known.
    Total(u64),
}

impl Sums {
    /// Sums up `mappings`. `stack_pointers` are the threads'; `live_in` returns the outstanding bytes in a
    /// range.
    pub fn of(
        mappings: &[Resident],
        stack_pointers: &[Avma],
        tracks: Tracks,
        live_in: impl Fn(&Range<Avma>) -> u64,
    ) -> Self {
        let mut sums = Self::default();
        for mapping in mappings {
            let live = live_in(&mapping.entry.range);
            let kind = kind(mapping, stack_pointers, tracks == Tracks::Blocks && live > 0);
            let (sum, is_tracked) = match kind {
                Kind::Allocator => (&mut sums.allocator, tracks == Tracks::Blocks),
                Kind::ThreadStack => (&mut sums.thread_stacks, false),
                Kind::File => (&mut sums.files, false),
                Kind::Shared => (&mut sums.shared, false),
                Kind::Other => (&mut sums.other, tracks == Tracks::Mappings),
            };
            if tracks == Tracks::Pages {
                let covered = live.min(mapping.bytes);
                *sum = sum.saturating_add(mapping.bytes - covered);
                sums.live = sums.live.saturating_add(live);
                sums.covered = sums.covered.saturating_add(covered);
                continue;
            }
            *sum = sum.saturating_add(mapping.bytes);
            // Reserved address space (no access) is not expected to be resident.
            if is_tracked && (mapping.entry.readable || mapping.entry.writable) {
                sums.live = sums.live.saturating_add(live);
                sums.covered = sums.covered.saturating_add(live.min(mapping.bytes));
            }
        }
        sums
    }

    /// Computes the parts, given those at the attach; `None` if all memory in the allocator's mappings may be
    /// from before it.
    pub fn parts(self, tracks: Tracks, live: Live, at_attach: Option<&Self>) -> Parts {
        let (live, resident) = match (live, tracks) {
            (Live::ByMapping, _) => (self.live, self.covered),
            (Live::Total(live), Tracks::Blocks) => (live, live.min(self.allocator)),
            (Live::Total(live), Tracks::Mappings) => (live, live.min(self.other)),
            (Live::Total(live), Tracks::Pages) => (live, self.covered),
        };
        let (in_allocator, in_other) = match tracks {
            Tracks::Blocks => (resident, 0),
            Tracks::Mappings => (0, resident),
            // Pages are in no sum.
            Tracks::Pages => (0, 0),
        };
        let pages = if tracks == Tracks::Pages { resident } else { 0 };
        let rest = self.allocator - in_allocator;
        let before = at_attach.map_or(rest, |sums| sums.allocator.min(rest));
        let all = [
            self.allocator,
            self.thread_stacks,
            self.files,
            self.shared,
            self.other,
            pages,
        ];
        Parts {
            rss: all.into_iter().fold(0, u64::saturating_add),
            tracked: resident,
            before_attach_at_most: before,
            slack_at_least: rest - before,
            thread_stacks: self.thread_stacks,
            files: self.files,
            shared: self.shared,
            unexplained: self.other - in_other,
            not_resident: live - resident,
            growth_elsewhere: at_attach
                .filter(|_| tracks == Tracks::Blocks)
                .map(|sums| self.growth_elsewhere(sums)),
            ..Parts::default()
        }
    }

    fn growth_elsewhere(&self, at_attach: &Self) -> Elsewhere {
        Elsewhere {
            thread_stacks: self.thread_stacks.saturating_sub(at_attach.thread_stacks),
            files: self.files.saturating_sub(at_attach.files),
            shared: self.shared.saturating_sub(at_attach.shared),
            unexplained: self.other.saturating_sub(at_attach.other),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Allocator,
    ThreadStack,
    File,
    Shared,
    Other,
}

fn kind(mapping: &Resident, stack_pointers: &[Avma], has_blocks: bool) -> Kind {
    let range = &mapping.entry.range;
    let is_stack = || stack_pointers.iter().any(|&pointer| contains(range, pointer));
    match &mapping.entry.name {
        MapsName::File { path, .. } if mapping.shared && path.to_str().is_some_and(is_memory) => Kind::Shared,
        MapsName::File { .. } => Kind::File,
        MapsName::Special(name) if name == "[heap]" => Kind::Allocator,
        _ if mapping.grows_down => Kind::ThreadStack,
        MapsName::Special(name) if !name.starts_with("[anon") => Kind::Other,
        _ if mapping.shared => Kind::Shared,
        MapsName::Special(name) if name.contains("malloc") => Kind::Allocator,
        _ if has_blocks || is_arena(mapping) => Kind::Allocator,
        _ if is_stack() => Kind::ThreadStack,
        MapsName::Anonymous | MapsName::Special(_) => Kind::Other,
    }
}

/// True for paths that the kernel gives to shared memory that is not on a disk.
fn is_memory(path: &str) -> bool {
    path == "/dev/zero"
        || ["/dev/shm/", "/memfd:", "/SYSV"]
            .iter()
            .any(|start| path.starts_with(start))
}

/// True if the mapping looks like one from glibc's `new_heap`. The used part of an arena comes first.
fn is_arena(mapping: &Resident) -> bool {
    let range = &mapping.entry.range;
    let is_plain = mapping.entry.readable && mapping.entry.writable;
    let fits = range.end.offset_from(range.start) <= ARENA_BYTES;
    is_plain && mapping.not_reserved && fits && range.start.get().is_multiple_of(ARENA_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
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
VmFlags: rd wr mr mw me
7f0020000000-7f0020800000 rw-p 00000000 00:00 0
Rss: 24 kB
VmFlags: rd wr mr mw me
7f0030000000-7f0030001000 rw-s 00000000 00:01 9   /dev/zero (deleted)
Rss: 4 kB
VmFlags: rd wr sh mr mw me
7f0040000000-7f0040100000 rw-p 00000000 00:00 0
Rss: 512 kB
VmFlags: rd wr mr mw me
7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0   [stack]
Rss: 12 kB
VmFlags: rd wr mr mw me gd ac
7ffd00100000-7ffd00101000 r-xp 00000000 00:00 0   [vdso]
Rss: 4 kB
VmFlags: rd ex mr mw me
";

    const KB: u64 = 1024;

    fn sums(tracks: Tracks, live: u64) -> Sums {
        let stack = Avma::new(0x7f00_207f_f000);
        let inside = Avma::new(match tracks {
            Tracks::Blocks => 0x7f00_1000_0010,
            Tracks::Mappings | Tracks::Pages => 0x7f00_4000_0000,
        });
        let live_in = |range: &Range<Avma>| if contains(range, inside) { live } else { 0 };
        Sums::of(&smaps::parse(TEXT.as_bytes()), &[stack], tracks, live_in)
    }

    /// Sums at the attach: these bytes in the allocator's mappings, and nothing else.
    fn before(allocator: u64) -> Sums {
        Sums {
            allocator,
            ..Sums::default()
        }
    }

    /// Each mapping is in exactly one part, and the parts add up.
    #[test]
    fn parts_add_up() {
        let parts =
            sums(Tracks::Blocks, 900 * KB).parts(Tracks::Blocks, Live::ByMapping, Some(&before(150 * KB)));
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
            ..Parts::default()
        };
        assert_eq!(parts, expected);
    }

    /// Outstanding memory that was never touched is in no sum, and no part becomes negative.
    #[test]
    fn untouched_outstanding_memory_is_in_no_sum() {
        let sums = sums(Tracks::Blocks, u64::MAX);
        let parts = sums.parts(Tracks::Blocks, Live::ByMapping, None);
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
        let parts =
            sums(Tracks::Mappings, 500 * KB).parts(Tracks::Mappings, Live::ByMapping, Some(&before(0)));
        assert_eq!((parts.tracked, parts.unexplained), (500 * KB, 1016 * KB));
        assert_eq!(parts.slack_at_least, 140 * KB);
    }

    /// With `--faults`, pages are taken out of whatever mappings they are in.
    #[test]
    fn traced_pages() {
        let parts =
            sums(Tracks::Pages, 500 * KB).parts(Tracks::Pages, Live::ByMapping, Some(&before(50 * KB)));
        assert_eq!(parts.rss, 1700 * KB);
        assert_eq!((parts.tracked, parts.unexplained), (500 * KB, 1016 * KB));
        assert_eq!(
            (parts.before_attach_at_most, parts.slack_at_least),
            (50 * KB, 90 * KB)
        );
        // Some are swapped.
        let parts = sums(Tracks::Pages, 600 * KB).parts(Tracks::Pages, Live::ByMapping, Some(&before(0)));
        assert_eq!((parts.tracked, parts.not_resident), (512 * KB, 88 * KB));
    }
}
