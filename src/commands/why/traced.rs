//! Short traces that tell who makes a region grow.

use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use leak_report::model::diagnosis::Place;
use leak_report::model::owner::owner;
use leak_report::model::{Amount, RegionKind, Report, Sampling, SiteKey, StackRef};
use leak_report::render::titles::{function_title, title};
use leak_report::render::{root_in_words, whole};

use crate::base::proc_fields::ProcFields;
use crate::bpf::Takes;
use crate::process::Target;
use crate::session::{Counted, MaxOverhead, Session, Signals, TraceConfig, VerdictSettings, View, storages};
use memleak_why::{Observed, Region, Site, Took, Trace, growing};

/// Way in which a process takes memory that is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Blocks,
    Mappings,
    Takes,
}

impl Wanted {
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::Mappings => "mappings",
            Self::Takes => "page faults and open files",
        }
    }

    /// The trace that tells who takes memory of a region; `None` if none does. `without_blocks`: blocks
    /// cannot be traced.
    fn of(region: Region, without_blocks: bool) -> Option<Self> {
        match region {
            Region::Heap if !without_blocks => Some(Self::Blocks),
            Region::LiveStacks | Region::EndedStacks | Region::Mappings => Some(Self::Mappings),
            Region::Heap
            | Region::MainStack
            | Region::Shared
            | Region::Files
            | Region::HugePages
            | Region::Managed
            | Region::Kernel => Some(Self::Takes),
            Region::PageTables => None,
        }
    }
}

/// Traces of a diagnosis.
#[derive(Debug, Default)]
pub(super) struct Traces {
    done: Vec<Wanted>,
    /// True if tracing blocks costs more than the limit.
    without_blocks: bool,
}

impl Traces {
    /// Traces that are needed by now and were not made, the one about the fastest growth first.
    pub(super) fn wanted(&self, observed: &Observed) -> Vec<Wanted> {
        let mut all = Vec::new();
        let of = |region| Wanted::of(region, self.without_blocks);
        for wanted in growing(observed).into_iter().filter_map(of) {
            if !all.contains(&wanted) && !self.done.contains(&wanted) {
                all.push(wanted);
            }
        }
        all
    }

    /// Notes that a trace was made, or given up for its cost.
    pub(super) fn note(&mut self, wanted: Wanted, is_given_up: bool) {
        self.done.push(wanted);
        self.without_blocks |= is_given_up && wanted == Wanted::Blocks;
    }
}

/// Subject of traces, and their limits.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) target: &'a Target,
    pub(super) limit: MaxOverhead,
    pub(super) signals: &'a Signals,
}

/// A trace that was made.
pub(super) struct Whole {
    pub(super) trace: Trace,
    /// Its last report.
    pub(super) report: Report,
    /// Share of one CPU that it took from the process.
    pub(super) cost: f64,
}

/// Result of a trace.
pub(super) enum Traced {
    Whole(Box<Whole>),
    /// It would have cost more than the limit: this share of one CPU.
    TooCostly(f64),
}

/// Traces a kind of memory for some time; calls `on_tick` several times a second.
pub(super) fn trace(
    subject: Subject<'_>,
    wanted: Wanted,
    time: Duration,
    on_tick: &mut dyn FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<Traced> {
    let Subject {
        target,
        limit,
        signals,
    } = subject;
    let began = Instant::now();
    let config = config(subject, wanted)?;
    let mut storages = storages();
    let mut session = Session::start(&mut storages, &config)?;
    let end = (began + time.saturating_sub(RESERVE).max(time / 2)).max(Instant::now());
    let middle = Instant::now() + (end - Instant::now()) / 2;
    let plain = View::default();
    let mut ended = false;
    while !ended && Instant::now() < middle {
        let next = middle.min(Instant::now() + COST_CHECK);
        ended = session.follow_with(next, signals, &mut |_| on_tick())?;
        if let Some(cost) = session.cost_above_limit() {
            tracing::debug!("{} cost {cost} of one CPU, above {}", target.pid(), limit.share());
            return Ok(Traced::TooCostly(cost));
        }
    }
    let before = session.report(&plain, 0, signals)?;
    if !ended {
        session.follow_with(end, signals, &mut |_| on_tick())?;
    }
    let judged = View {
        verdict: (wanted == Wanted::Blocks).then(VerdictSettings::default),
        pinned: wanted == Wanted::Blocks && blocks(&before) <= MOST_PINNING,
        ..plain
    };
    let report = session.last_report(&judged, 0, signals)?;
    let by_hits = |report: &Report| {
        let hits = report.events.probe_hits as f64;
        hits * TAKE_COST / began.elapsed().as_nanos() as f64
    };
    let cost = report.overhead.as_ref().map(|overhead| overhead.spent.share());
    let cost = cost.unwrap_or_else(|| by_hits(&report));
    let trace = Trace {
        second_half: report.elapsed.saturating_sub(before.elapsed),
        sites: sites(&before, &report, wanted),
        is_judged: wanted == Wanted::Blocks,
    };
    for site in &trace.sites {
        tracing::debug!(
            "{:?} by {}: {:.0} B/s",
            site.took,
            site.place.function,
            site.rate(&trace)
        );
    }
    Ok(Traced::Whole(Box::new(Whole { trace, report, cost })))
}

/// Maximum number of blocks among which those are looked for that pin memory: a second of a CPU.
const MOST_PINNING: u64 = 300_000;

fn blocks(report: &Report) -> u64 {
    let amounts = report.stacks().map(|stack| stack.outstanding.amount);
    amounts.sum::<Amount>().blocks
}

/// Time that is kept for the verdict and the report.
const RESERVE: Duration = Duration::from_secs(3);
/// Time between two looks at what the trace costs.
const COST_CHECK: Duration = Duration::from_secs(1);
/// Nanoseconds that a traced page fault or write takes (`docs/cost.md`).
const TAKE_COST: f64 = 1100.0;
/// Time in which the number of page faults is measured.
const RATE_TIME: Duration = Duration::from_millis(500);

fn config(subject: Subject<'_>, wanted: Wanted) -> anyhow::Result<TraceConfig> {
    let mut config = TraceConfig::of_process(subject.target.pid());
    let count = &mut config.count;
    match wanted {
        Wanted::Blocks => count.max_overhead = Some(subject.limit),
        Wanted::Mappings => count.counted = Counted::Mappings,
        Wanted::Takes => {
            count.counted = Counted::Takes(Takes {
                descriptors: true,
                writes: true,
            });
            let cost = takes_per_second(subject.target)? * TAKE_COST / 1e9;
            let interval = whole((cost / subject.limit.share()).ceil());
            if interval > 1 {
                count.sampling = Sampling::Calls(interval);
            }
        }
    }
    Ok(config)
}

/// Page faults and writes of a process per second.
fn takes_per_second(target: &Target) -> anyhow::Result<f64> {
    let number = || -> anyhow::Result<u64> {
        let faults = target.page_faults().context("cannot read its page faults")?;
        // Only with CONFIG_TASK_IO_ACCOUNTING.
        let io = ProcFields::read(format!("/proc/{}/io", target.pid())).unwrap_or_default();
        Ok(faults.saturating_add(io.number("syscw").unwrap_or(0)))
    };
    let (before, began) = (number()?, Instant::now());
    sleep(RATE_TIME);
    Ok(number()?.saturating_sub(before) as f64 / began.elapsed().as_secs_f64())
}

/// Places of a report, with what they had before. A place can have several stacks.
fn sites(before: &Report, report: &Report, wanted: Wanted) -> Vec<Site> {
    let known: HashMap<SiteKey, Amount> = before
        .stacks()
        .map(|stack| (stack.key(), stack.outstanding.amount))
        .collect();
    let mut sites: Vec<Site> = Vec::new();
    let mut at: HashMap<(Place, Took), usize> = HashMap::new();
    for stack in report.stacks() {
        let (place, took) = (place(stack, report), took(stack.kind, wanted));
        if took == Took::Page(Region::Managed) && is_of_runtime(&place) {
            continue;
        }
        let number = *at.entry((place.clone(), took)).or_insert_with(|| {
            sites.push(Site {
                place,
                took,
                outstanding: Amount::default(),
                before: Amount::default(),
                lost: Amount::default(),
                pinned: Amount::default(),
                holder: None,
            });
            sites.len() - 1
        });
        let Some(site) = sites.get_mut(number) else {
            continue;
        };
        let verdict = stack.verdict.unwrap_or_default();
        let held = stack.held.as_deref().and_then(|held| held.by.first());
        // The holder of the largest stack's.
        if site.holder.is_none() || stack.outstanding.amount.bytes > site.outstanding.bytes {
            let holder = held.map(|holder| root_in_words(&holder.root, report));
            site.holder = holder.or(site.holder.take());
        }
        site.outstanding = site.outstanding + stack.outstanding.amount;
        site.before = site.before + known.get(&stack.key()).copied().unwrap_or_default();
        site.pinned = site.pinned + stack.pins().amount;
        site.lost = site.lost + verdict.definitely_lost + verdict.indirectly_lost;
    }
    sites
}

/// Returns whether a place is in a runtime's own code: its collector touches most of its heap's pages.
fn is_of_runtime(place: &Place) -> bool {
    /// Starts of the names of runtimes' files.
    const RUNTIMES: [&str; 3] = ["libjvm", "libcoreclr", "libclrgc"];
    let file = place
        .module
        .as_deref()
        .and_then(|module| module.rsplit('/').next());
    file.is_some_and(|file| RUNTIMES.iter().any(|start| file.starts_with(start)))
}

fn took(kind: Option<RegionKind>, wanted: Wanted) -> Took {
    match (wanted, kind) {
        (Wanted::Blocks, _) => Took::Block,
        (Wanted::Mappings, Some(RegionKind::ThreadStack)) => Took::ThreadStack,
        (Wanted::Mappings, _) => Took::Mapping,
        (Wanted::Takes, Some(RegionKind::Descriptor)) => Took::Descriptor,
        (Wanted::Takes, Some(RegionKind::MemoryFile)) => Took::MemoryFile,
        (Wanted::Takes, kind) => Took::Page(match kind {
            Some(RegionKind::Allocator) => Region::Heap,
            Some(RegionKind::Shared) => Region::Shared,
            Some(RegionKind::File) => Region::Files,
            Some(RegionKind::ThreadStack) => Region::LiveStacks,
            Some(RegionKind::MainStack) => Region::MainStack,
            Some(RegionKind::ManagedHeap) => Region::Managed,
            Some(RegionKind::HugePages) => Region::HugePages,
            Some(
                RegionKind::Anonymous
                | RegionKind::Reservation
                | RegionKind::MemoryFile
                | RegionKind::Descriptor,
            )
            | None => Region::Mappings,
        }),
    }
}

fn place(stack: StackRef<'_>, report: &Report) -> Place {
    let Some(owner) = owner(stack) else {
        return Place {
            function: title(stack, report.names).into(),
            ..Place::default()
        };
    };
    let (file, line) = owner.source();
    Place {
        function: function_title(&owner, report.names).into(),
        file: file.map(Into::into),
        line,
        module: owner.frame.module().map(|module| module.path().into()),
    }
}
