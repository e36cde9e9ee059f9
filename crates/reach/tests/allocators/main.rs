//! Structures of tcmalloc and mimalloc in real programs: the blocks that are listed are those that the
//! program has, sums are those that the allocator tells, and free memory is what the allocator gives back.

mod damage;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use memleak_process::maps::MapsEntry;
use memleak_process::maps_of;
use memleak_process::touched::ResidentPages;
use memleak_reach::free::{self, Allocator, End};
use memleak_reach::heap::{Block, Heap};
use memleak_reach::layout::{Layout, Usage};
use memleak_reach::pages::Pages;
use memleak_reach::reader::Reader;
use memleak_test::program::{
    LIBRARIES, Program, compile_as, directory, mimalloc as mimalloc_of_debian, stock,
};
use unwind_tables::addr::Avma;

/// Number of blocks of each thread.
const ALL: &str = "20000";

/// A program's own account of its memory.
#[derive(Default)]
struct Told {
    /// Usable sizes of blocks in use, by address.
    used: BTreeMap<u64, u64>,
    /// Memory of freed blocks that no block has now.
    freed: Vec<Range<u64>>,
    figures: BTreeMap<String, u64>,
}

impl Told {
    fn listen(program: &Program) -> Self {
        let mut told = Self::default();
        let mut freed = Vec::new();
        for line in program.lines_before("end") {
            let words: Vec<_> = line.split(' ').collect();
            let number = |index: usize| u64::from_str_radix(words[index], 16).expect("a number");
            match words[0] {
                "used" => drop(told.used.insert(number(1), number(2))),
                "freed" => freed.push(number(1)..number(1) + number(2)),
                "figure" => drop(told.figures.insert(words[1].to_owned(), number(2))),
                other => panic!("{other}"),
            }
        }
        freed.retain(|freed| {
            let before = told.used.range(..freed.end).next_back();
            before.is_none_or(|(start, size)| start + size <= freed.start)
        });
        told.freed = freed;
        told
    }
}

impl Told {
    /// True if usable sizes are those that were requested.
    fn has_marks(&self) -> bool {
        self.used.values().any(|size| size % 8 != 0)
    }
}

/// A program whose memory is read.
struct Subject {
    program: Program,
    told: Told,
    reader: Reader,
    maps: Vec<MapsEntry>,
}

fn start(library: &Path, loader: Option<&Path>, blocks: &str) -> Subject {
    let name = library.file_name().expect("a file").to_string_lossy();
    let directory = directory(&format!("crossed-{name}-{blocks}"));
    let path = compile_as(
        &directory.join("crossed"),
        "allocators/crossed.c",
        &["-pthread", "-O1"],
    );
    let mut command = match loader {
        None => Command::new(&path),
        Some(loader) => {
            let mut command = Command::new(loader.join("lib64/ld-linux-x86-64.so.2"));
            command
                .arg("--library-path")
                .arg(loader.join("lib/x86_64-linux-gnu"));
            command.arg("--preload").arg(library).arg(&path);
            command
        }
    };
    if loader.is_none() {
        command.env("LD_PRELOAD", library);
    }
    let program = Program::spawn(command.args(blocks.split(' ')));
    let told = Told::listen(&program);
    let maps = maps_of(program.pid()).expect("it runs");
    let reader = read(&program, &maps);
    Subject {
        program,
        told,
        reader,
        maps,
    }
}

fn read(program: &Program, maps: &[MapsEntry]) -> Reader {
    let resident = ResidentPages::open(program.pid()).expect("it runs");
    Reader::new(program.pid(), Pages::read(&resident, maps).expect("it runs"))
}

impl Subject {
    fn blocks(&self, allocator: Allocator) -> BTreeMap<u64, u64> {
        let listing = free::blocks_in_use(&self.reader, &self.maps).expect("one is known");
        assert!(
            listing.allocators.contains(&allocator),
            "{:?}",
            listing.allocators
        );
        let blocks = listing.blocks.iter();
        blocks.map(|block| (block.address.get(), block.size)).collect()
    }

    /// Checks that the blocks that are listed are those that the program has.
    #[track_caller]
    fn check_blocks(&self, allocator: Allocator) {
        assert!(self.told.used.len() > 15_000 && self.told.freed.len() > 20_000);
        let listed = self.blocks(allocator);
        // What the program has aligned can begin inside of mimalloc's block, and secure variants have a mark
        // behind what was requested.
        let may_begin_inside = allocator == Allocator::Mimalloc;
        let has_marks = self.told.has_marks();
        let is_right = |(at, size): &(&u64, &u64)| {
            let found = listed.range(..=**at).next_back();
            found.is_some_and(|(start, bytes)| {
                let (end, usable) = (start + bytes, **at + **size);
                (end == usable || has_marks && end > usable) && (start == *at || may_begin_inside)
            })
        };
        let missing: Vec<_> = self.told.used.iter().filter(|told| !is_right(told)).collect();
        let first = missing
            .first()
            .map(|(at, _)| (at, listed.range(..=**at).next_back()));
        assert!(
            missing.is_empty(),
            "{} not as told, {first:x?} {:x?}",
            missing.len(),
            missing.first()
        );
        let inside = self
            .told
            .used
            .keys()
            .filter(|at| !listed.contains_key(at))
            .count();
        assert!(inside * 20 < self.told.used.len(), "{inside}");
        let is_listed = |freed: &&Range<u64>| {
            let before = listed.range(..freed.end).next_back();
            before.is_some_and(|(start, size)| start + size > freed.start)
        };
        let wrong: Vec<_> = self.told.freed.iter().filter(is_listed).collect();
        show(&format!("{allocator:?}: {} freed blocks are listed", wrong.len()));
        // The C library has a few blocks, too.
        assert!(wrong.len() <= 4, "{} are free: {:x?}", wrong.len(), wrong.first());
    }

    /// Checks that nothing used is called unused, and nearly all freed memory is, and that usable ends are
    /// the program's own, if the program's blocks are listed, or every 97th. At least `least` percent are
    /// found, and at most `malformed` records are not trusted.
    #[track_caller]
    fn check_unused(&self, allocator: Allocator, least: u64, malformed: u64) {
        for step in [1, 97] {
            let used = self.told.used.iter().step_by(step);
            let blocks = used.map(|(at, size)| Block {
                address: Avma::new(*at),
                size: size.saturating_sub(9),
                allocated_at: 0,
                stack: 0,
            });
            let heap = Heap::new(blocks.collect());
            let unused = free::find(&self.reader, &self.maps, &heap);
            assert_eq!(unused.facts.allocator, Some(allocator));
            assert_eq!(unused.facts.disagreeing, 0, "{:?}", unused.facts);
            assert_eq!(unused.facts.unknown_caches, 0, "{:?}", unused.facts);
            let refused = unused.facts.ends.get(&End::Malformed).copied().unwrap_or(0);
            assert!(refused <= malformed, "{:?}", unused.facts);
            let ranges = unused.ranges.iter();
            let ranges: Vec<_> = ranges.map(|range| range.start.get()..range.end.get()).collect();
            let overlap = |start: u64, end: u64| {
                let first = ranges.partition_point(|range| range.end <= start);
                let near = ranges[first..].iter().take_while(|range| range.start < end);
                near.map(|range| range.end.min(end) - range.start.max(start))
                    .sum::<u64>()
            };
            let wrong = self
                .told
                .used
                .iter()
                .find(|(at, size)| overlap(**at, **at + **size) > 0);
            assert_eq!(wrong, None);
            let freed: u64 = self.told.freed.iter().map(|freed| freed.end - freed.start).sum();
            let found: u64 = self
                .told
                .freed
                .iter()
                .map(|freed| overlap(freed.start, freed.end))
                .sum();
            assert!(
                found * 100 >= freed * least,
                "{found} of {freed}: {:?}",
                unused.facts
            );
            for (number, end) in unused.usable {
                let start = heap.blocks()[number as usize].address.get();
                let told = start + self.told.used[&start];
                assert!(told == end.get() || self.told.has_marks() && told < end.get());
            }
        }
    }

    fn layout(&self, allocator: Allocator) -> Layout {
        let layouts = free::layouts(&self.reader, &self.maps);
        let mut layouts = layouts.into_iter().filter(|layout| layout.allocator == allocator);
        let layout = layouts.next().expect("one is known");
        assert_eq!((layout.unknown, layout.refused), (0, 0));
        layout
    }

    fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.program.pid()));
        let status = status.expect("it runs");
        let line = status
            .lines()
            .find(|line| line.starts_with("RssAnon:"))
            .expect("Linux");
        let kilobytes = line.split_whitespace().nth(1).expect("a number");
        kilobytes.parse::<u64>().expect("a number") << 10
    }

    /// Bytes of pages that hold memory, of free pieces outside of slabs.
    fn trimmable(&self, layout: &Layout) -> u64 {
        let mut bytes = 0;
        let runs = self.reader.pages().runs();
        layout.pieces.visit(&mut |piece| {
            if piece.usage == Usage::Free && piece.slab.is_none() {
                let (start, end) = (Avma::new(piece.range.start), Avma::new(piece.range.end));
                let first = runs.partition_point(|run| run.end <= start);
                let touched = runs[first..].iter().take_while(|run| run.start < end);
                bytes += touched
                    .map(|run| run.end.min(end).offset_from(run.start.max(start)))
                    .sum::<u64>();
            }
        });
        bytes
    }

    /// Has the allocator give its free memory back, and checks that this is what is missing in free pieces
    /// outside of slabs then. Returns the bytes of these before, and what was given back.
    #[track_caller]
    fn give_back(&mut self, allocator: Allocator) -> (u64, u64) {
        let trimmable = self.trimmable(&self.layout(allocator));
        let before = self.resident();
        self.program.send_line("");
        self.program.expect("released");
        let given = before.saturating_sub(self.resident());
        self.maps = maps_of(self.program.pid()).expect("it runs");
        self.reader = read(&self.program, &self.maps);
        let left = self.trimmable(&self.layout(allocator));
        show(&format!(
            "{allocator:?}: {trimmable} trimmable, {given} given back, {left} left"
        ));
        check_near("given back", trimmable.saturating_sub(left), given, 2);
        (trimmable, given)
    }
}

/// Shows figures with `--nocapture`.
#[expect(clippy::print_stderr, reason = "for who measures")]
fn show(figures: &str) {
    eprintln!("{figures}");
}

#[track_caller]
fn check_near(what: &str, found: u64, told: u64, percent: u64) {
    let limit = told * percent / 100 + 4096;
    show(&format!("{what}: {found}, told {told}"));
    assert!(found.abs_diff(told) <= limit, "{what}: {found}, told {told}");
}

/// Sums of pieces, by what tcmalloc calls them.
fn tcmalloc_sums(layout: &Layout) -> BTreeMap<&'static str, u64> {
    let mut sums = BTreeMap::new();
    layout.pieces.visit(&mut |piece| {
        let bytes = piece.range.end - piece.range.start;
        let name = match (piece.usage, piece.slab) {
            (Usage::Block { .. }, _) => "used",
            (Usage::Cached, _) => "cached",
            (Usage::Free, None) => "pages",
            (Usage::Free, Some(_)) => "central",
            (Usage::Own, Some(_)) => "rest",
            _ => return,
        };
        *sums.entry(name).or_default() += bytes;
    });
    sums
}

#[track_caller]
fn check_tcmalloc(library: &Path, loader: Option<&Path>) {
    let mut subject = start(library, loader, ALL);
    subject.check_blocks(Allocator::Tcmalloc);
    subject.check_unused(Allocator::Tcmalloc, 99, 0);
    let sums = tcmalloc_sums(&subject.layout(Allocator::Tcmalloc));
    let told = |name: &str| subject.told.figures[name];
    let all: u64 = sums.values().sum();
    check_near("used", sums["used"], told("generic.current_allocated_bytes"), 2);
    check_near("heap", all, told("generic.heap_size"), 2);
    let pages = told("tcmalloc.pageheap_free_bytes") + told("tcmalloc.pageheap_unmapped_bytes");
    check_near("pages", sums["pages"], pages, 2);
    let cached = told("tcmalloc.transfer_cache_free_bytes") + told("tcmalloc.thread_cache_free_bytes");
    check_near("cached", sums["cached"], cached, 2);
    let central = sums["central"] + sums["rest"];
    check_near("central", central, told("tcmalloc.central_cache_free_bytes"), 2);
    let (trimmable, given) = subject.give_back(Allocator::Tcmalloc);
    check_near("trimmable", trimmable, given, 15);
}

/// All blocks of Debian's tcmalloc are listed, and its memory is divided as it says itself.
#[test]
fn tcmalloc() {
    for library in ["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"] {
        let library = stock(&format!("{LIBRARIES}/{library}"), "libgoogle-perftools4");
        check_tcmalloc(&library, None);
    }
}

/// The blocks of the debug variant have headers, and are kept for a while when they are freed: none is
/// listed.
#[test]
fn tcmalloc_that_debugs() {
    let library = format!("{LIBRARIES}/libtcmalloc_minimal_debug.so.4");
    let library = stock(&library, "libtcmalloc-minimal4");
    let program = Program::spawn(
        Command::new("/usr/bin/perl")
            .args(["-e", SCRIPT])
            .env("LD_PRELOAD", library),
    );
    program.expect("ready");
    let maps = maps_of(program.pid()).expect("it runs");
    let reader = read(&program, &maps);
    let listing = free::blocks_in_use(&reader, &maps).unwrap_or_default();
    assert!(!listing.allocators.contains(&Allocator::Tcmalloc));
    assert_eq!(
        free::find(&reader, &maps, &Heap::default()).facts.allocator,
        listing.allocators.first().copied()
    );
}

/// Script that allocates some blocks.
const SCRIPT: &str = r#"$| = 1; push @a, "x" x $_ for 1 .. 2000; print "ready\n"; <STDIN>"#;

/// Libraries of other versions, with their own C library: `MEMLEAK_TEST_TCMALLOC` has their paths, and
/// `MEMLEAK_TEST_LIBC` the root of a C library that is new enough for them.
#[test]
fn tcmalloc_of_other_versions() {
    let Ok(libraries) = std::env::var("MEMLEAK_TEST_TCMALLOC") else {
        return;
    };
    let loader = std::env::var_os("MEMLEAK_TEST_LIBC").map(PathBuf::from);
    for library in libraries.split(':') {
        check_tcmalloc(Path::new(library), loader.as_deref());
    }
}

/// Returns true for mimalloc 3, of which only the pages that it has in use are known, and no free memory
/// between them.
fn is_third(library: &Path) -> bool {
    let name = library.to_string_lossy();
    name.contains(".so.3") || name.contains("-v3")
}

#[track_caller]
fn check_mimalloc(library: &Path, blocks: &str) {
    let mut subject = start(library, None, blocks);
    subject.check_blocks(Allocator::Mimalloc);
    if is_third(library) {
        // 3.0.1 has a few records that contradict themselves.
        return subject.check_unused(Allocator::Mimalloc, 30, 8);
    }
    subject.check_unused(Allocator::Mimalloc, 99, 0);
    let mut used = 0;
    subject.layout(Allocator::Mimalloc).pieces.visit(&mut |piece| {
        if matches!(piece.usage, Usage::Block { .. }) {
            used += piece.range.end - piece.range.start;
        }
    });
    let (trimmable, given) = subject.give_back(Allocator::Mimalloc);
    assert!(given <= trimmable + (1 << 20));
    // Secure variants may tell requested sizes, and keep what they have.
    if !subject.told.has_marks() && given > 0 {
        check_near("used", used, subject.told.used.values().sum(), 2);
        // 2.0 only marks some pages by the call, and gives them back by a later one.
        assert!(given * 10 > trimmable * 6, "{given} of {trimmable}");
    }
}

/// All blocks of Debian's mimalloc are listed: 2.0.9, or 3.0.1, which loses aligned blocks that another
/// thread frees, as its lists lead into the middle of blocks then.
#[test]
fn mimalloc() {
    let (library, package) = mimalloc_of_debian();
    let library = stock(&format!("{LIBRARIES}/{library}"), package);
    let plain = format!("{ALL} plain");
    check_mimalloc(&library, if is_third(&library) { &plain } else { ALL });
}

/// Other versions: `MEMLEAK_TEST_MIMALLOC` has the paths of their libraries, and
/// `MEMLEAK_TEST_MIMALLOC_PLAIN` of those that lose aligned blocks.
#[test]
fn mimalloc_of_other_versions() {
    let plain = format!("{ALL} plain");
    for (variable, blocks) in [
        ("MEMLEAK_TEST_MIMALLOC", ALL),
        ("MEMLEAK_TEST_MIMALLOC_PLAIN", &plain),
    ] {
        let libraries = std::env::var(variable).unwrap_or_default();
        for library in libraries.split(':').filter(|library| !library.is_empty()) {
            check_mimalloc(Path::new(library), blocks);
        }
    }
}
