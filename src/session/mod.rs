//! A trace from start to end: the only file that knows the order of things.
//!
//! Tables are built and published before the first probe is attached; probes are detached before anything else
//! is taken down. Parsing, formatting and map access are elsewhere.

mod describe;
mod hook;
mod live;
mod probes;
mod reload;
mod tables;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use unwind_tables::walk::Unwind;

use crate::allocator::{self, ProbeSite, SiteCost};
use crate::bpf::{AttachPath, Probe, Storage, Walk};
use crate::collect::{self, Event, Snapshot};
use crate::config::Config;
use crate::preflight;
use crate::report::{self, ModuleFacts, Report};
use crate::symbolize::Symbolizer;
use crate::target::{Mappings, ModuleId, Modules, Target};
use live::{Live, Prepared};
use reload::Reloads;
use tables::ModuleTables;

/// Storage for each way to attach that may have to be tried.
pub type Storages = [Storage; AttachPath::ALL.len()];

/// Empty storage for a session, which borrows it.
pub fn storages() -> Storages {
    [const { Storage::uninit() }; AttachPath::ALL.len()]
}

/// The one process that is traced so far.
const SLOT: u32 = 0;
/// How long the session sleeps at most before it looks at the target and at signals again.
const TICK: Duration = Duration::from_millis(100);
/// Traces as `config` says and writes reports to `out`, until all are made, `stop` is set, or the target ends.
///
/// # Errors
///
/// What went wrong, on which object, and what to do about it. Nothing is left attached.
pub fn run(config: &Config, stop: &AtomicBool, out: &mut dyn Write) -> anyhow::Result<()> {
    preflight::check()?;
    let mut storages = storages();
    let mut session = Session::start(&mut storages, config)?;
    let mut made = 0;
    let mut next = Instant::now();
    loop {
        // From report to report, however long the last one took; none is made up for.
        next = (next + config.interval).max(Instant::now());
        let ending = session.follow(next, stop)?;
        made += 1;
        let report = session.report(config.top)?;
        report::render(&report, config.format, out)?;
        out.flush()?;
        if ending || config.count.is_some_and(|count| made >= count.get()) {
            return Ok(());
        }
    }
}

/// A process that is being traced. Dropping it detaches.
pub struct Session<'obj> {
    live: Live<'obj>,
    walk: Walk,
    target: Target,
    modules: Modules,
    symbolizer: Symbolizer,
    facts: HashMap<ModuleId, Arc<ModuleFacts>>,
    reloads: Reloads,
}

impl<'obj> Session<'obj> {
    /// Opens the target, builds and publishes its tables, attaches.
    ///
    /// # Errors
    ///
    /// As [`run`].
    pub fn start(storages: &'obj mut Storages, config: &Config) -> anyhow::Result<Self> {
        let prepared = prepare(config)?;
        let live = Live::start(storages, config, &prepared)?;
        let Prepared { target, modules, .. } = prepared;
        Ok(Self {
            live,
            walk: config.walk,
            symbolizer: Symbolizer::new(debug_roots(&target)),
            target,
            modules,
            facts: HashMap::new(),
            // What was mapped while the hook was not yet attached.
            reloads: Reloads::demanded(),
        })
    }

    /// Follows the target until `deadline`. Returns whether the end came before: it exited, or `stop` was set.
    ///
    /// # Errors
    ///
    /// The kernel side cannot be read or written any more.
    pub fn follow(&mut self, deadline: Instant, stop: &AtomicBool) -> anyhow::Result<bool> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let events = self
                .live
                .events
                .wait(
                    self.reloads
                        .rest(Instant::now())
                        .unwrap_or(TICK)
                        .min(left)
                        .min(TICK),
                )
                .context("cannot read events")?;
            if stop.load(Ordering::Relaxed) {
                return Ok(true);
            }
            if self.target.has_exited() {
                tracing::info!("{} has exited", self.target.comm());
                return Ok(true);
            }
            for event in events {
                match event {
                    Event::MappingsChanged { .. } => self.reloads.demand(),
                    Event::UnknownMapping { .. } | Event::Unknown => self.reloads.request(),
                }
            }
            self.reload_if_due()?;
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Reads the mappings again if a walk asked for it, not too often if there is never anything new.
    fn reload_if_due(&mut self) -> anyhow::Result<()> {
        if !self.reloads.is_due(Instant::now()) {
            return Ok(());
        }
        let began = Instant::now();
        self.reloads.begin();
        let changed = self.reload()?;
        self.reloads.done(began, Instant::now(), changed);
        if !changed {
            self.live.kernel.publisher.accept_requests(SLOT);
        }
        Ok(())
    }

    /// Reads the mappings again. Returns whether they changed.
    fn reload(&mut self) -> anyhow::Result<bool> {
        let changes = self.live.kernel.publisher.changes(SLOT);
        // A target that is gone or going has nothing to read; its exit is noticed elsewhere.
        let Ok(mappings) = self.target.read_mappings(&mut self.modules) else {
            return Ok(false);
        };
        if mappings.entries().is_empty() {
            return Ok(false);
        }
        let changed = mappings != self.live.mappings;
        if changed {
            let built = self.live.build(&mappings, &self.modules, self.walk);
            self.live.publish(mappings, &built, &self.modules, changes)?;
        }
        if !self.live.is_up_to_date(changes) {
            self.reloads.demand();
        }
        Ok(changed)
    }

    /// Everything recorded so far.
    ///
    /// # Errors
    ///
    /// The kernel side cannot be read.
    pub fn snapshot(&self) -> anyhow::Result<Snapshot> {
        collect::take(&self.live.kernel, self.live.started.elapsed()).context("cannot read what was recorded")
    }

    /// A report of everything recorded so far.
    ///
    /// # Errors
    ///
    /// The kernel side cannot be read or written.
    pub fn report(&mut self, top: usize) -> anyhow::Result<Report> {
        let snapshot = self.snapshot()?;
        self.reload()?;
        if snapshot.events.probe_hits == 0 {
            tracing::warn!(
                "no call of a probed allocator function was seen: the target is idle or allocates otherwise"
            );
        }
        let names = describe::Describer {
            target: &self.target,
            modules: &self.modules,
            history: &self.live.history,
            tables: &self.live.tables,
            symbolizer: &mut self.symbolizer,
            facts: &mut self.facts,
        };
        let unwind = match self.walk {
            Walk::Fp => Unwind::Fp,
            // Without a walk there are no stacks for the word to be about.
            Walk::Dwarf | Walk::Off => Unwind::Dwarf,
        };
        Ok(describe::report(names, snapshot, unwind, top))
    }
}

/// Everything that can be made ready before anything is loaded.
fn prepare(config: &Config) -> anyhow::Result<Prepared> {
    let target = Target::open(config.pid)?;
    let mut modules = Modules::new();
    let began = Instant::now();
    let mappings = read_mappings(&target, &mut modules)?;
    let built = ModuleTables::default().build(&mappings, &modules, config.walk);
    tracing::info!("{} unwind tables built in {:.0?}", built.len(), began.elapsed());
    let probes = discover(&modules)?;
    Ok(Prepared {
        target,
        modules,
        mappings,
        built,
        probes,
    })
}

fn read_mappings(target: &Target, modules: &mut Modules) -> anyhow::Result<Mappings> {
    let mappings = target
        .read_mappings(modules)
        .with_context(|| format!("cannot read the mappings of process {}", target.pid()))?;
    if mappings.malformed_lines() > 0 {
        tracing::warn!(
            "{} lines of the process's maps could not be read: stacks end in what they hold",
            mappings.malformed_lines()
        );
    }
    if mappings.entries().is_empty() {
        bail!("process {} has no code mapped: it has just exited", target.pid());
    }
    Ok(mappings)
}

/// Separate debug files are sought as the target sees the file system, then as we do.
fn debug_roots(target: &Target) -> Vec<PathBuf> {
    vec![
        PathBuf::from(format!("/proc/{}/root", target.pid())),
        PathBuf::from("/"),
    ]
}

/// The probes for all allocators among `modules`.
fn discover(modules: &Modules) -> anyhow::Result<Vec<Probe>> {
    let discovery = allocator::discover(modules.iter());
    for problem in &discovery.problems {
        tracing::debug!("{problem}");
    }
    let probes: Vec<_> = discovery
        .sites
        .iter()
        .filter_map(|site| probes::probe(site, modules))
        .collect();
    if probes.is_empty() {
        let reasons: Vec<_> = discovery.problems.iter().map(ToString::to_string).collect();
        bail!("nothing to probe: {}", reasons.join("; "));
    }
    say_where(&discovery.sites);
    Ok(probes)
}

/// Says where each probe sits, and which of them the kernel has to single-step.
fn say_where(sites: &[ProbeSite]) {
    let place = |site: &ProbeSite| format!("{}+{:#x}", site.symbol, site.svma.offset_from(site.entry));
    let list = |cost| {
        let sites = sites.iter().filter(|site| site.cost == cost);
        sites.map(place).collect::<Vec<_>>().join(", ")
    };
    tracing::info!("probes at {}", list(SiteCost::Emulated));
    let slow = list(SiteCost::SingleStepped);
    if !slow.is_empty() {
        tracing::info!("slow probes, whose instruction the kernel must single-step, at {slow}");
    }
}

/// Whether an error means that the reader of our output is gone, which is no failure.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<io::Error>();
    io.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
