//! Finds the kind of each mapping: by the kernel's name, by what is in it, by its neighbours, and at last by
//! the runtime that the process has. The first evidence counts, in the order from certain to likely.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::contents::Contents;
use super::heaps::{self, Found, Wanted};
use super::images;
use super::kind::Kind;
use super::mounts::Mounts;
use super::portions::{Portion, divide};
use super::runtimes::{Runtimes, is_of_go};
use super::stacks::{ThreadStack, ThreadState, has_pointer};
use crate::maps::{MapsEntry, MapsName};
use crate::smaps::Resident;

/// Maximum size of the loader's data in bytes. 200 libraries need 300 KiB.
const MAX_LOADER_DATA: u64 = 1 << 20;
/// Addresses below which a JVM puts a heap whose references have 32 bits, in units of 8 bytes.
const COMPRESSED: u64 = 32 << 30;
/// Minimum size of address space that other runtimes reserve; a guard is smaller.
const RUNTIME_RESERVES: u64 = 64 << 10;
/// Minimum size of address space that a browser reserves for heaps.
const BROWSER_RESERVES: u64 = 1 << 30;

/// Number of pages of unknown memory in which structures of an allocator are looked for. One takes 5 µs.
const MOST_PROBES: usize = 1 << 12;
/// Minimum size of a mapping that is a database's buffers.
const MIN_BUFFERS: u64 = 1 << 20;

/// Facts about the process beside its mappings.
pub struct Facts<'a> {
    pub contents: &'a dyn Contents,
    /// Ranges of an allocator's memory, ascending.
    pub heaps: &'a [Range<Avma>],
    /// Stack pointers of threads, ascending, for stacks that no C library describes.
    pub stack_pointers: &'a [Avma],
    pub stacks: &'a [ThreadStack],
    pub mounts: &'a Mounts,
}

/// Divides all mappings of a process, which ascend, into portions of one kind.
pub fn portions(mappings: &[Resident], facts: &Facts<'_>) -> Vec<Portion> {
    let code = mappings.iter().map(|mapping| &mapping.entry);
    let code = code.filter(|entry| entry.executable && entry.inode != 0);
    let stacks = facts.stacks.iter().map(|stack| (stack.mapping, stack));
    let classifier = Classifier {
        mappings,
        facts,
        runtimes: Runtimes::of(mappings),
        with_code: code.map(|entry| (entry.device, entry.inode)).collect(),
        stacks: stacks.collect(),
        reserving: reserving(mappings),
    };
    let mut probes = MOST_PROBES;
    let mut portions = Vec::with_capacity(mappings.len());
    let mut at = 0;
    while let Some(rest) = mappings.get(at..).filter(|rest| !rest.is_empty()) {
        let touch = |(pair, next): &(&[Resident], usize)| match pair {
            [a, b] => {
                let is_known = |one: &Resident| classifier.heaps_in(&one.entry.range).next().is_some();
                let may_belong = is_plain(a) && is_plain(b) && !classifier.stacks.contains_key(next);
                may_belong && is_known(a) == is_known(b) && a.entry.range.end == b.entry.range.start
            }
            _ => false,
        };
        // What belongs together can be several mappings, of which some have huge pages.
        let length = 1 + rest.windows(2).zip(at + 1..).take_while(touch).count();
        let found = classifier.structures(at..at + length, &mut probes);
        for index in at..at + length {
            portions.extend(classifier.divide(index, &found));
        }
        at += length;
    }
    portions
}

/// Returns whether a mapping can have structures of an allocator in it.
fn is_plain(mapping: &Resident) -> bool {
    let entry = &mapping.entry;
    let is_data = entry.readable && entry.writable && !entry.executable && !mapping.entry.shared;
    is_data && entry.name == MapsName::Anonymous && !mapping.grows_down
}

struct Classifier<'a> {
    mappings: &'a [Resident],
    facts: &'a Facts<'a>,
    runtimes: Runtimes,
    /// Files that have executable mappings.
    with_code: HashSet<((u32, u32), u64)>,
    stacks: HashMap<usize, &'a ThreadStack>,
    /// For each mapping, bytes of address space without access that are reserved around it.
    reserving: Vec<u64>,
}

impl Classifier<'_> {
    /// Finds structures of allocators in mappings that touch each other.
    fn structures(&self, run: Range<usize>, probes: &mut usize) -> Vec<Found> {
        let mappings = self.mappings.get(run.clone()).unwrap_or_default();
        let (Some(first), Some(last)) = (mappings.first(), mappings.last()) else {
            return Vec::new();
        };
        let has_pages = mappings.iter().any(|mapping| mapping.amounts.resident > 0);
        if !is_plain(first) || !has_pages || self.heaps_in(&first.entry.range).next().is_some() {
            return Vec::new();
        }
        let stack = self.stacks.get(&run.start);
        let start = stack.map_or(first.entry.range.start, |stack| stack.range.end);
        let start = self
            .image_end(run.start)
            .map_or(start.get(), |end| end.max(start.get()));
        let range = start..last.entry.range.end.get();
        let wanted = Wanted {
            python: self.runtimes.python,
            musl: self.runtimes.musl,
            everywhere: self.by_place(run.start, first).is_none(),
        };
        match range.is_empty() {
            true => Vec::new(),
            false => heaps::find(self.facts.contents, &range, wanted, probes),
        }
    }

    /// Divides a mapping into what was found in it, a stack, and the rest.
    fn divide(&self, index: usize, found: &[Found]) -> Vec<Portion> {
        let Some(mapping) = self.mappings.get(index) else {
            return Vec::new();
        };
        let rest = self.kind(index, mapping);
        let mut parts: Vec<_> = self.heaps_in(&mapping.entry.range).collect();
        if !parts.is_empty() {
            return divide(self.facts.contents, (index, mapping), &parts, rest);
        }
        if let Some(end) = self.image_end(index).filter(|_| is_plain(mapping)) {
            parts.push((mapping.entry.range.start.get()..end, Kind::ProgramData));
        }
        if let Some(stack) = self.stacks.get(&index) {
            let range = stack.range.start.get()..stack.range.end.get();
            parts.push((range, of_stack(stack.state)));
        }
        parts.extend(found.iter().map(|found| (found.range.clone(), found.kind)));
        divide(self.facts.contents, (index, mapping), &parts, rest)
    }

    /// Kind of a mapping, apart from what is known by contents.
    fn kind(&self, index: usize, mapping: &Resident) -> Kind {
        let entry = &mapping.entry;
        match &entry.name {
            _ if mapping.amounts.hugetlb > 0 => Kind::Hugetlb,
            MapsName::File { path, .. } => self.of_file(mapping, path.to_str().unwrap_or_default()),
            MapsName::Special(name) => of_name(mapping, name),
            MapsName::Anonymous if mapping.grows_down => Kind::MainStack,
            MapsName::Anonymous => self.of_anonymous(index, mapping),
        }
    }

    /// Parts of a range that the caller knows as an allocator's.
    fn heaps_in(&self, range: &Range<Avma>) -> impl Iterator<Item = (Range<u64>, Kind)> + use<'_> {
        let (start, end) = (range.start, range.end);
        let first = self.facts.heaps.partition_point(|heap| heap.end <= start);
        let heaps = self.facts.heaps.get(first..).unwrap_or_default().iter();
        let within = heaps.take_while(move |heap| heap.start < end);
        within.map(move |heap| {
            let range = heap.start.max(start).get()..heap.end.min(end).get();
            (range, Kind::KnownHeap)
        })
    }

    fn of_file(&self, mapping: &Resident, path: &str) -> Kind {
        let entry = &mapping.entry;
        let begins = |start: &str| path.starts_with(start);
        let is_in_memory = || self.facts.mounts.has_in_memory(entry.device);
        match path {
            "/anon_hugepage" => Kind::Hugetlb,
            "/[aio]" => Kind::KernelPages,
            "/dev/zero" if mapping.entry.shared => Kind::SharedAnonymous,
            "/dev/zero" => Kind::Unexplained,
            _ if begins("/memfd:java_heap") => Kind::JvmHeap,
            _ if begins("/memfd:") && entry.executable => Kind::GeneratedCode,
            _ if begins("/memfd:") => Kind::MemoryFile,
            _ if begins("/SYSV") => Kind::SystemV,
            _ if begins("/dev/shm/") => Kind::SharedFile,
            _ if begins("/dev/") => Kind::Device,
            _ if mapping.entry.shared && is_in_memory() => Kind::SharedFile,
            _ if entry.executable => Kind::ProgramCode,
            _ if !self.with_code.contains(&(entry.device, entry.inode)) => Kind::MappedFile,
            _ if entry.writable || mapping.amounts.anonymous > 0 => Kind::ProgramData,
            _ => Kind::ProgramCode,
        }
    }

    fn of_anonymous(&self, index: usize, mapping: &Resident) -> Kind {
        let entry = &mapping.entry;
        let is_empty = mapping.amounts.resident == 0 && mapping.amounts.swapped == 0;
        match mapping.entry.shared {
            true => Kind::SharedAnonymous,
            false if entry.executable => Kind::GeneratedCode,
            false if is_empty && !entry.readable && !entry.writable => Kind::Reserved,
            false => self.by_place(index, mapping).unwrap_or(Kind::Unexplained),
        }
    }

    /// Kind by neighbours, or by the runtime that the process has.
    fn by_place(&self, index: usize, mapping: &Resident) -> Option<Kind> {
        let by_neighbours = self.by_neighbours(index, mapping);
        by_neighbours.or_else(|| self.by_runtime(index, mapping))
    }

    /// Returns whether a mapping has variables of a program or library in it.
    fn is_data(&self, mapping: &Resident) -> bool {
        let entry = &mapping.entry;
        let has_code = self.with_code.contains(&(entry.device, entry.inode));
        has_code && !mapping.entry.shared && (entry.writable || mapping.amounts.anonymous > 0)
    }

    /// Address behind the variables that go on from a file into mapping `index`, if the mapping before it has
    /// the file's.
    fn image_end(&self, index: usize) -> Option<u64> {
        let before = index.checked_sub(1)?;
        let (file, here) = (self.mappings.get(before)?, self.mappings.get(index)?);
        let touches = file.entry.range.end == here.entry.range.start;
        (touches && self.is_data(file)).then(|| images::end(self.facts.contents, self.mappings, before))?
    }

    /// Kind by what is right before and behind the mapping.
    fn by_neighbours(&self, index: usize, mapping: &Resident) -> Option<Kind> {
        let range = &mapping.entry.range;
        let before = index.checked_sub(1).and_then(|before| self.mappings.get(before));
        let before = before.filter(|before| before.entry.range.end == range.start);
        let behind = self.mappings.get(index + 1);
        let behind = behind.filter(|behind| behind.entry.range.start == range.end);
        if before.is_some_and(|before| self.is_data(before)) && self.image_end(index).is_none() {
            return Some(Kind::ProgramData);
        }
        let is_loaded = |other: Option<&Resident>| {
            other.is_some_and(|other| match &other.entry.name {
                MapsName::File { .. } => self.with_code.contains(&(other.entry.device, other.entry.inode)),
                MapsName::Special(name) => name.starts_with("[vvar"),
                MapsName::Anonymous => false,
            })
        };
        let is_small = range.end.offset_from(range.start) <= MAX_LOADER_DATA;
        (is_small && (is_loaded(before) || is_loaded(behind))).then_some(Kind::LoaderData)
    }

    /// Kind by the runtime that the process has, for memory without other evidence.
    fn by_runtime(&self, index: usize, mapping: &Resident) -> Option<Kind> {
        let range = &mapping.entry.range;
        let (start, length) = (range.start.get(), range.end.offset_from(range.start));
        let reserving = self.reserving.get(index).copied().unwrap_or(0);
        let found = &self.runtimes;
        if has_pointer(mapping, self.facts.stack_pointers) && !is_of_go(start) {
            return Some(Kind::RunningStack);
        }
        [
            (found.go && is_of_go(start), Kind::GoHeap),
            (found.jvm && start < COMPRESSED, Kind::JvmHeap),
            (found.jvm && reserving >= RUNTIME_RESERVES, Kind::JvmOther),
            (found.dotnet && reserving >= RUNTIME_RESERVES, Kind::DotNet),
            (found.browser && reserving >= BROWSER_RESERVES, Kind::BrowserHeaps),
            (found.go, Kind::GoRuntime),
            (found.database && length >= MIN_BUFFERS, Kind::DatabaseBuffers),
            (found.allocator, Kind::LibraryHeap),
        ]
        .into_iter()
        .find_map(|(is_so, kind)| is_so.then_some(kind))
    }
}

fn of_stack(state: ThreadState) -> Kind {
    match state {
        ThreadState::Running => Kind::RunningStack,
        ThreadState::Unjoined => Kind::UnjoinedStack,
        ThreadState::Cached => Kind::CachedStack,
        ThreadState::Ended => Kind::EndedStack,
    }
}

/// Kind of a mapping that has a name, but no file.
fn of_name(mapping: &Resident, name: &str) -> Kind {
    /// Names that allocators give to their memory (`PR_SET_VMA_ANON_NAME`).
    const ALLOCATORS: [&str; 5] = ["malloc", "scudo", "GWP-ASan", "partition_alloc", "rpmalloc"];
    /// Names that runtimes give.
    const RUNTIMES: [(&str, Kind); 6] = [
        ("Go: ", Kind::GoHeap),
        ("go: ", Kind::GoHeap),
        ("v8", Kind::V8Heap),
        ("cppgc", Kind::BrowserHeaps),
        ("blink", Kind::BrowserHeaps),
        ("cpython:pymalloc", Kind::PythonArenas),
    ];
    let label = name.strip_prefix("[anon:").map(str::trim_start);
    match (name, label) {
        ("[heap]", _) => Kind::BrkHeap,
        ("[stack]", _) => Kind::MainStack,
        (_, None) if name.starts_with("[anon_shmem") => Kind::SharedAnonymous,
        (_, None) if mapping.grows_down => Kind::MainStack,
        (_, None) => Kind::KernelPages,
        (_, Some(_)) if mapping.entry.executable => Kind::GeneratedCode,
        (_, Some(label)) => {
            let is_allocator = ALLOCATORS.iter().any(|name| label.contains(name));
            let runtime = RUNTIMES.iter().find(|(start, _)| label.starts_with(start));
            match runtime {
                Some((_, kind)) => *kind,
                None if is_allocator => Kind::NamedHeap,
                None if label.contains("stack") => Kind::RunningStack,
                None => Kind::Named,
            }
        }
    }
}

/// For each mapping, the bytes of address space that are reserved around it: without access, in anonymous
/// mappings that it is connected with.
fn reserving(mappings: &[Resident]) -> Vec<u64> {
    let is_private = |entry: &MapsEntry| entry.name == MapsName::Anonymous && !entry.shared;
    let mut reserving = vec![0; mappings.len()];
    let mut start = 0;
    while start < mappings.len() {
        let touch = |pair: &[Resident]| match pair {
            [a, b] => {
                is_private(&a.entry) && is_private(&b.entry) && a.entry.range.end == b.entry.range.start
            }
            _ => false,
        };
        let rest = mappings.get(start..).unwrap_or_default();
        let length = 1 + rest.windows(2).take_while(|pair| touch(pair)).count();
        let run = rest.iter().take(length);
        let reserved = run.filter(|mapping| {
            let entry = &mapping.entry;
            is_private(entry) && !entry.readable && !entry.writable
        });
        let bytes = reserved
            .map(|mapping| mapping.entry.range.end.offset_from(mapping.entry.range.start))
            .fold(0, u64::saturating_add);
        reserving
            .iter_mut()
            .skip(start)
            .take(length)
            .for_each(|sum| *sum = bytes);
        start += length;
    }
    reserving
}
