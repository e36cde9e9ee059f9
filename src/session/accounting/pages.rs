//! Accounts of pages (`--faults`): follows the page faults of each instance and the calls that discard pages,
//! and compares with the resident pages.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Context;
use unwind_tables::addr::Avma;

use super::{Accounting, Growth, Instances, Names, count_events};
use crate::allocator::{Catalog, PAGE_FAULT};
use crate::base::pages;
use crate::bpf::collect::{MemoryEvent, RangeBytes, counter, not_walked, record_of, stack_of};
use crate::bpf::{FaultSettings, FaultWatch, Kernel, Origin, RegionWatch, Takes};
use crate::process::memory::Tracks;
use crate::process::touched::{
    Choice, HugePages, PageTotals, Pages, ResidentPages, Scan, ToRead, Unexplained,
};
use crate::session::config::{Counted, TraceConfig};
use crate::session::probes::AllocatorProbes;
use crate::session::process::Process;
use leak_report::model::{Amount, Estimate, Sampling, Snapshot, Source, Spread, StackTotals};

/// Minimum pause between two comparisons with the resident pages.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Minimum pause as a multiple of the time that the last comparison took: at most 2 % of the time is spent on
/// them.
const PAUSE_PER_WORK: u32 = 50;
/// Maximum number of comparisons for one report: pages whose faults are just being handled are looked at
/// again.
const MAX_COMPARISONS: usize = 2;
/// Maximum number of events that are kept for instances that are not known yet. Pages of dropped events are
/// found as lost.
const MAX_EARLY: usize = 1 << 20;

/// Maximum pages per process that stacks have touched: 256 GiB of pages of 4 KiB, in 256 MB.
const MAX_PAGES: u32 = 1 << 26;

/// The pages of all instances.
pub(super) struct PageAccounts {
    instances: BTreeMap<u32, Traced>,
    choice: Choice,
    /// Number of page faults in the table of functions.
    function: u8,
    /// Maximum number of pages of one instance.
    capacity: usize,
    huge: HugePages,
    next_comparison: Instant,
    /// Faults that were not recorded, as of the last report.
    missed_faults: u64,
    /// Calls that were missed, as of the last report.
    missed_calls: u64,
    /// Events of instances that are not known yet.
    early: Vec<MemoryEvent>,
    /// True if children of processes are traced, too.
    children: bool,
    watch: Option<(RegionWatch, FaultWatch)>,
}

/// The pages of one instance.
struct Traced {
    pages: Pages,
    /// `None` once it has ended.
    resident: Option<ResidentPages>,
    /// False until the first comparison: pages that it finds are older than the trace.
    is_compared: bool,
}

impl PageAccounts {
    /// Empty accounts, which follow nothing yet.
    pub(super) fn new(config: &TraceConfig, faults: FaultSettings, children: bool) -> Self {
        let interval = match config.count.sampling {
            Sampling::Calls(calls) => calls,
            Sampling::All | Sampling::Bytes(_) | Sampling::Governed(_) | Sampling::Provider(_) => 1,
        };
        let capacity = config.limits.blocks.unwrap_or(MAX_PAGES);
        Self {
            instances: BTreeMap::new(),
            choice: Choice {
                interval,
                seed: faults.seed,
            },
            function: faults.function,
            capacity: usize::try_from(capacity).unwrap_or(usize::MAX),
            huge: HugePages::open(),
            next_comparison: Instant::now(),
            missed_faults: 0,
            missed_calls: 0,
            early: Vec::new(),
            children,
            watch: None,
        }
    }

    /// Bytes of an instance's pages in each of `ranges`.
    fn bytes_in_ranges(&self, instance: u32, ranges: &[Range<Avma>]) -> RangeBytes {
        let traced = self.instances.get(&instance);
        let bytes_in = |range: &Range<Avma>| {
            let pages = traced.map_or(0, |traced| traced.pages.count_in(range));
            amount(pages, self.choice.interval).bytes
        };
        RangeBytes {
            bytes: ranges.iter().map(bytes_in).collect(),
            is_complete: true,
        }
    }

    /// Begins the pages of a new instance. A child of fork has those that its parent had then: the parent's
    /// events until the child's first one are applied.
    fn begin(&mut self, instances: Instances<'_, '_>, number: u32, process: &Process) {
        let instance = &process.instance;
        let parent = instance.parent.filter(|_| instance.origin == Origin::Forked);
        let pages = match parent.and_then(|parent| self.instances.get(&parent)) {
            Some(parent) => parent.pages.forked(),
            None => Pages::new(self.choice, self.capacity),
        };
        let traced = Traced {
            pages,
            resident: open_pages(instances, number, process),
            is_compared: false,
        };
        self.instances.insert(number, traced);
    }

    /// Begins the pages of all instances that have none yet.
    fn begin_all(&mut self, instances: Instances<'_, '_>) {
        for (number, process) in instances.roster.iter() {
            if !self.instances.contains_key(&number) {
                self.begin(instances, number, process);
            }
        }
    }

    /// Applies the queued faults and calls. Returns how many bytes they took in the queue.
    fn apply_events(&mut self, instances: Instances<'_, '_>) -> usize {
        let events = instances.events.take_memory_events();
        let bytes = events.iter().map(MemoryEvent::queued_bytes).sum();
        for event in std::mem::take(&mut self.early).into_iter().chain(events) {
            let instance = match &event {
                MemoryEvent::Call(call) => call.instance,
                MemoryEvent::Fault(fault) => fault.instance,
                MemoryEvent::Take(take) => take.instance,
            };
            if !self.instances.contains_key(&instance)
                && let Some(process) = instances.roster.get(instance)
            {
                self.begin(instances, instance, process);
            }
            match (self.instances.get_mut(&instance), &event) {
                (Some(Traced { pages, .. }), MemoryEvent::Call(call)) => pages.apply(call),
                (Some(Traced { pages, .. }), MemoryEvent::Fault(fault)) => pages.touch(fault),
                // Not followed here.
                (_, MemoryEvent::Take(_)) => {}
                // It has just begun, and is observed soon.
                (None, _) if self.early.len() < MAX_EARLY => self.early.push(event),
                (None, _) => {}
            }
        }
        bytes
    }

    /// Compares the pages of all running instances with the resident ones. Returns how many have to be looked
    /// at again.
    fn compare(&mut self, instances: Instances<'_, '_>) -> anyhow::Result<u64> {
        let began = Instant::now();
        self.begin_all(instances);
        let mut missed = 0;
        for number in self.instances.keys().copied().collect::<Vec<_>>() {
            missed += self.compare_instance(instances, number)?;
        }
        let pause = (PAUSE_PER_WORK * began.elapsed()).max(MIN_PAUSE);
        self.next_comparison = Instant::now() + pause;
        Ok(missed)
    }

    fn compare_instance(&mut self, instances: Instances<'_, '_>, number: u32) -> anyhow::Result<u64> {
        let maps = instances.maps_of(number);
        let Some(traced) = self.instances.get_mut(&number) else {
            return Ok(0);
        };
        if !instances.roster.is_running(number) {
            traced.pages.end();
            traced.resident = None;
            return Ok(0);
        }
        let Some(maps) = maps else {
            return Ok(0);
        };
        traced.pages.enter_maps(&maps);
        let mut missed = 0;
        for batch in traced.pages.batches(&maps) {
            let Some(Traced { pages, resident, .. }) = self.instances.get_mut(&number) else {
                return Ok(missed);
            };
            pages.mark();
            let read = |(range, is_searched): &ToRead| -> Option<Scan> {
                let states = resident.as_ref()?.read(range).ok()?;
                let (first, is_searched) = (range.start, *is_searched);
                Some(Scan {
                    first,
                    states,
                    is_searched,
                })
            };
            // If something cannot be read, the process has just ended or executed another program.
            let Some(scans) = batch.iter().map(read).collect::<Option<Vec<_>>>() else {
                return Ok(missed);
            };
            if !instances.apply_begun(|| self.apply_events(instances))? {
                return Ok(missed);
            }
            missed += self.settle_instance(number, &scans);
        }
        if let Some(traced) = self.instances.get_mut(&number) {
            traced.is_compared = true;
        }
        Ok(missed)
    }

    fn settle_instance(&mut self, number: u32, scans: &[Scan]) -> u64 {
        let Some(Traced {
            pages, is_compared, ..
        }) = self.instances.get_mut(&number)
        else {
            return 0;
        };
        let unexplained = match is_compared {
            true => Unexplained::Lost,
            false => Unexplained::Before,
        };
        pages.settle(scans, unexplained, &mut self.huge)
    }
}

impl Accounting for PageAccounts {
    fn subject(&self) -> &'static str {
        "page faults, not allocator functions"
    }

    fn tracks(&self) -> Tracks {
        Tracks::Pages
    }

    fn nothing_seen(&self, _: &AllocatorProbes, _: Option<Growth>) -> String {
        "no page fault was seen: the target has the memory that it needs, or is idle".to_owned()
    }

    /// Pages that are resident by then belong to no stack.
    fn start(&mut self, instances: Instances<'_, '_>) -> anyhow::Result<()> {
        // Compared before and after: a page that is found only afterwards is new if its fault was seen.
        self.compare(instances)?;
        self.instances
            .values_mut()
            .for_each(|traced| traced.is_compared = false);
        let regions = instances.kernel.watch_regions().context(
            "cannot follow calls that discard pages: --faults needs a kernel with CONFIG_FTRACE_SYSCALLS, and tracefs \
             (mount -t tracefs nodev /sys/kernel/tracing)",
        )?;
        let faults = instances.watch_faults(self.children)?;
        tracing::debug!("page faults of {} threads are followed", faults.link_count());
        self.watch = Some((regions, faults));
        self.compare(instances).map(drop)
    }

    /// Compares now and then with the resident pages.
    fn follow(&mut self, instances: Instances<'_, '_>) -> anyhow::Result<()> {
        self.apply_events(instances);
        if Instant::now() >= self.next_comparison {
            self.compare(instances)?;
        }
        Ok(())
    }

    fn settle(&mut self, instances: Instances<'_, '_>) -> anyhow::Result<()> {
        self.apply_events(instances);
        for _ in 0..MAX_COMPARISONS {
            if self.compare(instances)? == 0 {
                break;
            }
        }
        let (missed_calls, counters) = instances.missed_calls()?;
        let missed_faults = counters.get(counter::COUNTER_LOST_FAULT_EVENT);
        if missed_faults > self.missed_faults {
            tracing::warn!(
                "{missed_faults} page faults were missed, as they came too fast: their pages are counted as \
                 lost; -s N records one of N"
            );
        }
        (self.missed_faults, self.missed_calls) = (missed_faults, missed_calls);
        Ok(())
    }

    fn detach(&mut self) {
        self.watch = None;
    }

    fn outstanding_in(&self, _: &Kernel<'_>, wanted: &[(u32, Vec<Range<Avma>>)]) -> Vec<RangeBytes> {
        let each = wanted.iter();
        each.map(|(instance, ranges)| self.bytes_in_ranges(*instance, ranges))
            .collect()
    }

    /// `snapshot` has only losses before.
    fn add_to(&self, snapshot: &mut Snapshot, instances: Instances<'_, '_>, _: Names<'_>) {
        let kernel = instances.kernel;
        snapshot.source = Source::Faults;
        let mut totals: BTreeMap<u32, PageTotals> = BTreeMap::new();
        let (mut unexplained, mut ends_not_seen) = (0, 0);
        for Traced { pages, .. } in self.instances.values() {
            for (stack, more) in pages.totals() {
                *totals.entry(record_of(kernel, stack)).or_default() += more;
            }
            unexplained += pages.unexplained();
            ends_not_seen += pages.ends_not_seen();
        }
        let full: u64 = totals.values().map(|totals| totals.lost).sum();
        totals.entry(not_walked(self.function)).or_default().lost += unexplained;
        for (record, totals) in totals {
            let stack = stack_of(kernel, record).map(|shape| with_pages(shape, totals, self.choice));
            let is_some = |stack: &StackTotals| stack.allocated.amount.blocks > 0 || stack.lost.blocks > 0;
            snapshot.stacks.extend(stack.filter(is_some));
        }
        let lost: Amount = snapshot.stacks.iter().map(|stack| stack.lost).sum();
        let causes = [
            ("page_table_full", full),
            ("page_faults_not_seen", unexplained),
            ("page_ends_not_seen", ends_not_seen),
            ("fault_queue_full", self.missed_faults),
            ("region_calls_not_seen", self.missed_calls),
        ];
        count_events(snapshot, lost, causes);
    }
}

/// Opens the pages of a running instance.
fn open_pages(instances: Instances<'_, '_>, number: u32, process: &Process) -> Option<ResidentPages> {
    let resident = ResidentPages::open(process.facts.pid).ok()?;
    Some(resident).filter(|_| instances.is_in_slot(number, process))
}

/// A stack with its pages as blocks.
fn with_pages(shape: StackTotals, totals: PageTotals, choice: Choice) -> StackTotals {
    let PageTotals {
        touched,
        gone,
        squares,
        lost,
    } = totals;
    // For pages that are gone, it is unknown which of them one fault had made resident together: assume their
    // share of all.
    let gone_squares = u128::from(squares) * u128::from(gone) / u128::from(touched.max(1));
    StackTotals {
        allocated: estimate(touched, squares.into(), choice.interval),
        freed: estimate(gone, gone_squares, choice.interval),
        lost: amount(lost, choice.interval),
        ..shape
    }
}

fn amount(pages: u64, interval: u64) -> Amount {
    let blocks = pages.saturating_mul(interval);
    Amount {
        bytes: blocks.saturating_mul(pages::bytes()),
        blocks,
    }
}

/// Amount of `pages` pages, each of which stands for `interval`: with v pages for each fault, and the
/// probability p that it is recorded, the variance of the sum of v / p is estimated by the sum of v²(1 - p) /
/// p² (Horvitz-Thompson).
fn estimate(pages: u64, squares: u128, interval: u64) -> Estimate {
    /// Unit of [`Spread::blocks`].
    const UNITS_PER_BLOCK: u128 = 1 << 32;
    let amount = amount(pages, interval);
    if interval <= 1 {
        return amount.into();
    }
    let variance = squares.saturating_mul(u128::from(interval) * u128::from(interval - 1));
    let bytes = u128::from(pages::bytes());
    Estimate {
        amount,
        spread: Spread {
            recorded: pages,
            bytes: variance.saturating_mul(bytes * bytes),
            blocks: variance.saturating_mul(UNITS_PER_BLOCK),
        },
    }
}

/// How page faults are traced, if they are.
pub(in crate::session) fn fault_settings(config: &TraceConfig, catalog: &Catalog) -> Option<FaultSettings> {
    let takes = match config.count.counted {
        Counted::Pages => Takes::default(),
        Counted::Takes(takes) => takes,
        Counted::Blocks | Counted::Mappings | Counted::Kernel(_) => return None,
    };
    let function = catalog.number(PAGE_FAULT.as_bytes());
    let function = function.and_then(|number| u8::try_from(number).ok());
    function.map(|function| FaultSettings {
        function,
        seed: RandomState::new().hash_one(function),
        takes,
    })
}
