//! Readings of a process's memory by region, and of the uses of its heap.

use std::ops::Add;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::time::{ClockId, clock_gettime};

use crate::process::census::kind::Kind;
use crate::process::census::{Census, Known};
use crate::process::touched::ResidentPages;
use crate::process::{Target, maps_of};
use crate::reach::fragmentation::measure;
use crate::reach::free;
use crate::reach::layout::Layout;
use crate::reach::pages::Pages;
use crate::reach::reader::Reader;
use memleak_why::{Amounts, HeapUse, Reading, Region};

/// Minimum and maximum time between two readings.
const MIN_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// A process whose memory is read again and again.
pub(super) struct Readings {
    pid: u32,
    began: Instant,
    /// CPU time that the last full reading took.
    took: Duration,
}

impl Readings {
    pub(super) fn begin(target: &Target) -> Self {
        Self {
            pid: target.pid(),
            began: Instant::now(),
            took: Duration::ZERO,
        }
    }

    /// Time from one reading to the next, so that all of them take a hundredth of a CPU.
    pub(super) fn pause(&self) -> Duration {
        (100 * self.took).clamp(MIN_PAUSE, MAX_PAUSE)
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
        arenas: found.arenas_with_free().count() as u64,
    }
}

/// Bytes by region.
fn amounts(census: &Census) -> Amounts {
    let mut bytes = Amounts::default();
    for piece in &census.pieces {
        let held = piece.amounts.resident.saturating_add(piece.amounts.swapped);
        bytes.add(region(piece.kind), held);
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
    bytes.add(Region::Kernel, census.quick.page_tables);
    bytes.add(Region::Kernel, census.sockets.bytes());
    bytes
}

fn region(kind: Kind) -> Region {
    match kind {
        Kind::BrkHeap
        | Kind::GlibcArena
        | Kind::GlibcBlocks
        | Kind::MuslGroups
        | Kind::NamedHeap
        | Kind::KnownHeap
        | Kind::LibraryHeap => Region::Heap,
        Kind::MainStack => Region::MainStack,
        Kind::RunningStack => Region::LiveStacks,
        Kind::UnjoinedStack | Kind::CachedStack | Kind::EndedStack => Region::EndedStacks,
        Kind::LoaderData
        | Kind::ProgramData
        | Kind::ProgramCode
        | Kind::MappedFile
        | Kind::Device
        | Kind::KernelPages => Region::Files,
        Kind::JvmHeap
        | Kind::JvmOther
        | Kind::PythonArenas
        | Kind::GoHeap
        | Kind::GoRuntime
        | Kind::V8Heap
        | Kind::BrowserHeaps
        | Kind::DotNet => Region::Managed,
        Kind::SharedAnonymous | Kind::MemoryFile | Kind::SystemV | Kind::SharedFile => Region::Shared,
        Kind::GeneratedCode
        | Kind::DatabaseBuffers
        | Kind::Hugetlb
        | Kind::Named
        | Kind::Reserved
        | Kind::Unexplained => Region::Mappings,
    }
}
