//! A trace from start to end: the only file that knows the order of things.
//!
//! Tables are built and published before the first probe is attached; probes are detached before anything else
//! is taken down. Parsing, formatting and map access are elsewhere.

mod ages;
mod attachments;
mod calls;
mod config;
mod copies;
mod describe;
mod hook;
mod kernel_mode;
mod kernel_report;
mod lifecycle;
mod live;
mod memory;
mod overhead;
mod phases;
mod probes;
mod process;
mod program;
mod regions;
mod reload;
mod schedule;
mod signals;
mod since;
mod tables;
#[cfg(test)]
mod tests;
mod unreadable;
mod vitals;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use unwind_tables::addr::Avma;
use unwind_tables::walk::Unwind;

use crate::bpf::collect::{self, CallQueue, Moment};
use crate::bpf::preflight;
use crate::bpf::{AttachPath, Storage, Walk};
use crate::process::launch::{Held, Relay, Running};
use crate::process::{History, MappedCode, Mappings, ModuleId, Modules, Target};
use crate::symbolize::debuginfod::{Debuginfod, Patience};
use crate::symbolize::{PerfMap, Symbolizer};
use calls::CallTracer;
pub use config::{KernelConfig, MaxOverhead, TraceConfig, View};
use leak_report::model::{CheckedWalks, InstanceEnd, Snapshot};
use leak_report::model::{Module, Report};
use leak_report::render::{ReportSink, Stage};
use live::{Live, Prepared};
use overhead::Meter;
use phases::Phases;
use probes::AllocatorProbes;
use schedule::Schedule;
pub use signals::Signals;
use since::Since;
use tables::ModuleTables;

/// Storage for each way to attach that may have to be tried.
pub type Storages = [Storage; AttachPath::ALL.len()];

/// Empty storage for a session, which borrows it.
pub fn storages() -> Storages {
    [const { Storage::uninit() }; AttachPath::ALL.len()]
}

/// How long the session sleeps at most before it looks at the target and at signals again.
const TICK: Duration = Duration::from_millis(100);

/// Traces as `config` says and gives reports to `reports`, until all are made, `signals` ask for an end, or
/// the target ends. Returns the status of the program that it started, if that has ended; else 0.
///
/// # Errors
///
/// What went wrong, on which object, and what to do about it. Nothing is left attached.
pub fn run(config: &TraceConfig, signals: &Signals, reports: &mut dyn ReportSink) -> anyhow::Result<u8> {
    if let Some(kernel) = config.kernel {
        return kernel_mode::run(config, kernel, signals, reports).map(|()| 0);
    }
    preflight::check()?;
    let mut storages = storages();
    let mut session = Session::start_with(&mut storages, config, &signals.relay, &mut |stage| {
        reports.stage(stage)
    })?;
    make_reports(&mut session, config, signals, reports)?;
    session.end_of_program(reports)
}

/// What reports are made of: processes, or the kernel.
trait Traced {
    /// Follows it until `deadline`, giving calls to `reports` as they come. Returns whether the end came before.
    fn follow_until(
        &mut self,
        deadline: Instant,
        signals: &Signals,
        reports: &mut dyn ReportSink,
    ) -> anyhow::Result<bool>;

    /// The report that is due, if reports are made now. At the end, what is traced is left alone in any case.
    fn due_report(
        &mut self,
        config: &TraceConfig,
        signals: &Signals,
        ending: bool,
        reports: &mut dyn ReportSink,
    ) -> anyhow::Result<Option<Report>>;
}

/// Makes reports until all are made, an end is asked for, or there is nothing to trace any more.
fn make_reports(
    traced: &mut impl Traced,
    config: &TraceConfig,
    signals: &Signals,
    reports: &mut dyn ReportSink,
) -> anyhow::Result<()> {
    let mut schedule = Schedule::begin(config, Instant::now());
    loop {
        let next = schedule.next(Instant::now());
        let stopping = traced.follow_until(next, signals, reports)?;
        let ending = schedule.is_last() || stopping;
        if config.is_report_due(ending) {
            reports.report_pending(ending);
        }
        if let Some(report) = traced.due_report(config, signals, ending, reports)? {
            reports.report(&Arc::new(report))?;
        }
        if ending {
            return Ok(());
        }
    }
}

/// Processes that are being traced. Dropping it detaches.
pub struct Session<'obj> {
    /// What tracing costs; not with `--mmap`.
    meter: Option<Meter>,
    live: Live<'obj>,
    symbolizer: Symbolizer,
    facts: HashMap<ModuleId, Module>,
    /// What programs call the code that they generated, by instance, as of the last report.
    perf_maps: HashMap<u32, PerfMap>,
    /// The program that was started.
    program: Option<Running>,
    since: Since,
    /// Where calls are told one by one.
    call_tracer: Option<CallTracer>,
}

impl<'obj> Session<'obj> {
    /// Opens the targets, or starts the program that is one, builds and publishes their tables, attaches.
    ///
    /// # Errors
    ///
    /// As [`run`].
    pub fn start(storages: &'obj mut Storages, config: &TraceConfig) -> anyhow::Result<Self> {
        Self::start_with(storages, config, &Arc::default(), &mut |_| Ok(()))
    }

    /// The same, telling `say` how far it has come. A program that is started is at the end of `relay`.
    fn start_with(
        storages: &'obj mut Storages,
        config: &TraceConfig,
        relay: &Arc<Relay>,
        say: &mut dyn FnMut(&Stage<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let servers = config.debuginfod.clone().map(Debuginfod::start).transpose()?;
        // Killed if anything fails from here on.
        let held = match &config.program[..] {
            [] => None,
            words => Some(program::hold(words, config.streams, relay)?),
        };
        let started = held.as_ref().map(Held::pid);
        if let Some(pid) = started {
            let words: Vec<_> = config.program.iter().map(|word| word.to_string_lossy()).collect();
            let command = &words.join(" ");
            say(&Stage::Started { command, pid })?;
        }
        // Not before a program is started: it would be allowed more, too.
        allow_open_files();
        let prepared = prepare(config, started)?;
        let symbolizer = Symbolizer::new(debug_roots(&prepared.targets)).with_servers(servers);
        let live = Live::start(storages, config, prepared)?;
        let pids: Vec<_> = config.pids.iter().copied().chain(started).collect();
        say(&Stage::Attached { pids: &pids })?;
        if held.is_some() {
            say(&Stage::Released)?;
        }
        let program = held.map(Held::release).transpose()?;
        let queue = CallQueue::of(&live.kernel).context("cannot open the queue of calls")?;
        Ok(Self {
            meter: Meter::start(&live, config.max_overhead)?,
            call_tracer: queue.map(|queue| CallTracer::new(queue, live.started)),
            live,
            program,
            symbolizer,
            facts: HashMap::new(),
            perf_maps: HashMap::new(),
            since: Since::default(),
        })
    }

    /// Follows the processes until `deadline`. Returns whether the end came before: all have ended, or it was
    /// asked for. A mark that is asked for is made.
    ///
    /// # Errors
    ///
    /// The kernel side cannot be read or written any more.
    pub fn follow(&mut self, deadline: Instant, signals: &Signals) -> anyhow::Result<bool> {
        self.follow_with(deadline, signals, &mut |_| Ok(()))
    }

    /// The same, calling `meanwhile` several times a second.
    fn follow_with(
        &mut self,
        deadline: Instant,
        signals: &Signals,
        meanwhile: &mut dyn FnMut(&Self) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let mut next_reload: Option<Duration> = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let live = &mut self.live;
            let events = live
                .events
                .wait(left.min(TICK).min(next_reload.unwrap_or(TICK)))
                .context("cannot read events")?;
            if signals.wants_end() {
                return Ok(true);
            }
            live.observe()?;
            live.react(&events)?;
            live.follow_regions()?;
            if !live.any_process_running() {
                return Ok(true);
            }
            next_reload = live.reload_due()?;
            if signals.take_mark() {
                self.since.mark(&self.snapshot()?);
            }
            meanwhile(self)?;
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Says whether the program that was started has ended. Returns its status, as shells have it; 0 while it runs, or
    /// if there is none.
    fn end_of_program(&self, reports: &mut dyn ReportSink) -> anyhow::Result<u8> {
        let Some(program) = &self.program else {
            return Ok(0);
        };
        let mut given = self.live.processes.values().filter(|process| process.is_given);
        // Its end is seen before its parent, which is this process, is told.
        let has_exited = given.any(|process| process.ended == Some(InstanceEnd::Exited));
        let end = if has_exited { program.wait() } else { program.end() };
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

    /// Everything recorded so far.
    ///
    /// # Errors
    ///
    /// The kernel side cannot be read.
    pub fn snapshot(&self) -> anyhow::Result<Snapshot> {
        collect::take(&self.live.kernel, self.live.started.elapsed()).context("cannot read what was recorded")
    }

    /// With `--mmap`: all that is mapped since the attach, with the instance that it belongs to, ascending.
    ///
    /// # Errors
    ///
    /// The kernel side cannot be read.
    pub fn regions(&mut self) -> anyhow::Result<Vec<(u32, Range<Avma>)>> {
        self.live.settle_regions()?;
        Ok(self.live.all_regions())
    }

    /// With `--mmap`: pieces that turned out not to be mapped though no call was seen that unmapped them.
    pub fn region_ends_not_seen(&self) -> u64 {
        let ledger = self.live.regions.as_ref();
        ledger.map_or(0, regions::Ledger::ends_not_seen)
    }

    /// Reads what programs say of the code that they generated; what an ended one said last stays.
    fn read_perf_maps(&mut self) {
        let generates = |mappings: &Mappings| {
            let mut entries = mappings.entries().iter();
            entries.any(|entry| entry.code == MappedCode::Anonymous)
        };
        for (&number, process) in &self.live.processes {
            let Some(target) = process.target.as_ref().filter(|_| generates(&process.mappings)) else {
                continue;
            };
            let root = PathBuf::from(format!("/proc/{}/root", target.pid()));
            let map = target
                .user()
                .and_then(|user| PerfMap::read(&root, target.own_pid(), user));
            if let Ok(map) = map {
                self.perf_maps.insert(number, map);
            }
        }
    }

    /// A report of everything recorded so far. While it is made, the processes are followed.
    ///
    /// # Errors
    ///
    /// The kernel side cannot be read or written.
    pub fn report(&mut self, view: &View, top: usize, signals: &Signals) -> anyhow::Result<Report> {
        self.report_with(view, top, signals, Patience::None, |_| ())
    }

    /// The same for the last time: the target is left alone as soon as everything is read, before names are found for
    /// it, which can take seconds. (Not earlier: allocations and frees are not detached in one moment.)
    ///
    /// # Errors
    ///
    /// As [`Session::report`].
    pub fn last_report(&mut self, view: &View, top: usize, signals: &Signals) -> anyhow::Result<Report> {
        // An end that was asked for by a signal is so already; a second one ends at once.
        let patience = match signals.wants_end() {
            true => Patience::Long,
            false => Patience::Until(Arc::clone(&signals.stop)),
        };
        self.report_with(view, top, signals, patience, Live::detach)
    }

    fn report_with(
        &mut self,
        view: &View,
        top: usize,
        signals: &Signals,
        patience: Patience,
        then: impl FnOnce(&mut Live<'obj>),
    ) -> anyhow::Result<Report> {
        self.live.settle_regions()?;
        // In this order: what was old at the moment is in the totals.
        let moment = Moment::now();
        let mut snapshot = self.snapshot()?;
        let overhead = self.meter.as_ref().map(|meter| meter.overhead(&self.live.probes));
        let blocks = self.read_blocks(moment, view, signals)?;
        // Stacks may be of instances that began, and in mappings that came, since they were looked at.
        self.live.observe()?;
        self.live.reload_all()?;
        self.live.forget_ended()?;
        then(&mut self.live);
        self.symbolizer.begin(patience);
        self.live.add_regions(&mut snapshot, &mut self.symbolizer);
        self.live.describe_memory(&snapshot);
        if snapshot.events.probe_hits == 0 {
            tracing::warn!("{}", self.live.nothing_seen());
        }
        if self.live.checks_walks {
            let CheckedWalks {
                checked,
                recalled,
                different,
            } = snapshot.walks;
            tracing::info!("walks checked: {checked}, of which {recalled} recalled; different: {different}");
        }
        self.read_perf_maps();
        let origin = describe::Processes {
            all: &self.live.processes,
            modules: &self.live.modules,
            tables: &self.live.tables,
            allocators: self.live.probes.catalog(),
            symbolizer: &mut self.symbolizer,
            facts: &mut self.facts,
            perf_maps: &self.perf_maps,
            unknown: History::default(),
        };
        let unwind = match self.live.walk {
            Walk::Fp => Unwind::Fp,
            // Without a walk there are no stacks for the word to be about.
            Walk::Dwarf | Walk::Off | Walk::Kernel => Unwind::Dwarf,
        };
        let recently = self.since.recently(&snapshot, blocks.as_ref());
        let shown = describe::Shown { view, top, unwind };
        let report = describe::report(origin, &snapshot, &recently, shown, |_| ());
        let processes = &self.live.processes;
        let has_ended = |instance| {
            processes
                .get(&instance)
                .is_some_and(|process| process.ended.is_some())
        };
        self.since.reported(&snapshot, blocks.as_ref(), has_ended);
        self.symbolizer.release();
        self.live.modules.release();
        let targets = self.live.processes.values();
        Ok(Report {
            targets: targets.map(|process| process.facts.clone()).collect(),
            overhead,
            ..report
        })
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
            (true, false) => Some(self.report(&config.view, config.top, signals)?),
            (true, true) => Some(self.last_report(&config.view, config.top, signals)?),
            (false, true) => {
                self.live.detach();
                None
            }
            (false, false) => None,
        };
        // Calls that came while it was made are written before it.
        self.trace_calls(reports)?;
        Ok(report)
    }
}

/// Everything that can be made ready before anything is loaded.
fn prepare(config: &TraceConfig, started: Option<u32>) -> anyhow::Result<Prepared> {
    let mut modules = Modules::new();
    let mut phases = Phases::begin();
    let targets = config
        .pids
        .iter()
        .copied()
        .chain(started)
        .map(|pid| Ok(Target::open(pid)?))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mappings = targets
        .iter()
        .map(|target| read_mappings(target, &mut modules))
        .collect::<anyhow::Result<Vec<_>>>()?;
    phases.end("read mappings");
    let built = ModuleTables::default().build(&mappings, &modules, config.walk, |_| true);
    phases.end("build tables");
    let mut probes = AllocatorProbes::new(config.allocators.clone(), config.first_instructions);
    let problems = probes.look_at(modules.iter(), &modules);
    phases.end("find probes");
    let mapped = || modules.iter().filter(|module| !module.is_vdso());
    if let Some(missing) = probes::missing_by_request(&config.allocators, &problems, mapped()) {
        bail!("nothing to probe: {missing}");
    }
    let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
    for (target, mappings) in targets.iter().zip(&mappings) {
        if !config.mmap && !probes.any(mappings.module_ids()) {
            bail!(
                "nothing to probe in process {}: {}",
                target.pid(),
                problems.join("; ")
            );
        }
    }
    Ok(Prepared {
        mappings,
        targets,
        modules,
        built,
        probes,
        phases,
    })
}

fn read_mappings(target: &Target, modules: &mut Modules) -> anyhow::Result<Mappings> {
    let mappings = target
        .read_mappings(modules)
        .with_context(|| format!("cannot read the mappings of process {}", target.pid()))?;
    if mappings.malformed_lines() > 0 {
        tracing::warn!(
            "{} lines of the process's maps could not be read: stacks end in that code",
            mappings.malformed_lines()
        );
    }
    if mappings.entries().is_empty() {
        bail!("process {} has no code mapped: it has just exited", target.pid());
    }
    Ok(mappings)
}

/// Separate debug files are sought as the targets see the file system, then as we do.
fn debug_roots(targets: &[Target]) -> Vec<PathBuf> {
    let mut roots = Vec::new();
    let mut seen = HashSet::new();
    for target in targets {
        let root = PathBuf::from(format!("/proc/{}/root", target.pid()));
        // Of targets with the same root, the first's leads there for as long as that one runs.
        let identity = fs::metadata(&root).map(|metadata| (metadata.dev(), metadata.ino()));
        if identity.map_or(true, |identity| seen.insert(identity)) {
            roots.push(root);
        }
    }
    roots.push(PathBuf::from("/"));
    roots
}

/// Allows as many open files as may be: those that a process has mapped as code stay open, and probes are files.
fn allow_open_files() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // Without it, there is less that can be looked at, which is said.
        _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Whether an error means that the reader of our output is gone, which is no failure.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
