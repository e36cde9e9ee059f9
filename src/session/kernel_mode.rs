//! A trace of the kernel's own allocations, from start to end: what `session` does for processes.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::calls::{self, CallTracer};
use super::kernel_report::{Facts, caller, report};
use super::schedule::Schedule;
use super::since::Since;
use super::{KernelConfig, TraceConfig, View};
use super::{Signals, Storages, TICK, storages};
use crate::bpf::collect::{
    self, BlockTable, CallQueue, Counters, ListRequest, LiveBlocks, Moment, stack_of_kernel_mode,
};
use crate::bpf::preflight;
use crate::bpf::{Capacity, KernelEvents, KernelSettings, KernelTrace, Storage, Tracing};
use crate::symbolize::Kallsyms;
use leak_report::model::{CallTrace, Report};
use leak_report::model::{Snapshot, Vitals};
use leak_report::render::{ReportSink, Stage};

/// Blocks that can be live at once, if nobody says otherwise. Memory for them is taken at once, some 100 MiB.
const BLOCKS: u32 = 1 << 20;
/// Distinct stacks that can be stored, if nobody says otherwise.
const STACKS: u32 = (1 << 16) - Capacity::FIXED_STACKS;
/// Frames of a stack that the kernel gives, unless it says otherwise.
const STACK_LIMIT: u32 = 127;

/// Traces as `config` says and gives reports to `reports`, until all are made or an end is asked for.
///
/// # Errors
///
/// What is missing, and what to do about it. Nothing is left attached.
pub(super) fn run(
    config: &TraceConfig,
    kernel: KernelConfig,
    signals: &Signals,
    reports: &mut dyn ReportSink,
) -> anyhow::Result<()> {
    preflight::check_kernel_mode()?;
    let events = KernelEvents::read()?;
    if kernel.percpu && !events.has_percpu() {
        bail!("this kernel has no tracepoint percpu:percpu_alloc_percpu: leave out --percpu");
    }
    let facts = Facts {
        release: kernel_release(),
        percpu: kernel.percpu,
        top: config.top,
        view: config.view,
    };
    let settings = settings(config, kernel, events)?;
    let mut storages: Storages = storages();
    let [first, second, ..] = &mut storages;
    match Trace::start(first, &settings) {
        Ok(trace) => trace.report(&facts, config, signals, reports),
        Err(error) => {
            tracing::debug!("with functions that free many objects at once: {error:#}");
            let settings = KernelSettings {
                bulk: false,
                ..settings
            };
            let trace = Trace::start(second, &settings)?;
            tracing::warn!(
                "this kernel lets nobody trace its functions (fentry): objects that are freed many at once, as by \
                 kfree_rcu, stay outstanding"
            );
            trace.report(&facts, config, signals, reports)
        }
    }
}

fn settings(
    config: &TraceConfig,
    kernel: KernelConfig,
    events: KernelEvents,
) -> anyhow::Result<KernelSettings> {
    let entries = Kallsyms::read()?.interrupt_entries();
    Ok(KernelSettings {
        events,
        percpu: kernel.percpu,
        bulk: true,
        stacks: config.max_stacks.unwrap_or(STACKS),
        blocks: config.max_blocks.unwrap_or(BLOCKS),
        stack_limit: stack_limit(),
        sizes: config.sizes,
        sampling: config.sampling,
        calls: config.calls.map_or(CallTrace::Off, |calls| calls.told),
        interrupt_entries: entries.map_or((0, 0), |(start, end)| (start.get(), end.get())),
    })
}

/// Kernel mode, attached. Dropping it detaches.
struct Trace<'obj> {
    // Dropped first: programs must be gone before what they use.
    attached: Tracing,
    loaded: KernelTrace<'obj>,
    started: Instant,
    percpu: bool,
}

impl<'obj> Trace<'obj> {
    fn start(storage: &'obj mut Storage, settings: &KernelSettings) -> anyhow::Result<Self> {
        let refused = "cannot trace the kernel's allocations";
        let loaded = KernelTrace::load(storage, settings).context(refused)?;
        let attached = loaded.attach().context(refused)?;
        Ok(Self {
            attached,
            loaded,
            started: Instant::now(),
            percpu: settings.percpu,
        })
    }

    /// Makes reports until all are made or an end is asked for.
    fn report(
        self,
        facts: &Facts,
        config: &TraceConfig,
        signals: &Signals,
        reports: &mut dyn ReportSink,
    ) -> anyhow::Result<()> {
        tracing::info!(
            "tracing the kernel's allocations{}: {} programs; Ctrl-C ends it with a last report",
            if self.percpu { ", per-CPU ones too" } else { "" },
            self.attached.program_count(),
        );
        reports.stage(&Stage::Attached { pids: &[] })?;
        let mut calls = Calls::of(&self)?;
        let pause = if calls.is_some() { calls::PAUSE } else { TICK };
        let mut since = Since::default();
        let mut schedule = Schedule::begin(config, Instant::now());
        loop {
            let next = schedule.next(Instant::now());
            let stopping = follow(next, pause, signals, &mut || {
                if let Some(calls) = &mut calls {
                    calls.tell(&self, reports)?;
                }
                if signals.take_mark() {
                    since.mark(&self.snapshot()?);
                }
                reports.poll(&mut || self.vitals())
            })?;
            let ending = schedule.is_last() || stopping;
            if config.is_report_due(ending) {
                reports.report_pending(ending);
                reports.report(&Arc::new(self.report_of_now(&mut since, facts)?))?;
            }
            if ending {
                return Ok(());
            }
        }
    }

    fn report_of_now(&self, since: &mut Since, facts: &Facts) -> anyhow::Result<Report> {
        // In this order: what was old at the moment is in the totals.
        let moment = Moment::now();
        let snapshot = self.snapshot()?;
        let blocks = self.live_blocks(moment, &facts.view)?;
        let recently = since.recently(&snapshot, blocks.as_ref());
        // Modules and programs come and go: the symbols are those of now.
        let report = report(snapshot.clone(), &recently, &Kallsyms::read()?, facts);
        since.reported(&snapshot, blocks.as_ref(), |_| false);
        Ok(report)
    }

    fn vitals(&self) -> anyhow::Result<Vitals> {
        let vitals = collect::vitals(&self.loaded.recorded, self.started.elapsed());
        vitals.context("cannot read the counters")
    }

    fn snapshot(&self) -> anyhow::Result<Snapshot> {
        collect::take_kernel(&self.loaded, self.started.elapsed()).context("cannot read what was recorded")
    }

    /// The blocks of a moment by age, if ages are looked at.
    fn live_blocks(&self, moment: Moment, view: &View) -> anyhow::Result<Option<LiveBlocks>> {
        let Some(older) = view.older else {
            return Ok(None);
        };
        let list = view.list.map(|limits| ListRequest {
            limits,
            ended: HashSet::new(),
        });
        let table = BlockTable::of_kernel_mode(&self.loaded);
        let blocks = table.and_then(|table| LiveBlocks::read(&table, moment, older, list));
        blocks.map(Some).context("cannot read the block table")
    }
}

/// What is needed to tell calls.
struct Calls {
    call_tracer: CallTracer,
    /// Those of the beginning.
    symbols: Kallsyms,
}

impl Calls {
    /// `None` where calls are not told.
    fn of(trace: &Trace<'_>) -> anyhow::Result<Option<Self>> {
        let queue = CallQueue::of_kernel_mode(&trace.loaded).context("cannot open the queue of calls")?;
        let calls = queue.map(|queue| {
            Ok(Self {
                call_tracer: CallTracer::new(queue, trace.started),
                symbols: Kallsyms::read()?,
            })
        });
        calls.transpose()
    }

    fn tell(&mut self, trace: &Trace<'_>, reports: &mut dyn ReportSink) -> anyhow::Result<()> {
        let symbols = &self.symbols;
        let who = |record| caller(stack_of_kernel_mode(&trace.loaded, record), symbols, trace.percpu);
        self.call_tracer.trace_all(reports, |event| event.process, who)?;
        self.call_tracer
            .warn(|| Counters::read(&trace.loaded.recorded.counters))
    }
}

/// Waits until `deadline`, doing `meanwhile` behind each pause. Returns whether an end was asked for before.
fn follow(
    deadline: Instant,
    pause: Duration,
    signals: &Signals,
    meanwhile: &mut dyn FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    loop {
        let next = deadline.min(Instant::now() + pause);
        let stopping = wait(next, signals);
        meanwhile()?;
        if stopping || next == deadline {
            return Ok(stopping);
        }
    }
}

/// Sleeps until `deadline`. Returns whether an end was asked for before.
fn wait(deadline: Instant, signals: &Signals) -> bool {
    loop {
        if signals.wants_end() {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left == Duration::ZERO {
            return false;
        }
        thread::sleep(left.min(TICK));
    }
}

fn stack_limit() -> u32 {
    let text = fs::read_to_string("/proc/sys/kernel/perf_event_max_stack").unwrap_or_default();
    text.trim().parse().unwrap_or(STACK_LIMIT)
}

fn kernel_release() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}
