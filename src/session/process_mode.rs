//! Traces processes from start to end: the only file that knows the order of its steps.
//!
//! Tables are built and published before the first probe is attached; probes are detached before anything
//! else is taken down. Parsing, formatting and map access are elsewhere.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use unwind_tables::addr::Avma;

use super::attempts::{Storages, storages};
use super::calls::CallTracer;
use super::config::{TraceConfig, View};
use super::live::Live;
use super::membership::Membership;
use super::overhead::Meter;
use super::peak::PeakWatch;
use super::phases::Phases;
use super::prepared::prepare;
use super::python_names::PythonNames;
use super::reports::{Traced, make_reports};
use super::schedule::TICK;
use super::signals::Signals;
use super::since::Since;
use super::tables::debug_roots;
use super::verdict::Watch;
use super::{lack, preload, program, triggers};
use crate::base::open_files;
use crate::bpf::collect::{self, CallQueue};
use crate::bpf::preflight;
use crate::process::launch::{Relay, Running, StoppedProgram};
use crate::process::{ModuleId, Target};
use crate::symbolize::debuginfod::{Debuginfod, Patience};
use crate::symbolize::{PerfMap, Symbolizer};
use leak_report::model::{InstanceEnd, Module, Report, Snapshot};
use leak_report::render::{ReportSink, Stage};

/// Traces processes as [`run`](super::run) does.
pub(super) fn run(
    config: &TraceConfig,
    signals: &Signals,
    reports: &mut dyn ReportSink,
) -> anyhow::Result<u8> {
    preflight::check()?;
    let later = match &config.schedule.start_when[..] {
        [] => None,
        _ => Some(triggers::wait(config, signals, reports)?),
    };
    let config = later.as_ref().unwrap_or(config);
    let mut storages = storages();
    let mut session = Session::start_with(&mut storages, config, &signals.relay, &mut |stage| {
        reports.stage(stage)
    })?;
    make_reports(&mut session, config, signals, reports)?;
    session.end_of_program(reports)
}

/// A trace of processes. Dropping it detaches.
pub struct Session<'obj> {
    /// Measures the cost of tracing; `None` with `--mmap` and `--faults`.
    pub(super) meter: Option<Meter>,
    /// Looks for the peak; `None` with `--mmap` and `--faults`.
    pub(super) peak: Option<PeakWatch>,
    pub(super) live: Live<'obj>,
    pub(super) symbolizer: Symbolizer,
    pub(super) facts: HashMap<ModuleId, Module>,
    /// Perf maps, which name code generated at run time, by instance, as of the last report.
    pub(super) perf_maps: HashMap<u32, PerfMap>,
    pub(super) python_names: PythonNames,
    /// Program that the session started.
    pub(super) program: Option<Running>,
    /// Set if processes were selected by their properties.
    pub(super) membership: Option<Membership>,
    pub(super) since: Since,
    /// Blocks that a verdict has called lost.
    pub(super) watch: Watch,
    /// Set if calls are traced one by one.
    pub(super) call_tracer: Option<CallTracer>,
}

impl<'obj> Session<'obj> {
    /// Opens the targets or starts the program to trace, builds and publishes the tables, and attaches.
    pub fn start(storages: &'obj mut Storages, config: &TraceConfig) -> anyhow::Result<Self> {
        Self::start_with(storages, config, &Arc::default(), &mut |_| Ok(()))
    }

    /// Like [`Session::start`], but announces each stage to `on_stage`, and connects `relay` to a program
    /// that it starts.
    pub(super) fn start_with(
        storages: &'obj mut Storages,
        config: &TraceConfig,
        relay: &Arc<Relay>,
        on_stage: &mut dyn FnMut(&Stage<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let servers = config
            .stacks
            .debuginfod
            .clone()
            .map(Debuginfod::start)
            .transpose()?;
        // Dropped, and so killed, if anything fails from here on.
        let stopped = match &config.targets.program[..] {
            [] => None,
            words => {
                let preloaded = config.targets.preload.then(preload::environment).transpose()?;
                Some(program::start_stopped(
                    words,
                    preloaded,
                    config.targets.streams,
                    relay,
                )?)
            }
        };
        let started = stopped.as_ref().map(StoppedProgram::pid);
        if let Some(pid) = started {
            let words: Vec<_> = config
                .targets
                .program
                .iter()
                .map(|word| word.to_string_lossy())
                .collect();
            let command = &words.join(" ");
            on_stage(&Stage::Started { command, pid })?;
        }
        // Only after the program is started, which would inherit both.
        open_files::raise_limit();
        lack::survive();
        let prepared = prepare(config, started)?;
        let symbolizer = Symbolizer::new(debug_roots(&prepared.targets)).with_servers(servers);
        let pids: Vec<_> = prepared.targets.iter().map(Target::pid).collect();
        let mut live = Live::start(storages, config, prepared)?;
        let membership = Membership::of(config, &mut live)?;
        on_stage(&Stage::Attached { pids: &pids })?;
        if stopped.is_some() {
            on_stage(&Stage::Released)?;
        }
        let program = stopped.map(StoppedProgram::release).transpose()?;
        let queue = CallQueue::of(&live.kernel).context("cannot open the queue of calls")?;
        Ok(Self {
            meter: Meter::start(&live, config.count.max_overhead)?,
            peak: PeakWatch::start(&live)?,
            call_tracer: queue.map(|queue| CallTracer::new(queue, live.started)),
            live,
            program,
            membership,
            symbolizer,
            facts: HashMap::new(),
            perf_maps: HashMap::new(),
            python_names: PythonNames::default(),
            since: Since::default(),
            watch: Watch::default(),
        })
    }

    /// Follows the processes until `deadline`, and marks the baseline if that is requested. Returns whether
    /// the trace ended before: all processes have ended, or the end was requested.
    pub fn follow(&mut self, deadline: Instant, signals: &Signals) -> anyhow::Result<bool> {
        self.follow_with(deadline, signals, &mut |_| Ok(()))
    }

    /// Like [`Session::follow`], but calls `on_tick` several times a second.
    pub(crate) fn follow_with(
        &mut self,
        deadline: Instant,
        signals: &Signals,
        on_tick: &mut dyn FnMut(&Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let mut wait = TICK;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.react(left.min(wait), signals)? {
                ControlFlow::Break(()) => return Ok(true),
                ControlFlow::Continue(next) => wait = next,
            }
            // These take a while, so they come after the work that a new program waits for.
            self.live.give_back_when_due()?;
            self.live.forget_when_due()?;
            if signals.take_mark() {
                self.since.mark(&self.snapshot()?);
            }
            on_tick(self)?;
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Waits for events at most this long, and does what they and due work ask for, but removes nothing that
    /// a report may read. Returns how long to wait at most for the next ones, or that the trace ends: all
    /// processes have ended, or the end was requested.
    pub(super) fn react(
        &mut self,
        wait: Duration,
        signals: &Signals,
    ) -> anyhow::Result<ControlFlow<(), Duration>> {
        let live = &mut self.live;
        let events = live.events.wait(wait).context("cannot read events")?;
        if signals.wants_end() {
            return Ok(ControlFlow::Break(()));
        }
        live.observe()?;
        live.react(&events)?;
        live.follow_sharers()?;
        live.follow_accounts()?;
        if let Some(meter) = &self.meter {
            meter.apply_decision(live);
        }
        if let Some(membership) = &mut self.membership {
            membership.follow(live, &events)?;
        }
        if !live.roster.is_any_running() || live.stops.is_at_end() {
            return Ok(ControlFlow::Break(()));
        }
        let next_reload = live.reload_due()?;
        let next = live.finish_some_walks()?.or(next_reload);
        Ok(ControlFlow::Continue(next.map_or(TICK, |next| next.min(TICK))))
    }

    /// Announces the end of the program that was started, if it has ended. Returns its exit status as shells
    /// report it; 0 while it runs, or if there is none.
    pub(super) fn end_of_program(&self, reports: &mut dyn ReportSink) -> anyhow::Result<u8> {
        let Some(program) = &self.program else {
            return Ok(0);
        };
        let mut given = self.live.roster.all().filter(|process| process.is_given);
        // The kernel side sees the exit before this process, the parent, is notified: only then is it worth
        // waiting.
        let has_exited = given.any(|process| {
            matches!(
                process.ended,
                Some(InstanceEnd::Exited | InstanceEnd::OutOfMemory)
            )
        });
        let end = if has_exited || self.live.stops.is_at_end() {
            program.wait()
        } else {
            program.end()
        };
        match end {
            Some(end) => {
                reports.stage(&Stage::Ended)?;
                Ok(end.status())
            }
            None => {
                tracing::info!("the program runs on");
                Ok(0)
            }
        }
    }

    /// Cost of the traps alone as a share of one CPU, if that exceeds the limit on the cost.
    pub fn cost_above_limit(&self) -> Option<f64> {
        let overhead = self.meter.as_ref()?.overhead(self.live.attach.probes());
        overhead.governed?.floor
    }

    /// Reads everything recorded so far.
    pub fn snapshot(&self) -> anyhow::Result<Snapshot> {
        collect::take(&self.live.kernel, self.live.started.elapsed()).context("cannot read what was recorded")
    }

    /// Ranges mapped since the attach (`--mmap`), each with its instance, ascending.
    pub fn regions(&mut self) -> anyhow::Result<Vec<(u32, Range<Avma>)>> {
        self.live.settle_accounts()?;
        Ok(self.live.accounting.mapped())
    }

    /// Number of pieces (`--mmap`) found unmapped although no call was seen that unmapped them.
    pub fn region_ends_not_seen(&self) -> u64 {
        self.live.accounting.ends_not_seen()
    }

    /// Makes a report of everything recorded so far, and follows the processes meanwhile.
    pub fn report(&mut self, view: &View, top: usize, signals: &Signals) -> anyhow::Result<Report> {
        self.report_with(view, top, signals, None)
    }

    /// Makes the last report. Detaches as soon as everything is read, before names are resolved, which can
    /// take seconds. (Not earlier: the probes of allocations and frees are not detached at the same moment.)
    pub fn last_report(&mut self, view: &View, top: usize, signals: &Signals) -> anyhow::Result<Report> {
        // After a signal has requested the end, only a second one can cut this short, and that one ends at
        // once.
        let patience = match signals.wants_end() {
            true => Patience::Long,
            false => Patience::Until(Arc::clone(&signals.stop)),
        };
        self.report_with(view, top, signals, Some(patience))
    }

    /// Makes a report; the last one if `last` says how long servers are waited for.
    fn report_with(
        &mut self,
        view: &View,
        top: usize,
        signals: &Signals,
        last: Option<Patience>,
    ) -> anyhow::Result<Report> {
        let mut phases = Phases::begin();
        let quiet = self.quiet(view, last.is_some(), signals)?;
        phases.end("settle");
        let reading = self.read(quiet, signals)?;
        phases.end("read");
        if last.is_some() {
            self.live.detach();
            self.live.let_go()?;
            phases.end("detach");
        }
        self.symbolizer.begin(last.unwrap_or(Patience::None));
        let report = self.describe(reading, top);
        phases.end("name");
        tracing::debug!("report made in steps: {phases}");
        Ok(report)
    }
}

impl Traced for Session<'_> {
    fn follow_until(
        &mut self,
        deadline: Instant,
        signals: &Signals,
        reports: &mut dyn ReportSink,
    ) -> anyhow::Result<bool> {
        self.follow_calls(deadline, signals, reports)
    }

    fn due_report(
        &mut self,
        config: &TraceConfig,
        signals: &Signals,
        ending: bool,
        reports: &mut dyn ReportSink,
    ) -> anyhow::Result<Option<Report>> {
        let report = match (config.is_report_due(ending), ending) {
            (true, false) => Some(self.report(&config.shown.view, config.shown.top, signals)?),
            (true, true) => Some(self.last_report(&config.shown.view, config.shown.top, signals)?),
            (false, true) => {
                self.live.detach();
                self.live.let_go()?;
                None
            }
            (false, false) => None,
        };
        // Calls queued while the report was made are written before it.
        self.trace_calls(reports)?;
        Ok(report)
    }

    fn running(&self) -> Vec<&Target> {
        let running = self.live.roster.running();
        running.filter_map(|process| process.target.as_ref()).collect()
    }

    fn outstanding_bytes(&self) -> anyhow::Result<u64> {
        Ok(self.vitals()?.live.bytes)
    }
}
