//! Waits for the conditions of `--start-when`: nothing is loaded or attached meanwhile.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;

use super::growth::Course;
use super::memory::{Highest, MemoryReader, anonymous};
use super::{StartCondition, StartMeasure, Value, reached};
use crate::bpf::preflight;
use crate::process::Target;
use crate::process::select::{Found, Selection};
use crate::session::schedule::TICK;
use crate::session::{Signals, TraceConfig};
use leak_report::model::{Measured, Reached};
use leak_report::render::ReportSink;

/// Time between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// Waits until one of the conditions is true. Returns the settings of the trace with those of its processes
/// that run then.
///
/// # Errors
///
/// The processes have ended or the end is requested before, or nothing can be traced or come true at all.
pub(in crate::session) fn wait(
    config: &TraceConfig,
    signals: &Signals,
    reports: &mut dyn ReportSink,
) -> anyhow::Result<TraceConfig> {
    preflight::check()?;
    let mut waiting = Waiting::begin(config)?;
    let texts: Vec<_> = config
        .schedule
        .start_when
        .iter()
        .map(ToString::to_string)
        .collect();
    let wanted = texts.join(" or ");
    tracing::info!("waiting for {wanted}: nothing is attached until then");
    loop {
        let next = Instant::now() + PERIOD;
        waiting.find_processes();
        if waiting.is_over() {
            bail!("{} before {wanted}: nothing was traced", waiting.end());
        }
        let (reached, now) = waiting.look();
        if let Some(reached) = reached {
            tracing::info!("starting because {reached}");
            return waiting.trace();
        }
        while let Some(left) = next.checked_duration_since(Instant::now()) {
            if signals.wants_end() {
                bail!("ended while waiting for {wanted}: nothing was traced");
            }
            reports.waiting(&format!("waiting for {wanted}{now}"));
            thread::sleep(left.min(TICK));
        }
    }
}

/// Pid and start time of a process.
type Identity = (u32, u64);

/// Processes that are waited for, and their memory.
struct Waiting<'a> {
    config: &'a TraceConfig,
    selection: Option<Selection>,
    /// Processes that were found last.
    found: Vec<Found>,
    /// Processes, given or found, any of which may reach a condition.
    targets: HashMap<Identity, Target>,
    memory: MemoryReader,
    courses: HashMap<Identity, Course>,
}

impl<'a> Waiting<'a> {
    fn begin(config: &'a TraceConfig) -> anyhow::Result<Self> {
        let mut targets = HashMap::new();
        for &pid in &config.targets.pids {
            let target = Target::open(pid)?;
            targets.insert((pid, target.start_time()), target);
        }
        let mut waiting = Self {
            config,
            selection: config.targets.members.clone().map(Selection::new).transpose()?,
            found: config.targets.found.clone(),
            targets,
            memory: MemoryReader::new(),
            courses: HashMap::new(),
        };
        waiting.open_found();
        waiting.check()?;
        Ok(waiting)
    }

    /// Fails if a condition is about a limit that no cgroup has.
    fn check(&mut self) -> anyhow::Result<()> {
        let targets: Vec<_> = self.targets.values().collect();
        for condition in &self.config.schedule.start_when {
            let StartMeasure::Memory(measure) = condition.measure() else {
                continue;
            };
            let is_share = condition.is_share();
            self.memory
                .check(Highest { measure, is_share }, condition, &targets)?;
        }
        Ok(())
    }

    /// Finds the processes that run and match now.
    fn find_processes(&mut self) {
        if let Some(selection) = &mut self.selection {
            match selection.look() {
                Ok(sight) => {
                    self.found = sight.found;
                    self.found
                        .retain(|found| !self.config.targets.pids.contains(&found.pid));
                }
                Err(error) => tracing::debug!("{error}"),
            }
        }
        self.targets.retain(|_, target| !target.has_exited());
        let (found, given) = (&self.found, &self.config.targets.pids);
        let is_wanted = |(pid, start_time): &Identity| {
            let mut all = found.iter();
            given.contains(pid) || all.any(|found| (found.pid, found.start_time) == (*pid, *start_time))
        };
        self.targets.retain(|identity, _| is_wanted(identity));
        self.open_found();
    }

    /// Opens the processes that were found. One that cannot be opened is left out, as at the start of a
    /// trace, which warns of it.
    fn open_found(&mut self) {
        for found in &self.found {
            let identity = (found.pid, found.start_time);
            if self.targets.contains_key(&identity) {
                continue;
            }
            if let Ok(target) = Target::open(found.pid)
                && target.start_time() == found.start_time
            {
                self.targets.insert(identity, target);
            }
        }
    }

    /// Returns whether nothing is left to wait for.
    fn is_over(&self) -> bool {
        let can_come = self.selection.is_some() && self.config.targets.waits;
        self.targets.is_empty() && !can_come
    }

    fn end(&self) -> String {
        match (&self.config.targets.pids[..], &self.selection) {
            ([pid], None) => format!("process {pid} ended"),
            _ => "all processes ended".to_owned(),
        }
    }

    /// Looks at all conditions. Returns the first that is true, and a text on the values.
    fn look(&mut self) -> (Option<Reached>, String) {
        let now = Instant::now();
        let grows = |condition: &StartCondition| condition.measure() == StartMeasure::Growth;
        if self.config.schedule.start_when.iter().any(grows) {
            self.follow_growth(now);
        }
        self.memory.begin();
        let targets: Vec<_> = self.targets.values().collect();
        let mut texts = Vec::new();
        for condition in &self.config.schedule.start_when {
            let value = match condition.measure() {
                StartMeasure::Memory(measure) => {
                    let is_share = condition.is_share();
                    self.memory.highest(Highest { measure, is_share }, &targets)
                }
                StartMeasure::Growth => fastest(&self.courses),
            };
            let Some(value) = value else {
                continue;
            };
            if condition.is_exceeded_by(value.measured.value()) {
                return (Some(reached(condition, value)), String::new());
            }
            texts.push(value.measured.to_string());
        }
        let text = match texts.is_empty() {
            true => String::new(),
            false => format!(", now {}", texts.join(", ")),
        };
        (None, text)
    }

    fn follow_growth(&mut self, now: Instant) {
        self.courses
            .retain(|identity, _| self.targets.contains_key(identity));
        for (&identity, target) in &self.targets {
            let Some(bytes) = anonymous(identity.0).filter(|_| !target.has_exited()) else {
                continue;
            };
            let course = self.courses.entry(identity);
            course.or_insert_with(|| Course::new(PERIOD)).add(now, bytes);
        }
    }

    /// Settings of the trace that begins now.
    fn trace(self) -> anyhow::Result<TraceConfig> {
        let runs = |pid: u32| self.targets.keys().any(|(running, _)| *running == pid);
        let (pids, ended): (Vec<_>, Vec<_>) = self
            .config
            .targets
            .pids
            .iter()
            .copied()
            .partition(|&pid| runs(pid));
        for pid in ended {
            tracing::warn!("left out: process {pid} has ended");
        }
        let max = self.config.limits.processes.unwrap_or(u32::MAX);
        let count = pids.len() + self.found.len();
        if u32::try_from(count).is_ok_and(|count| count > max) {
            bail!("{count} processes match now, but --max-processes is {max}: raise it");
        }
        let mut config = self.config.clone();
        (config.targets.pids, config.targets.found) = (pids, self.found);
        Ok(config)
    }
}

/// Growth of the process that grows fastest.
fn fastest(courses: &HashMap<Identity, Course>) -> Option<Value> {
    let rates = courses
        .iter()
        .filter_map(|(&(pid, _), course)| Some((pid, course.growth()?)));
    let (pid, rate) = rates.max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(Value {
        measured: Measured::BytesPerSecond(rate),
        pid: Some(pid),
    })
}
