//! Accounts of who takes memory from the kernel (`memleak why`): pages that are touched, open files, and what
//! is written to files in memory, each by the purpose of the memory.
//!
//! Unlike the accounts of pages, they do not follow what is given back: they tell in which proportion stacks
//! take memory of a purpose that is known to grow. So they cost less, and have memory of files, too.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use anyhow::Context;
use unwind_tables::addr::Avma;

use super::{Accounting, Growth, Instances, Names, count_events};
use crate::base::pages;
use crate::bpf::collect::{MemoryEvent, RangeBytes, Taken, counter, record_of, stack_of};
use crate::bpf::{FaultWatch, Kernel, RegionWatch};
use crate::process::census::descriptors::{DESCRIPTOR_BYTES, Opened, opened};
use crate::process::census::purpose::Purpose;
use crate::process::census::{Census, Known};
use crate::process::memory::Tracks;
use crate::session::probes::AllocatorProbes;
use leak_report::model::{Amount, RegionKind, Snapshot, Source, StackTotals};

/// Maximum number of touched pages of an instance: those of 4 GiB.
const MAX_PAGES: usize = 1 << 20;
/// Maximum number of descriptors of an instance.
const MAX_DESCRIPTORS: usize = 1 << 17;

/// Takes of all instances.
pub(super) struct TakeAccounts {
    instances: BTreeMap<u32, Taker>,
    /// True if children of processes are traced, too.
    children: bool,
    /// Takes that were not recorded, as there were too many, as of the last report.
    missed: u64,
    watch: Option<(RegionWatch, FaultWatch)>,
}

/// Takes of an instance, each with the stack that made it last.
#[derive(Default)]
struct Taker {
    pages: HashMap<u64, u32>,
    descriptors: HashMap<u32, u32>,
    /// Bytes and numbers of writes by stack.
    written: BTreeMap<u32, Amount>,
    /// Takes for which there was no room.
    lost: u64,
}

impl Taker {
    fn touch(&mut self, address: Avma, stack: u32) {
        let page = address.get() / pages::bytes();
        if self.pages.len() < MAX_PAGES || self.pages.contains_key(&page) {
            self.pages.insert(page, stack);
        } else {
            self.lost += 1;
        }
    }

    fn take(&mut self, taken: Taken, stack: u32) {
        match taken {
            Taken::Descriptor(descriptor) => {
                if self.descriptors.len() < MAX_DESCRIPTORS || self.descriptors.contains_key(&descriptor) {
                    self.descriptors.insert(descriptor, stack);
                } else {
                    self.lost += 1;
                }
            }
            Taken::Written(bytes) => {
                let sum = self.written.entry(stack).or_default();
                *sum = *sum + Amount { bytes, blocks: 1 };
            }
        }
    }

    /// Amounts by stack and kind of memory, by a census of process `pid`.
    fn totals(&self, pid: u32, census: &Census) -> BTreeMap<(u32, RegionKind), Amount> {
        let mut totals: BTreeMap<(u32, RegionKind), Amount> = BTreeMap::new();
        let mut add = |stack: u32, kind: RegionKind, amount: Amount| {
            let sum = totals.entry((stack, kind)).or_default();
            *sum = *sum + amount;
        };
        for (&page, &stack) in &self.pages {
            if let Some(kind) = kind_at(census, Avma::new(page.saturating_mul(pages::bytes()))) {
                let bytes = pages::bytes();
                add(stack, kind, Amount { bytes, blocks: 1 });
            }
        }
        for (&descriptor, &stack) in &self.descriptors {
            let (kind, bytes) = match opened(pid, descriptor) {
                Some(Opened::Memory(bytes)) => (RegionKind::MemoryFile, bytes),
                Some(Opened::Socket(inode)) => {
                    let queued = census.sockets.by_inode.get(&inode).copied().unwrap_or(0);
                    (RegionKind::Descriptor, queued.saturating_add(DESCRIPTOR_BYTES))
                }
                Some(Opened::Other) => (RegionKind::Descriptor, DESCRIPTOR_BYTES),
                None => continue,
            };
            add(stack, kind, Amount { bytes, blocks: 1 });
        }
        for (&stack, &amount) in &self.written {
            add(stack, RegionKind::Shared, amount);
        }
        totals
    }
}

/// Kind of the memory at an address; `None` if nothing is mapped there any longer.
fn kind_at(census: &Census, address: Avma) -> Option<RegionKind> {
    let portions = &census.portions;
    let at = portions.partition_point(|portion| portion.range.end <= address);
    let portion = portions
        .get(at)
        .filter(|portion| portion.range.start <= address)?;
    Some(match portion.kind.purpose() {
        Purpose::Managed => RegionKind::ManagedHeap,
        Purpose::Heap | Purpose::Mappings if portion.amounts.huge > 0 => RegionKind::HugePages,
        Purpose::Heap => RegionKind::Allocator,
        Purpose::MainStack => RegionKind::MainStack,
        Purpose::LiveStacks | Purpose::EndedStacks => RegionKind::ThreadStack,
        Purpose::Mappings => RegionKind::Anonymous,
        Purpose::Shared => RegionKind::Shared,
        Purpose::Files => RegionKind::File,
    })
}

impl TakeAccounts {
    /// Empty accounts, which follow nothing yet. `children`: those of a process count as well.
    pub(super) fn new(children: bool) -> Self {
        Self {
            instances: BTreeMap::new(),
            children,
            missed: 0,
            watch: None,
        }
    }

    /// Applies the queued events. Returns how many bytes they took in the queue.
    fn apply_events(&mut self, instances: Instances<'_, '_>) -> usize {
        let events = instances.events.take_memory_events();
        for event in &events {
            match event {
                MemoryEvent::Fault(fault) => {
                    let taker = self.instances.entry(fault.instance).or_default();
                    taker.touch(fault.address, fault.stack);
                }
                MemoryEvent::Take(take) => {
                    let taker = self.instances.entry(take.instance).or_default();
                    taker.take(take.taken, take.stack);
                }
                // Not followed.
                MemoryEvent::Call(_) => {}
            }
        }
        events.iter().map(MemoryEvent::queued_bytes).sum()
    }
}

impl Accounting for TakeAccounts {
    fn subject(&self) -> &'static str {
        "page faults and open files, not allocator functions"
    }

    fn tracks(&self) -> Tracks {
        Tracks::Pages
    }

    fn nothing_seen(&self, _: &AllocatorProbes, _: Option<Growth>) -> String {
        "no page fault was seen: the target has the memory that it needs, or is idle".to_owned()
    }

    fn start(&mut self, instances: Instances<'_, '_>) -> anyhow::Result<()> {
        let takes = instances
            .kernel
            .watch_takes()
            .context("cannot follow open files and writes")?;
        let faults = instances.watch_faults(self.children)?;
        self.watch = Some((takes, faults));
        Ok(())
    }

    fn follow(&mut self, instances: Instances<'_, '_>) -> anyhow::Result<()> {
        self.apply_events(instances);
        Ok(())
    }

    fn settle(&mut self, instances: Instances<'_, '_>) -> anyhow::Result<()> {
        instances.apply_begun(|| self.apply_events(instances))?;
        let (_, counters) = instances.missed_calls()?;
        self.missed = counters.get(counter::COUNTER_LOST_FAULT_EVENT);
        Ok(())
    }

    fn detach(&mut self) {
        self.watch = None;
    }

    /// None: what is given back is not followed.
    fn outstanding_in(&self, _: &Kernel<'_>, wanted: &[(u32, Vec<Range<Avma>>)]) -> Vec<RangeBytes> {
        let each = wanted.iter();
        each.map(|(_, ranges)| RangeBytes {
            bytes: vec![0; ranges.len()],
            is_complete: true,
        })
        .collect()
    }

    /// `snapshot` has only losses before.
    fn add_to(&self, snapshot: &mut Snapshot, instances: Instances<'_, '_>, _: Names<'_>) {
        let Instances { kernel, roster, .. } = instances;
        snapshot.source = Source::Faults;
        let mut by_record: BTreeMap<(u32, RegionKind), Amount> = BTreeMap::new();
        for (&instance, taker) in &self.instances {
            let pid = roster.get(instance).map(|process| process.facts.pid);
            let running = pid.filter(|_| roster.is_running(instance));
            // One that has just ended holds nothing.
            let Some((pid, census)) =
                running.and_then(|pid| Some((pid, Census::take(pid, &Known::default()).ok()?)))
            else {
                continue;
            };
            for ((stack, kind), amount) in taker.totals(pid, &census) {
                let sum = by_record.entry((record_of(kernel, stack), kind)).or_default();
                *sum = *sum + amount;
            }
        }
        for ((record, kind), amount) in by_record {
            let shape = stack_of(kernel, record);
            snapshot.stacks.extend(shape.map(|shape| StackTotals {
                allocated: amount.into(),
                kind: Some(kind),
                ..shape
            }));
        }
        let lost: u64 = self.instances.values().map(|taker| taker.lost).sum();
        let causes = [("page_table_full", lost), ("fault_queue_full", self.missed)];
        count_events(snapshot, Amount::default(), causes);
    }
}
