//! Free memory of glibc's malloc, of musl's and of jemalloc, found from outside: for programs that report
//! what they use and what they have freed, nothing used is called free, and nearly everything freed is.

use std::io::IoSliceMut;
use std::ops::Range;
use std::process::Command;

use memleak::process::maps::{self, MapsEntry};
use memleak::reach::Memory;
use memleak::reach::free::{self, Allocator, Unused};
use memleak::reach::heap::{Block, Heap};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use unwind_tables::addr::Avma;

use memleak_test::program::{
    LIBRARIES, Program, compile_as, compile_with, directory, of_next_release, stock,
};

/// Memory of a program.
struct Target {
    pid: Pid,
}

impl Memory for Target {
    fn visit(&self, ranges: &[Range<Avma>], see: &mut dyn FnMut(Avma, &[u64])) {
        for range in ranges {
            let bytes = range.end.offset_from(range.start);
            let mut words = vec![0; usize::try_from(bytes / 8).expect("64 bits")];
            if self.read(range.start, &mut words) {
                see(range.start, &words);
            }
        }
    }

    fn read(&self, at: Avma, words: &mut [u64]) -> bool {
        let mut bytes = vec![0; words.len() * 8];
        let remote = RemoteIoVec {
            base: usize::try_from(at.get()).expect("64 bits"),
            len: bytes.len(),
        };
        let whole = bytes.len();
        if process_vm_readv(self.pid, &mut [IoSliceMut::new(&mut bytes)], &[remote]) != Ok(whole) {
            return false;
        }
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().expect("eight"));
        }
        true
    }
}

/// A program's own account of its memory.
struct Told {
    /// Ascending; includes `taken`, memory that the program got without its allocator.
    used: Vec<Range<u64>>,
    taken: Vec<Range<u64>>,
    freed: Vec<Range<u64>>,
    maps: Vec<MapsEntry>,
}

/// Minimum size of an aligned block that can have its own mapping.
const ALIGNED_MAPPING: u64 = 128 << 10;

const PAGE: u64 = 4096;
/// Least size of blocks that jemalloc has in pages of their own.
const LARGE: u64 = 4 * PAGE;

fn listen(program: &Program) -> Told {
    let mut told = Told {
        used: Vec::new(),
        taken: Vec::new(),
        freed: Vec::new(),
        maps: Vec::new(),
    };
    loop {
        let line = program.line();
        if line == "end" {
            break;
        }
        let words: Vec<_> = line.split(' ').collect();
        let number = |index: usize| u64::from_str_radix(words[index], 16).expect("a number");
        let range = number(1)..number(1) + number(2);
        match words[0] {
            "used" => told.used.push(range),
            "taken" => {
                told.taken.push(range.clone());
                told.used.push(range);
            }
            "freed" => told.freed.push(range),
            other => panic!("{other}"),
        }
    }
    let text = std::fs::read(format!("/proc/{}/maps", program.pid())).expect("it runs");
    told.used.sort_by_key(|range| range.start);
    told.maps = maps::parse(&text).map(|entry| entry.expect("a line")).collect();
    told
}

/// Joins ranges that touch, and sorts them.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut found: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match found.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => found.push(range),
        }
    }
    found
}

/// Returns the number of bytes that are in both `ranges` and `others`; both ascend.
fn overlap(ranges: &[Range<u64>], others: &[Range<u64>]) -> u64 {
    let mut first = 0;
    let mut bytes = 0;
    for range in ranges {
        first += others[first..].partition_point(|other| other.end <= range.start);
        let others = others[first..].iter().take_while(|other| other.start < range.end);
        let common = others.map(|other| other.end.min(range.end) - other.start.max(range.start));
        bytes += common.sum::<u64>();
    }
    bytes
}

/// Removes `others` from `ranges`; both ascend.
fn without(ranges: &[Range<u64>], others: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut left = Vec::new();
    let mut first = 0;
    for range in ranges {
        let mut start = range.start;
        first += others[first..].partition_point(|other| other.end <= range.start);
        for other in others[first..].iter().take_while(|other| other.start < range.end) {
            if start < other.start {
                left.push(start..other.start);
            }
            start = start.max(other.end);
        }
        if start < range.end {
            left.push(start..range.end);
        }
    }
    left
}

/// Returns a heap that lists every `step`th used block, as if the others were from before the trace, each
/// smaller than its usable size.
fn listed(told: &Told, step: usize) -> Heap {
    let blocks = told.used.iter().step_by(step).map(|range| Block {
        address: Avma::new(range.start),
        size: (range.end - range.start).saturating_sub(9),
        allocated_at: 0,
        stack: 0,
    });
    Heap::new(blocks.collect())
}

/// Checks that nothing used is called free, that nearly everything freed and still mapped is, and that usable
/// ends are the program's own.
#[track_caller]
fn check(program: &Program, told: &Told, step: usize, allocator: Allocator) -> Unused {
    let memory = Target {
        pid: Pid::from_raw(program.pid().try_into().expect("a pid")),
    };
    let heap = listed(told, step);
    let unused = free::find(&memory, &told.maps, &heap);
    let ranges: Vec<_> = unused
        .ranges
        .iter()
        .map(|range| range.start.get()..range.end.get())
        .collect();
    assert!(ranges.is_sorted_by(|last, next| last.end < next.start));
    let used = joined(told.used.clone());
    let mapped = joined(
        told.maps
            .iter()
            .filter(|entry| entry.readable)
            .map(|entry| entry.range.start.get()..entry.range.end.get())
            .collect(),
    );
    let freed = without(&joined(told.freed.clone()), &used);
    let freed_mapped = overlap(&freed, &mapped);
    let found = overlap(&freed, &ranges);
    let wrong: Vec<_> = told
        .used
        .iter()
        .filter(|range| overlap(&[(*range).clone()], &ranges) > 0)
        .collect();
    assert!(
        wrong.is_empty(),
        "{} used blocks: {:x?}",
        wrong.len(),
        wrong.first()
    );
    assert!(freed_mapped > 1 << 20);
    assert!(
        found * 100 >= freed_mapped * 99,
        "{found} of {freed_mapped}: {:?}",
        unused.facts
    );
    for &(number, end) in &unused.usable {
        let start = heap.blocks()[number as usize].address.get();
        let own = told
            .used
            .binary_search_by_key(&start, |range| range.start)
            .expect("it was listed");
        let own = told.used[own].end;
        // Since 5.3.1, jemalloc has sizes between those of its classes: the rest of the page is the block's,
        // too.
        let is_large = allocator == Allocator::Jemalloc && own - start >= LARGE;
        let page = if is_large { own.next_multiple_of(PAGE) } else { own };
        assert!([own, page].contains(&end.get()), "{start:x}: {own:x}, {end:x?}");
    }
    assert_eq!(unused.facts.allocator, Some(allocator));
    check_in_use(&memory, told, &freed, allocator);
    unused
}

/// Checks that each block that the program uses is listed as in use, with its size, except those that glibc's
/// structures do not lead to; and that nearly no freed block is.
#[track_caller]
fn check_in_use(memory: &Target, told: &Told, freed: &[Range<u64>], allocator: Allocator) {
    let listing = free::blocks_in_use(memory, &told.maps).expect("one is known");
    let (allocators, blocks) = (listing.allocators, listing.blocks);
    assert!(allocators.contains(&allocator), "{allocators:?}");
    let mut listed: Vec<_> = blocks
        .iter()
        .map(|block| block.address.get()..block.address.get() + block.size)
        .collect();
    listed.sort_by_key(|range| range.start);
    let is_missing = |range: &&Range<u64>| {
        let place = listed.binary_search_by_key(&range.start, |listed| listed.start);
        place.ok().and_then(|place| listed.get(place)) != Some(range)
    };
    // Blocks behind memory that the program itself takes by sbrk, up to a free chunk in glibc's lists, may be
    // missing, and an aligned one in its own mapping.
    let is_behind_taken = |range: &Range<u64>| told.taken.iter().any(|taken| taken.end <= range.start);
    let is_aligned_mapping = |range: &Range<u64>| range.end - range.start >= ALIGNED_MAPPING;
    let missing = told.used.iter().filter(is_missing);
    let missing: Vec<_> = missing.filter(|range| !told.taken.contains(range)).collect();
    let may_be = |range: &&Range<u64>| match allocator {
        Allocator::Glibc => is_behind_taken(range) || is_aligned_mapping(range),
        Allocator::Jemalloc | Allocator::Mimalloc | Allocator::Musl | Allocator::Tcmalloc => false,
    };
    let known = missing.iter().filter(|range| may_be(range)).count();
    assert!(
        known == missing.len() && known * 50 <= told.used.len(),
        "{known} of {} of {}: {missing:x?}",
        missing.len(),
        told.used.len()
    );
    let is_free = |range: &&Range<u64>| overlap(&[(*range).clone()], freed) > 0;
    let free = listed.iter().filter(is_free).count();
    assert!(free * 100 <= told.used.len(), "{free} of {}", told.used.len());
}

/// Bins, caches of threads that run and that have ended, several arenas and heaps, memory that the program
/// takes itself: linked dynamically and statically, with every block listed, and with few.
#[test]
fn free_memory_is_told_from_used() {
    let directory = directory("free_memory-told");
    for (name, flags) in [
        ("dynamic", ["-pthread", "-O1"]),
        ("static", ["-pthread", "-static"]),
    ] {
        let path = compile_as(&directory.join(name), "allocators/free_memory.c", &flags);
        for arguments in [&[][..], &["wall"]] {
            check_program_of_glibc(&Program::start(&path, arguments));
        }
    }
}

/// Free memory is told from used with the C library of Debian's next release, too, 2.43 or newer.
#[test]
fn free_memory_of_the_next_c_library() {
    let path = directory("free_memory-next").join("dynamic");
    let path = compile_as(&path, "allocators/free_memory.c", &["-pthread", "-O1"]);
    for arguments in [&[][..], &["wall"]] {
        check_program_of_glibc(&Program::spawn(of_next_release(&path).args(arguments)));
    }
}

#[track_caller]
fn check_program_of_glibc(program: &Program) {
    let told = listen(program);
    for step in [1, 2, 97] {
        let unused = check(program, &told, step, Allocator::Glibc);
        assert!(unused.facts.arenas >= 3, "{:?}", unused.facts);
        assert!(unused.facts.cached > 100, "{:?}", unused.facts);
    }
}

/// Slots of all classes and of several threads, groups within others and separate ones, blocks that begin
/// behind the start of a slot: with musl, each block in use is listed, and with its size.
#[test]
fn free_memory_of_musl() {
    let directory = directory("free_memory-musl");
    for (name, flags) in [
        ("dynamic", &["-pthread", "-O1"][..]),
        ("static", &["-pthread", "-static"]),
        ("static-pie", &["-pthread", "-static-pie"]),
    ] {
        let path = directory.join(name);
        compile_with("musl-gcc", &path, "allocators/free_memory.c", flags);
        let program = Program::start(&path, &[]);
        let told = listen(&program);
        for step in [1, 2, 97] {
            let unused = check(&program, &told, step, Allocator::Musl);
            let facts = &unused.facts;
            assert!(facts.arenas == 1 && facts.ends.is_empty(), "{facts:?}");
            assert_eq!(facts.agreeing, told.used.len().div_ceil(step) as u64, "{facts:?}");
        }
    }
}

/// Slabs, large blocks and caches of jemalloc, in a library and in the program itself.
#[test]
fn free_memory_of_jemalloc_is_told_from_used() {
    let directory = directory("free_memory-jemalloc");
    let library = stock(&format!("{LIBRARIES}/libjemalloc.so.2"), "libjemalloc2");
    let plain = compile_as(
        &directory.join("plain"),
        "allocators/free_memory.c",
        &["-pthread", "-O1"],
    );
    let archive = stock(&format!("{LIBRARIES}/libjemalloc.a"), "libjemalloc-dev");
    let archive = archive.to_str().expect("a plain path");
    let flags = [
        "-pthread",
        "-O1",
        "-Wl,--whole-archive",
        archive,
        "-Wl,--no-whole-archive",
        "-lstdc++",
        "-lm",
    ];
    let linked = compile_as(&directory.join("linked"), "allocators/free_memory.c", &flags);
    for (path, library) in [(plain, Some(library)), (linked, None)] {
        let mut command = Command::new(path);
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
        }
        let program = Program::spawn(&mut command);
        let told = listen(&program);
        for step in [1, 2, 97] {
            let unused = check(&program, &told, step, Allocator::Jemalloc);
            assert!(unused.facts.arenas >= 3, "{:?}", unused.facts);
            assert!(unused.facts.cached > 100, "{:?}", unused.facts);
            assert_eq!(unused.facts.unknown_caches, 0, "{:?}", unused.facts);
        }
    }
}
