//! Readings of a process's memory by region, and of the uses of its heap.

use std::collections::BTreeMap;
use std::ops::Add;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::time::{ClockId, clock_gettime};

use crate::process::census::descriptors::{DESCRIPTOR_BYTES, Descriptors};
use crate::process::census::kind::Kind;
use crate::process::census::purpose::Purpose;
use crate::process::census::sockets::Protocol;
use crate::process::census::{Census, Known};
use crate::process::touched::ResidentPages;
use crate::process::{Target, maps_of};
use crate::reach::fragmentation::{Fragmentation, measure};
use crate::reach::free::{self, Allocator};
use crate::reach::layout::Layout;
use crate::reach::pages::Pages;
use crate::reach::reader::Reader;
use memleak_why::{Amounts, HeapUse, Reading, Region};

/// Minimum and maximum time between two readings.
const MIN_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(5);
/// Minimum number of readings in all the time that a diagnosis may take.
const LEAST_READINGS: u32 = 36;
/// Maximum number of files of a kind whose growth is known by name.
const MOST_FILES: usize = 64;

/// A process whose memory is read again and again.
pub(super) struct Readings {
    pid: u32,
    began: Instant,
    /// Longest pause between two readings.
    longest: Duration,
    /// CPU time that the last full reading took.
    took: Duration,
    /// Memory with a name at the first reading and at the last.
    named: Option<[Named; 2]>,
}

impl Readings {
    /// Begins to read a process's memory, for `time` at most.
    pub(super) fn begin(target: &Target, time: Duration) -> Self {
        Self {
            pid: target.pid(),
            began: Instant::now(),
            longest: (time / LEAST_READINGS).clamp(MIN_PAUSE, MAX_PAUSE),
            took: Duration::ZERO,
            named: None,
        }
    }

    /// Names of what has grown most so far.
    pub(super) fn names(&self) -> BTreeMap<Region, String> {
        let names = self
            .named
            .as_ref()
            .map(|[first, last]| growing_names(first, last));
        names.unwrap_or_default()
    }

    /// Time from one reading to the next, so that all of them take a hundredth of a CPU, or a little more
    /// where there would be too few.
    pub(super) fn pause(&self) -> Duration {
        (100 * self.took).clamp(MIN_PAUSE, self.longest)
    }

    /// Reads the memory by now, if the pause since the last reading is over.
    pub(super) fn read_when_due(&mut self, last: Option<&Reading>) -> anyhow::Result<Option<Reading>> {
        let is_due = last.is_none_or(|last| self.began.elapsed() >= last.at + self.pause());
        is_due.then(|| self.read()).transpose()
    }

    /// Reads the memory by now.
    pub(super) fn read(&mut self) -> anyhow::Result<Reading> {
        let at = self.began.elapsed();
        let before = cpu_time();
        let census = Census::take(self.pid, &Known::default());
        let census = census.with_context(|| format!("cannot read the memory of process {}", self.pid))?;
        let last = named(&census);
        let first = self.named.take().map_or_else(|| last.clone(), |[first, _]| first);
        self.named = Some([first, last]);
        self.took = cpu_time().saturating_sub(before);
        Ok(Reading {
            at,
            bytes: amounts(&census),
        })
    }

    /// Reads the uses of the heap by now; `None` if the structures of no allocator are known.
    pub(super) fn heap(&self) -> anyhow::Result<Option<HeapUse>> {
        let resident = ResidentPages::open(self.pid)?;
        let maps = maps_of(self.pid)?;
        let reader = Reader::new(self.pid, Pages::read(&resident, &maps)?);
        let layouts = free::layouts(&reader, &maps);
        resident.check()?;
        let uses = layouts.iter().map(|layout| heap_use(layout, reader.pages()));
        Ok(uses.reduce(HeapUse::add))
    }
}

/// CPU time of this thread so far.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn heap_use(layout: &Layout, pages: &Pages) -> HeapUse {
    let found = measure(layout, pages.runs(), &mut |_| {});
    let all = found.total();
    HeapUse {
        in_blocks: all.blocks.saturating_add(all.own).saturating_add(all.unknown),
        pinned: all.pinned,
        free: all.cached.saturating_add(all.free()).saturating_sub(all.pinned),
        trimmable: all.trimmable,
        allocator: Some(layout.allocator.in_reports()),
        beyond_two: beyond_two(layout, &found),
    }
}

/// Free memory of glibc's arenas but the two that have most of it.
fn beyond_two(layout: &Layout, found: &Fragmentation) -> u64 {
    let mut free: Vec<u64> = match layout.allocator {
        Allocator::Glibc => found.arenas_with_free().map(|(_, free)| free).collect(),
        Allocator::Musl | Allocator::Jemalloc | Allocator::Tcmalloc | Allocator::Mimalloc => Vec::new(),
    };
    free.sort_unstable_by_key(|free| std::cmp::Reverse(*free));
    free.into_iter().skip(2).fold(0, u64::saturating_add)
}

/// Bytes by region.
fn amounts(census: &Census) -> Amounts {
    let mut bytes = Amounts::default();
    for portion in &census.portions {
        let held = portion.amounts.resident.saturating_add(portion.amounts.swapped);
        bytes.add(region(portion.kind), held);
    }
    // Huge pages are in mappings of the program mostly, and in heaps.
    let mut zero = census.huge.zero;
    for region in [Region::Mappings, Region::Heap, Region::Managed] {
        let part = bytes.take(region, zero);
        bytes.add(Region::HugePages, part);
        zero -= part;
    }
    let descriptors = census.descriptors.as_ref();
    bytes.add(
        Region::Shared,
        descriptors.map_or(0, |open| open.held_beyond_resident()),
    );
    bytes.add(Region::PageTables, census.quick.page_tables);
    bytes.add(Region::Kernel, census.sockets.bytes());
    let open = descriptors.map_or(0, Descriptors::count);
    bytes.add(Region::Kernel, open.saturating_mul(DESCRIPTOR_BYTES));
    bytes
}

fn region(kind: Kind) -> Region {
    match kind.purpose() {
        Purpose::Heap => Region::Heap,
        Purpose::MainStack => Region::MainStack,
        Purpose::LiveStacks => Region::LiveStacks,
        Purpose::EndedStacks => Region::EndedStacks,
        Purpose::Mappings => Region::Mappings,
        Purpose::Shared => Region::Shared,
        Purpose::Files => Region::Files,
        Purpose::Managed => Region::Managed,
    }
}

/// Bytes of memory that has a name, by region and name.
type Named = BTreeMap<(Region, String), u64>;

/// Memory with a name: files, sockets by protocol, and heaps of runtimes.
fn named(census: &Census) -> Named {
    let mut named = Named::new();
    let mut add = |region: Region, name: String, bytes: u64| {
        *named.entry((region, name)).or_default() += bytes;
    };
    for file in census.largest_files(MOST_FILES) {
        let region = region(file.kind);
        add(
            region,
            file.path.display().to_string(),
            file.amounts.resident.saturating_add(file.amounts.swapped),
        );
    }
    let held = census.descriptors.iter().flat_map(|open| &open.held);
    for file in held.take(MOST_FILES) {
        add(
            Region::Shared,
            file.name.display().to_string(),
            file.beyond_resident(),
        );
    }
    for (protocol, sum) in &census.sockets.by_protocol {
        let name = match protocol {
            Protocol::Tcp => "TCP sockets",
            Protocol::Udp => "UDP sockets",
            Protocol::Unix => "Unix sockets",
        };
        add(Region::Kernel, name.to_owned(), sum.memory);
    }
    for portion in &census.portions {
        let bytes = portion.amounts.resident.saturating_add(portion.amounts.swapped);
        if portion.kind.purpose() == Purpose::Managed {
            add(Region::Managed, portion.kind.label().to_owned(), bytes);
        }
    }
    let open = census.descriptors.as_ref().map_or(0, Descriptors::count);
    add(
        Region::Kernel,
        "open files".to_owned(),
        open.saturating_mul(DESCRIPTOR_BYTES),
    );
    named
}

/// The name in each region whose memory has grown most from `first` to `last`.
fn growing_names(first: &Named, last: &Named) -> BTreeMap<Region, String> {
    let mut most: BTreeMap<Region, (u64, &String)> = BTreeMap::new();
    for ((region, name), bytes) in last {
        let before = first.get(&(*region, name.clone())).copied().unwrap_or(0);
        let grown = bytes.saturating_sub(before);
        let best = most.entry(*region).or_insert((0, name));
        if grown > best.0 {
            *best = (grown, name);
        }
    }
    let grown = most.into_iter().filter(|(_, (grown, _))| *grown > 0);
    grown.map(|(region, (_, name))| (region, name.clone())).collect()
}
