//! Kernel-facing half of a session: a loaded BPF object with its tables, processes and probes.
//!
//! `lifecycle` follows processes as they start and end.

use leak_report::model::{Missing, Snapshot, TracePart};
use std::slice;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::TraceConfig;
use super::accounting::choice::accounts;
use super::accounting::{Accounting, Instances, Names};
use super::attach::{Attach, Parts};
use super::attempts::Attempts;
use super::bystanders::{Sharing, events_for};
use super::code::Code;
use super::code_over_time::CodeOverTime;
use super::phases::Phases;
use super::prepared::Prepared;
use super::process::Process;
use super::python::PythonTracing;
use super::roster::Roster;
use super::sharers::Awaited;
use super::stops::Stops;
use super::ways::{Way, kernel_settings, ways};
use crate::bpf::collect::{EventQueue, WalkQueue};
use crate::bpf::monotonic_nanoseconds;
use crate::bpf::{
    DynamicEvents, Hold, Kernel, Published, Reading, RegionWatch, Settings, Storage, Tolerance, Watch,
};
use crate::process::{CodeMapping, History, MappedCode, Mappings, Target};
use crate::symbolize::Symbolizer;
use leak_report::render::counted;

/// Maximum time without a message while many processes are attached to.
const SILENCE: Duration = Duration::from_secs(5);

/// Parts of a trace that were asked for.
pub(super) struct Asked {
    pub(super) follows_children: bool,
    /// True if every walk is checked by a slower one.
    pub(super) checks_walks: bool,
    /// True if reports list single blocks.
    pub(super) lists_blocks: bool,
    /// True if calls are reported one by one.
    pub(super) traces_calls: bool,
}

/// A running trace. Dropping it detaches.
pub(super) struct Live<'obj> {
    // These first, so dropped first: probes must be detached before what they use is dropped.
    pub(super) roster: Roster,
    pub(super) attach: Attach,
    _watch: Watch,
    /// Dropped after the programs that stop the started program.
    pub(super) stops: Stops,
    /// Notes the memory that mapping calls give to processes, if there are notes on freed memory.
    _given: Option<RegionWatch>,
    /// Accounts of what is counted.
    pub(super) accounting: Box<dyn Accounting>,
    pub(super) events: EventQueue,
    pub(super) kernel: Kernel<'obj>,
    pub(super) asked: Asked,
    pub(super) code: Code,
    /// Walks to be finished in user space.
    pub(super) walks: WalkQueue,
    pub(super) over_time: CodeOverTime,
    pub(super) python: PythonTracing,
    /// Parts that the trace goes without.
    pub(super) missing: Vec<Missing>,
    pub(super) lifecycle: super::lifecycle::Lifecycle,
    /// Processes that may share the memory of a traced one.
    pub(super) awaited: Awaited,
    /// Programs whose first allocations were not seen.
    pub(super) missed_beginnings: u64,
    /// Time at which the last probe was attached.
    pub(super) started: Instant,
    /// Durations of the steps of the attach.
    pub(super) phases: Phases,
}

impl<'obj> Live<'obj> {
    /// Starts the trace by the first way to attach that the kernel supports.
    pub(super) fn start(
        storages: &'obj mut [Storage],
        config: &TraceConfig,
        mut prepared: Prepared,
    ) -> anyhow::Result<Self> {
        // A program that has not begun to run, and children, can execute one with Python.
        let may_come = config.targets.follow_fork
            || config.targets.members.is_some()
            || !config.targets.program.is_empty();
        let python = PythonTracing::start(config.stacks.python, may_come, &prepared);
        let mut events = events_for(config, prepared.targets.len());
        let ways = ways(config, &prepared, python.reads_frames(), events.is_some());
        let mut attempts = Attempts::new(ways, config);
        let mut storages = storages.iter_mut();
        while let Some(way) = attempts.next() {
            let trial = Trial {
                way,
                tolerance: &mut attempts.tolerance,
                python: &python,
                events: &mut events,
            };
            match Self::attempt(&mut storages, trial, config, &mut prepared) {
                Ok(live) => {
                    return Ok(Self {
                        missing: attempts.succeeded(way),
                        ..live
                    });
                }
                Err(error) => attempts.failed(way, error),
            }
        }
        Err(attempts.into_error(config))
    }

    /// Tries one way to attach. Takes the modules and probes out of `prepared`; if it fails later, it puts
    /// them back for the next way.
    fn attempt(
        storages: &mut slice::IterMut<'obj, Storage>,
        trial: Trial<'_>,
        config: &TraceConfig,
        prepared: &mut Prepared,
    ) -> anyhow::Result<Self> {
        let way = trial.way;
        let mut live = Self::load(storages, trial, config, prepared)?;
        live.phases.end("load programs");
        let added = live.add_targets(prepared);
        if added.is_err() {
            prepared.modules = std::mem::take(live.code.modules_mut());
            prepared.probes = live.attach.take_probes();
        }
        added?;
        live.lifecycle.debuggers.warn_of(live.roster.pids());
        live.started = Instant::now();
        tracing::debug!("attached in steps: {}", live.phases);
        live.log_started(way, !config.targets.program.is_empty());
        Ok(live)
    }

    /// Loads programs for one way to attach. Takes the modules and probes out of `prepared`.
    fn load(
        storages: &mut slice::IterMut<'obj, Storage>,
        trial: Trial<'_>,
        config: &TraceConfig,
        prepared: &mut Prepared,
    ) -> anyhow::Result<Self> {
        let Trial {
            way,
            tolerance,
            python,
            events,
        } = trial;
        let started = prepared
            .targets
            .last()
            .map(Target::pid)
            .filter(|_| !config.targets.program.is_empty());
        let hold = started.and_then(Hold::of);
        let view = &config.shown.view;
        let holds_end = hold.is_some() && (view.verdict.is_some() || view.pinned);
        let settings = Settings {
            started: hold.as_ref().and(started),
            holds_end,
            ..kernel_settings(way, config, prepared)
        };
        let pids: Vec<_> = prepared
            .targets
            .iter()
            .map(|target| target.pid().to_string())
            .collect();
        let kernel = Kernel::load_tolerantly(storages, &settings, tolerance)
            .with_context(|| format!("cannot trace process {}", pids.join(", ")))?;
        // Before the first probe, so that every mapping made after a noted free is noted, too.
        let given = kernel.free_notes.as_ref().map(|_| kernel.watch_regions());
        let given = given.transpose().context("cannot follow mapping calls")?;
        let watch = kernel.watch(config.targets.members.is_some());
        let watch = watch.context("cannot follow processes")?;
        let events_of_kernel = EventQueue::open(&kernel)?;
        let walks = WalkQueue::open(&kernel).context("cannot receive walks")?;
        let follows_children = config.targets.follow_fork && !tolerance.lacks(TracePart::Children);
        let holds_end = holds_end && !tolerance.lacks(TracePart::ProgramEnd);
        let sharing = Sharing::choose(config, prepared.targets.len(), way.path, events)?;
        // Nothing fails from here on, after which another way would lack what is taken.
        Ok(Self {
            roster: Roster::default(),
            attach: Attach::new(sharing, std::mem::take(&mut prepared.probes), holds_end),
            _watch: watch,
            stops: Stops::new(hold),
            _given: given,
            accounting: accounts(config, settings.faults, follows_children),
            events: events_of_kernel,
            walks,
            kernel,
            asked: Asked {
                checks_walks: config.tuning.fast_paths.checked,
                follows_children,
                lists_blocks: config.shown.view.list.is_some(),
                traces_calls: config.shown.calls.is_some(),
            },
            code: Code::new(std::mem::take(&mut prepared.modules), config.stacks.walk),
            over_time: CodeOverTime::start(),
            python: python.reading(way.python && !tolerance.lacks(TracePart::Python)),
            missing: Vec::new(),
            lifecycle: super::lifecycle::Lifecycle::new(config.targets.ignores_translators),
            awaited: Awaited::default(),
            missed_beginnings: 0,
            started: Instant::now(),
            phases: prepared.phases.clone(),
        })
    }

    fn add_targets(&mut self, prepared: &Prepared) -> anyhow::Result<()> {
        // In the order in which tables were built, so that the same one of several copies stands for all.
        self.code
            .store(&prepared.built, &prepared.mappings, &mut self.kernel)?;
        self.phases.end("store tables");
        for target in &prepared.targets {
            let pid = target.pid();
            // Publishing those before it has taken a while.
            if prepared.found.contains(&pid) && target.has_exited() {
                tracing::warn!("left out: process {pid} has exited");
                continue;
            }
            if self.roster.owner_of_memory(pid).is_some() {
                continue;
            }
            self.begin_target(target)
                .with_context(|| format!("cannot trace process {pid}"))?;
        }
        self.phases.end("publish mappings");
        let numbers: Vec<_> = self.roster.numbers().collect();
        let mut told = Instant::now();
        for (attached, &number) in numbers.iter().enumerate() {
            if told.elapsed() >= SILENCE {
                tracing::info!("attached to {attached} of {} processes", numbers.len());
                told = Instant::now();
            }
            self.find_sharers(number);
            self.attach_new(number).with_context(|| {
                let pid = self.roster.get(number).map_or(0, |process| process.facts.pid);
                format!("cannot trace process {pid}")
            })?;
        }
        self.phases.end("attach");
        if self.roster.is_empty() {
            bail!("all processes that were found have exited");
        }
        self.note_memory(&numbers);
        self.read_not_announced();
        self.account(|accounting, instances| accounting.start(instances))?;
        self.phases.end("begin accounts");
        Ok(())
    }

    /// Begins an instance for a running process, and publishes its mappings.
    fn begin_target(&mut self, found: &Target) -> anyhow::Result<()> {
        let target = Target::open(found.pid())?;
        if target.start_time() != found.start_time() {
            bail!("it has exited, and another process has its pid now");
        }
        let number = self.begin_opened(target)?;
        self.reload(number).map(drop)
    }

    fn begin_opened(&mut self, target: Target) -> anyhow::Result<u32> {
        self.lifecycle.lack.begin(target.pid());
        let begun = self.kernel.processes.begin(target.pid());
        let instance = begun
            .context("cannot register the process in the kernel")?
            .context("there is no room for more processes")?;
        let number = instance.number;
        let process = Process::new(instance, Some(target), History::default());
        self.roster.insert(number, process);
        Ok(number)
    }

    /// Starts tracing a process that was added later. Returns its instance.
    pub(super) fn add_opened(&mut self, target: Target) -> anyhow::Result<u32> {
        let pid = target.pid();
        let number = self.begin_opened(target)?;
        let carried = self.attach.carry(pid);
        let attached = carried
            .and_then(|()| self.reload(number))
            .inspect(|_| self.find_sharers(number))
            .and_then(|_| self.attach_new(number));
        if let Err(error) = attached {
            self.leave(number);
            return Err(error);
        }
        self.note_memory(&[number]);
        Ok(number)
    }

    /// Calls `act` with the accounts of what is counted, and the instances as they see them.
    fn account<T>(&mut self, act: impl FnOnce(&mut dyn Accounting, Instances<'_, 'obj>) -> T) -> T {
        let instances = Instances {
            kernel: &self.kernel,
            roster: &self.roster,
            events: &self.events,
        };
        act(self.accounting.as_mut(), instances)
    }

    /// Enters what has happened since the last call in the accounts.
    pub(super) fn follow_accounts(&mut self) -> anyhow::Result<()> {
        self.account(|accounting, instances| accounting.follow(instances))
    }

    /// Enters all that has happened by now in the accounts, for a report.
    pub(super) fn settle_accounts(&mut self) -> anyhow::Result<()> {
        let events = self.events.wait(Duration::ZERO).context("cannot read events")?;
        self.react(&events)?;
        self.account(|accounting, instances| accounting.settle(instances))
    }

    /// Adds the accounts to `snapshot`.
    pub(super) fn add_accounts(&self, snapshot: &mut Snapshot, symbolizer: &mut Symbolizer) {
        let names = Names {
            modules: self.code.modules(),
            probes: self.attach.probes(),
            symbolizer,
        };
        let instances = Instances {
            kernel: &self.kernel,
            roster: &self.roster,
            events: &self.events,
        };
        self.accounting.add_to(snapshot, instances, names);
    }

    fn log_started(&self, way: Way, is_program: bool) {
        let end = match is_program {
            true => "the program's end makes the last report",
            false => "Ctrl-C ends it with a last report",
        };
        let traced: Vec<_> = self
            .roster
            .all()
            .map(|process| format!("{} ({})", process.facts.comm, process.facts.pid))
            .collect();
        let children = if self.asked.follows_children {
            " and their children"
        } else {
            ""
        };
        let traced = format!("{}{children}", traced.join(", "));
        if let Some(calls) = way.regions.or(way.frees) {
            tracing::debug!("mapping calls are followed by {calls}");
        }
        if !self.accounting.probes_allocators() {
            tracing::info!("tracing {traced}: {}; {end}", self.accounting.subject());
            return;
        }
        let shared = match self.attach.sharing() {
            Sharing::All => ", which also trap in all other processes that map the same files",
            Sharing::Apart | Sharing::Families(_) => "",
        };
        let links = self.attach.link_count(&self.roster);
        let probes = self.attach.probes();
        let count = probes.count() as u64;
        let probes = match probes.are_announced() {
            true => format!(
                "blocks announced by {} (otel_memory)",
                counted(count, "USDT probe")
            ),
            false => counted(count, "probe"),
        };
        tracing::info!("tracing {traced}: {probes}{shared}; {end}");
        tracing::debug!("attached by {links} {:?} links", way.path);
    }

    /// Changes to USDT probes of another `distance`.
    ///
    /// # Errors
    ///
    /// Fails if probes cannot be attached; then the former distance stays in use.
    pub(super) fn change_distance(&mut self, distance: u64) -> anyhow::Result<()> {
        let parts = Parts {
            kernel: &self.kernel,
            modules: self.code.modules(),
        };
        self.attach.change_distance(distance, &mut self.roster, parts)
    }

    /// Removes all probes from all processes. Recorded data stays.
    pub(super) fn detach(&mut self) {
        let began = Instant::now();
        self.lifecycle.debuggers.warn_of(self.roster.pids());
        self.accounting.detach();
        self.attach.detach(&mut self.roster);
        self.let_go_on();
        tracing::debug!("detached in {:.1?}", began.elapsed());
    }

    /// Reads an instance's mappings again and publishes them with the tables that they need. Returns whether
    /// they changed.
    pub(super) fn reload(&mut self, number: u32) -> anyhow::Result<bool> {
        let Some(process) = self.roster.get_mut(number) else {
            return Ok(false);
        };
        let (slot, pid) = (process.instance.slot, process.facts.pid);
        let began = monotonic_nanoseconds();
        let reading = self.kernel.publisher.begin_reading(slot);
        let target = process.target.as_ref();
        // An exiting process has no mappings to read; `lifecycle` notices its exit.
        let Some(Ok(mappings)) = target.map(|target| target.read_mappings(self.code.modules_mut())) else {
            return Ok(false);
        };
        if reading.instance() != number || mappings.entries().is_empty() {
            return Ok(false);
        }
        let mut changed = mappings != process.mappings;
        self.over_time.note_reading(pid, began, &mappings);
        if let Some(target) = &process.target {
            self.over_time.watch_jvm(target, &mappings, self.code.modules());
        }
        let begins = process.note_jvm(mappings.jvm(), Instant::now());
        if changed {
            // First, as walks can be finished later, but Python's functions are read now or never.
            self.attach_python(number, &mappings);
            changed = self.publish(number, reading, mappings)?;
        }
        self.kernel.publisher.expect_jvm(slot, begins);
        if !self.kernel.publisher.confirm(slot, reading)
            && let Some(process) = self.roster.get_mut(number)
        {
            process.reloads.demand();
        }
        Ok(changed)
    }

    /// Publishes the mappings of an instance, and stores the tables that they need. Returns whether
    /// they are published, which they are not if the instance has just ended.
    fn publish(&mut self, number: u32, reading: Reading, mappings: Mappings) -> anyhow::Result<bool> {
        let new_tables = self
            .code
            .provide_tables(&mappings, &self.roster, &mut self.kernel)?;
        let Some(process) = self.roster.get_mut(number) else {
            return Ok(false);
        };
        // Kept only if the mappings are published: otherwise they may be another instance's.
        let mut history = process.history.clone();
        history.add(&mappings);
        let list = self.code.kernel_mappings(&mappings, mappings.jvm());
        let (slot, epoch) = (process.instance.slot, history.current());
        let published = self.kernel.publisher.publish(slot, reading, &list, epoch);
        let Published::Active {
            left_out,
            since_change,
        } = published.context("cannot publish mappings")?
        else {
            return Ok(false);
        };
        if left_out > 0 {
            tracing::warn!("no room for {left_out} executable mappings: stacks end there");
        }
        let late = since_change.map_or_else(String::new, |since| {
            format!(", {since:.1?} after the loader announced it")
        });
        tracing::debug!(
            "{}: mappings published with {} new unwind tables{late}",
            process.facts.pid,
            new_tables
        );
        self.code.log_unreadable(&mappings);
        process.history = history;
        process.mappings = mappings;
        Ok(true)
    }

    /// Attaches to those mapped files of an instance that have nothing attached for it yet.
    pub(super) fn attach_new(&mut self, number: u32) -> anyhow::Result<()> {
        let parts = Parts {
            kernel: &self.kernel,
            modules: self.code.modules(),
        };
        if !self.accounting.probes_allocators() {
            self.attach.add_hook(number, &mut self.roster, parts);
            return Ok(());
        }
        if self.attach.add(number, &mut self.roster, parts)? {
            self.note_beginning(number);
        }
        // The file with the allocator can be one that was not opened because the process was just ending.
        let is_gone =
            |entry: &CodeMapping| matches!(&entry.code, MappedCode::Unreadable { why, .. } if why.may_pass());
        if let Some(process) = self.roster.get_mut(number)
            && !process.mappings.entries().iter().any(is_gone)
        {
            process.beginning.attached();
        }
        self.attach_sharers(number);
        Ok(())
    }
}

/// A way that is tried.
struct Trial<'a> {
    way: Way,
    tolerance: &'a mut Tolerance,
    python: &'a PythonTracing,
    events: &'a mut Option<DynamicEvents>,
}
