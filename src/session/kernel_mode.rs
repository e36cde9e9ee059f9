//! Traces the kernel's own allocations from start to end, as `session` does for processes.

use std::collections::HashSet;
use std::fs;
use std::slice;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::Signals;
use super::attempts;
use super::attempts::{Storages, storages};
use super::calls::{self, CallTracer};
use super::kernel_report::{Facts, caller, report};
use super::lack;
use super::reports::{Traced, make_reports};
use super::schedule::TICK;
use super::since::Since;
use super::{KernelConfig, TraceConfig, View};
use crate::bpf::collect::{
    self, BlockTable, CallQueue, Counters, ListRequest, LiveBlocks, Moment, stack_of_kernel_mode,
};
use crate::bpf::preflight;
use crate::bpf::{self, Capacity, KernelEvents, KernelSettings, KernelTrace, Storage, Tolerance, Tracing};
use crate::process::Target;
use crate::symbolize::Kallsyms;
use leak_report::model::{CallTrace, Report};
use leak_report::model::{Snapshot, TracePart, Vitals};
use leak_report::render::{ReportSink, Stage};

/// Default maximum of outstanding blocks. Their memory is allocated at the start, some 100 MiB.
const BLOCKS: u32 = 1 << 20;
/// Default maximum of distinct stacks.
const STACKS: u32 = (1 << 16) - Capacity::FIXED_STACKS;
/// Maximum frames of a stack if the kernel's limit cannot be read.
const STACK_LIMIT: u32 = 127;

/// Traces as `config` says and sends reports to `reports`, until all are made or the end is requested.
///
/// # Errors
///
/// Names what is missing and the remedy. Nothing stays attached.
pub(super) fn run(
    config: &TraceConfig,
    kernel: KernelConfig,
    signals: &Signals,
    reports: &mut dyn ReportSink,
) -> anyhow::Result<()> {
    preflight::check_kernel_mode()?;
    lack::survive();
    let events = KernelEvents::read()?;
    if kernel.percpu && !events.has_percpu() {
        bail!("this kernel has no tracepoint percpu:percpu_alloc_percpu: leave out --percpu");
    }
    let facts = Facts {
        release: bpf::release(),
        percpu: kernel.percpu,
        top: config.shown.top,
        view: config.shown.view,
        missing: Vec::new(),
    };
    let settings = settings(config, kernel, events)?;
    let mut storages: Storages = storages();
    let mut trace = start(&mut storages, config, &settings, facts)?;
    tracing::info!(
        "tracing the kernel's allocations{}: {} programs; Ctrl-C ends it with a last report",
        if kernel.percpu { ", per-CPU ones too" } else { "" },
        trace.attached.program_count(),
    );
    reports.stage(&Stage::Attached { pids: &[] })?;
    make_reports(&mut trace, config, signals, reports)
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
        stacks: config.limits.stacks.unwrap_or(STACKS),
        blocks: config.limits.blocks.unwrap_or(BLOCKS),
        stack_limit: stack_limit(),
        sizes: config.count.sizes,
        sampling: config.count.sampling,
        calls: config.shown.calls.map_or(CallTrace::Off, |calls| calls.trace),
        interrupt_entries: entries.map_or((0, 0), |(start, end)| (start.get(), end.get())),
    })
}

/// An attached trace of the kernel. Dropping it detaches.
struct Trace<'obj> {
    // First, so dropped first: programs must be detached before what they use is dropped.
    attached: Tracing,
    loaded: KernelTrace<'obj>,
    started: Instant,
    facts: Facts,
    calls: Option<Calls>,
    since: Since,
}

/// Loads and attaches all programs that the kernel accepts.
fn start<'obj>(
    storages: &'obj mut Storages,
    config: &TraceConfig,
    settings: &KernelSettings,
    facts: Facts,
) -> anyhow::Result<Trace<'obj>> {
    let mut storages = storages.iter_mut();
    let mut tolerance = Tolerance::breaking(&config.tuning.broken);
    let started = Trace::start(&mut storages, settings, &mut tolerance).or_else(|error| {
        tracing::debug!("with functions that free many objects at once: {error:#}");
        let reason = "its functions cannot be traced (fentry)".to_owned();
        match tolerance.lacks(TracePart::KernelBulk) {
            true => Err(error),
            false => {
                tolerance.leave_out(TracePart::KernelBulk, "kernel_bulk_free", reason);
                Trace::start(&mut storages, settings, &mut tolerance)
            }
        }
    });
    let (loaded, attached) = started.map_err(|error| attempts::explain(error, ""))?;
    attempts::warn_of(tolerance.missing());
    let started = Instant::now();
    Ok(Trace {
        calls: Calls::of(&loaded, started)?,
        attached,
        loaded,
        started,
        facts: Facts {
            missing: tolerance.missing().to_vec(),
            ..facts
        },
        since: Since::default(),
    })
}

impl<'obj> Trace<'obj> {
    fn start(
        storages: &mut slice::IterMut<'obj, Storage>,
        settings: &KernelSettings,
        tolerance: &mut Tolerance,
    ) -> anyhow::Result<(KernelTrace<'obj>, Tracing)> {
        let refused = "cannot trace the kernel's allocations";
        let loaded = KernelTrace::load_tolerantly(storages, settings, tolerance).context(refused)?;
        let attached = loaded.attach().context(refused)?;
        Ok((loaded, attached))
    }

    fn report(&mut self) -> anyhow::Result<Report> {
        // The moment comes before the snapshot, so that every block that is old by then is in the totals.
        let moment = Moment::now();
        let snapshot = self.snapshot()?;
        let blocks = self.live_blocks(moment, &self.facts.view)?;
        let recently = self.since.recently(&snapshot, blocks.as_ref());
        // Read again for each report, because kernel modules and BPF programs are loaded and unloaded.
        let report = report(snapshot.clone(), &recently, &Kallsyms::read()?, &self.facts);
        self.since.reported(&snapshot, blocks.as_ref(), |_| false);
        Ok(report)
    }

    /// Sends queued calls to `reports`.
    fn trace_calls(&mut self, reports: &mut dyn ReportSink) -> anyhow::Result<()> {
        let Some(Calls { call_tracer, symbols }) = &mut self.calls else {
            return Ok(());
        };
        let loaded = &self.loaded;
        let caller_of = |record| caller(stack_of_kernel_mode(loaded, record), symbols, self.facts.percpu);
        call_tracer.trace_all(reports, |event| event.process, caller_of)?;
        call_tracer.warn(|| Counters::read(&loaded.recorded.counters))
    }

    fn vitals(&self) -> anyhow::Result<Vitals> {
        let vitals = collect::vitals(&self.loaded.recorded, self.started.elapsed());
        vitals.context("cannot read the counters")
    }

    fn snapshot(&self) -> anyhow::Result<Snapshot> {
        collect::take_kernel(&self.loaded, self.started.elapsed()).context("cannot read what was recorded")
    }

    /// Reads the blocks of a moment by age; `None` if the view has no age limit.
    fn live_blocks(&self, moment: Moment, view: &View) -> anyhow::Result<Option<LiveBlocks>> {
        let Some(older) = view.older else {
            return Ok(None);
        };
        let list = view.list.map(|limits| ListRequest {
            limits,
            ended: HashSet::new(),
        });
        let table = BlockTable::of_kernel_mode(&self.loaded);
        let blocks = table.and_then(|table| LiveBlocks::read(&table, moment, older, list, None));
        blocks.map(Some).context("cannot read the block table")
    }
}

impl Traced for Trace<'_> {
    fn follow_until(
        &mut self,
        deadline: Instant,
        signals: &Signals,
        reports: &mut dyn ReportSink,
    ) -> anyhow::Result<bool> {
        let pause = if self.calls.is_some() { calls::PAUSE } else { TICK };
        loop {
            let next = deadline.min(Instant::now() + pause);
            let stopping = wait(next, signals);
            self.trace_calls(reports)?;
            if signals.take_mark() {
                self.since.mark(&self.snapshot()?);
            }
            reports.poll(&mut || self.vitals())?;
            if stopping || next == deadline {
                return Ok(stopping);
            }
        }
    }

    fn due_report(
        &mut self,
        config: &TraceConfig,
        _: &Signals,
        ending: bool,
        _: &mut dyn ReportSink,
    ) -> anyhow::Result<Option<Report>> {
        config.is_report_due(ending).then(|| self.report()).transpose()
    }

    fn running(&self) -> Vec<&Target> {
        Vec::new()
    }

    fn outstanding_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.vitals()?.live.bytes)
    }
}

/// State for tracing calls one by one.
struct Calls {
    call_tracer: CallTracer,
    /// Symbols as of the start.
    symbols: Kallsyms,
}

impl Calls {
    /// Returns `None` if calls are not traced one by one.
    fn of(loaded: &KernelTrace<'_>, started: Instant) -> anyhow::Result<Option<Self>> {
        let queue = CallQueue::of_kernel_mode(loaded).context("cannot open the queue of calls")?;
        let calls = queue.map(|queue| {
            Ok(Self {
                call_tracer: CallTracer::new(queue, started),
                symbols: Kallsyms::read()?,
            })
        });
        calls.transpose()
    }
}

/// Sleeps until `deadline`. Returns whether the end was requested before.
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
