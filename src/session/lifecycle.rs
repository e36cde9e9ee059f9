//! Follows processes as they start and end: fork, exec, exit.
//!
//! The kernel side acts first, in the process itself: a new instance has a number and a slot before its code
//! runs, and an ended one's slot is closed. This file catches up by reading the kernel side's record of all
//! instances; events only say that there is something to read.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use anyhow::Context;
use unwind_tables::addr::Avma;

use super::attachments::Attachments;
use super::debuggers::Debuggers;
use super::lack::LackWatch;
use super::live::Live;
use super::process::Process;
use super::reload::Reloads;
use crate::base::proc_fields::ProcFields;
use crate::bpf::collect::Event;
use crate::bpf::{Instance, Origin, continue_stopped};
use crate::process::{History, MappedCode, Target, TargetError, translator};
use leak_report::model::{InstanceEnd, Snapshot};

/// Minimum pause between two removals of ended instances from the block table.
const MIN_PAUSE: Duration = Duration::from_millis(250);
/// Minimum pause as a multiple of the time that the last removal took: less than 5 % of the time is spent on
/// it.
const PAUSE_PER_WORK: u32 = 20;

/// Pause between two looks for ends that the kernel side has missed.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// Progress through the kernel side's record of instances.
#[derive(Debug, Default)]
pub(super) struct Lifecycle {
    /// Instances below this number are known.
    next: u32,
    /// Ended instances whose blocks were removed from the block table.
    pub(super) forgotten: HashSet<u32>,
    /// True if an instance has ended since the block table was cleared.
    to_forget: bool,
    forget_not_before: Option<Instant>,
    /// Time at which to look again for ends that the kernel side has missed.
    next_look: Option<Instant>,
    pub(super) lack: LackWatch,
    pub(super) debuggers: Debuggers,
    /// True if the user accepts that probes kill translated processes.
    ignores_translators: bool,
    /// Error that ends the trace, as probes would kill a process.
    translated: Option<anyhow::Error>,
}

/// Opens the process of a new instance, unless its code will be executed in translated copies.
fn open_new(instance: &Instance) -> Result<Target, TargetError> {
    let target = Target::open(instance.pid)?;
    match translator::started_by(target.comm()).filter(|_| instance.origin == Origin::Execed) {
        Some(by) => Err(TargetError::Translated {
            pid: instance.pid,
            comm: target.comm().to_owned(),
            by,
        }),
        None => Ok(target),
    }
}

impl Lifecycle {
    pub(super) fn new(ignores_translators: bool) -> Self {
        Self {
            ignores_translators,
            ..Self::default()
        }
    }
}

impl Live<'_> {
    /// Catches up with the record: begins new instances, and ends those that have ended.
    ///
    /// # Errors
    ///
    /// A process runs a program in translated copies of its code, and probes would kill it.
    pub(super) fn observe(&mut self) -> anyhow::Result<()> {
        // A new instance may itself have ended in the meantime.
        while self.observe_once() {}
        self.free_slots()?;
        self.lifecycle.translated.take().map_or(Ok(()), Err)
    }

    /// Returns whether there was a new instance.
    fn observe_once(&mut self) -> bool {
        // Ends are read first and applied last: the last act of an instance may be to begin another, which
        // takes over part of its parent's state.
        let ended = self.observe_ends();
        let first = self.lifecycle.next;
        if self.observe_beginnings() {
            for (number, end) in ended {
                self.end(number, end);
            }
        }
        self.lifecycle.next != first
    }

    fn observe_ends(&mut self) -> Vec<(u32, InstanceEnd)> {
        let kernel = &self.kernel.processes;
        let live = self.roster.iter().filter(|(_, process)| process.is_live());
        // The process is only looked at for an end that the kernel side has missed, as it came while the
        // instance was begun.
        let looks = self.lifecycle.next_look.is_none_or(|next| Instant::now() >= next);
        let ended: Vec<_> = live
            .filter_map(|(number, process)| {
                let has_exited = || process.target.as_ref().is_some_and(Target::has_exited);
                if looks && kernel.ended(number).is_none() && has_exited() {
                    kernel.end(&process.instance);
                }
                Some((number, kernel.ended(number)?))
            })
            .collect();
        if looks {
            self.lifecycle.next_look = Some(Instant::now() + LOOK_PAUSE);
        }
        ended
    }

    /// Returns whether all new instances were seen: one may have its number, but not yet its record.
    fn observe_beginnings(&mut self) -> bool {
        let end = self.kernel.processes.next();
        self.lifecycle.next = self.lifecycle.next.max(1);
        while self.lifecycle.next < end {
            let number = self.lifecycle.next;
            if !self.roster.contains(number) {
                let Some(instance) = self.kernel.processes.instance(number) else {
                    return false;
                };
                self.begin(instance);
            }
            self.lifecycle.next += 1;
        }
        true
    }

    fn begin(&mut self, instance: Instance) {
        let (number, origin, by_other_thread) = (instance.number, instance.origin, instance.by_other_thread);
        self.lifecycle.lack.begin(instance.pid);
        let is_live = || self.kernel.processes.ended(number).is_none();
        let mut failed = None;
        // Checked again: it may have executed another program meanwhile, of the same name.
        let target = is_live()
            .then(|| open_new(&instance))
            .and_then(|opened| opened.map_err(|error| failed = Some(error)).ok())
            .filter(|_| is_live());
        let parent = instance.parent.and_then(|parent| self.roster.get_mut(parent));
        let mut process = Process::new(instance, target, History::default());
        match (origin, parent) {
            (Origin::Forked, Some(parent)) => {
                process.history = parent.history.forked(process.instance.parent_epoch);
                process.facts.exe = process.facts.exe.or_else(|| parent.facts.exe.clone());
                process.python.clone_from(&parent.python);
            }
            // Probes follow an exec only if the process's first thread called it.
            (Origin::Execed, Some(parent)) if parent.facts.pid == process.facts.pid => {
                let attached = std::mem::take(&mut parent.attached);
                if !by_other_thread {
                    process.attached = attached;
                }
                process.is_given = parent.is_given;
                process.is_member = parent.is_member;
                if process.is_given {
                    tracing::info!("{} now runs {}", process.facts.pid, process.facts.comm);
                }
            }
            _ => {}
        }
        tracing::debug!("instance {number}: {:?}", process.instance);
        if origin == Origin::Execed {
            process.reloads = Reloads::settling(Instant::now());
        }
        let lacks_probes = match origin {
            Origin::Execed => self.attach.sharing().are_families() && loses_events(process.facts.pid),
            Origin::Forked => self.attach.is_older_than_probes(number),
            Origin::Attached => false,
        };
        if lacks_probes {
            let (pid, comm) = (process.facts.pid, &process.facts.comm);
            match self.attach.carry(pid) {
                Ok(()) if origin == Origin::Execed && !self.stops.stop(pid) => tracing::info!(
                    "{comm} ({pid}) runs with other privileges since its exec: its allocations were missed \
                     until its probes were attached again"
                ),
                Ok(()) => {}
                Err(error) => tracing::warn!("{error:#}: allocations of {comm} ({pid}) are not traced"),
            }
        }
        let (pid, may_be_stopped) = (process.facts.pid, translator::may_translate(&process.facts.comm));
        self.roster.insert(number, process);
        if let Some(error) = failed {
            self.not_opened(number, error);
        }
        // Has no probes by now if it translates code.
        if origin == Origin::Execed && may_be_stopped && !self.stops.stop(pid) {
            continue_stopped(pid);
        }
    }

    /// Number of programs whose first allocations were not seen. Those that have ended before anything was
    /// attached to them count if their allocator is in their own file, and no block of theirs was seen.
    pub(super) fn missed_beginnings(&self, snapshot: &Snapshot) -> u64 {
        let seen: HashSet<u32> = snapshot.stacks.iter().map(|stack| stack.instance).collect();
        let unseen = self.roster.iter().filter(|(number, process)| {
            let is_missed = !process.is_live() && !process.beginning.is_attached();
            is_missed && process.instance.without_loader && !seen.contains(number)
        });
        self.missed_beginnings + unseen.count() as u64
    }

    /// Handles new probes of an instance, which lacked them until now.
    pub(super) fn note_beginning(&mut self, number: u32) {
        let Some(process) = self.roster.get(number) else {
            return;
        };
        if process.instance.origin != Origin::Execed || self.stops.stop(process.facts.pid) {
            return;
        }
        let Some(process) = self.roster.get_mut(number) else {
            return;
        };
        if let Some(lasted) = process.beginning.miss() {
            self.missed_beginnings += 1;
            tracing::info!(
                "allocations of {} ({}) in its first {lasted:.1?} were missed: its allocator had no probes \
                 yet",
                process.facts.comm,
                process.facts.pid
            );
        }
    }

    /// Resumes processes that were stopped because of probes, after these were removed.
    pub(super) fn let_go_on(&self) {
        for pid in self.roster.pids() {
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm"));
            if comm.is_ok_and(|comm| translator::may_translate(comm.trim_end())) {
                continue_stopped(pid);
            }
        }
    }

    /// Removes the probes of a new instance that was not opened because it is translated: they came with the
    /// exec, and would kill it.
    fn not_opened(&mut self, number: u32, error: TargetError) {
        let TargetError::Translated { pid, .. } = error else {
            tracing::debug!("{error}");
            return;
        };
        if self.attach.sharing().is_shared() {
            if !self.lifecycle.ignores_translators {
                self.detach();
                self.lifecycle.translated = Some(anyhow::Error::from(error).context("the trace ends"));
            }
            return;
        }
        self.leave(number);
        let mut processes = self.roster.all();
        if processes.any(|process| process.is_live() && process.facts.pid != pid) {
            tracing::warn!("left out: {error}");
        } else {
            self.lifecycle.translated = Some(anyhow::Error::from(error).context("the trace ends"));
        }
    }

    fn end(&mut self, number: u32, end: InstanceEnd) {
        let Some(process) = self.roster.get_mut(number) else {
            return;
        };
        let (comm, pid) = (&process.facts.comm, process.facts.pid);
        let is_killed = end == InstanceEnd::OutOfMemory;
        let lack = is_killed.then(|| self.lifecycle.lack.of(pid));
        if let Some(lack) = &lack {
            tracing::warn!("the kernel killed {comm} ({pid}) for lack of memory: {lack}");
        } else if process.is_given && end == InstanceEnd::Exited {
            tracing::info!("{comm} ({pid}) has exited");
        } else if end == InstanceEnd::Left {
            tracing::info!("{comm} ({pid}) is no longer traced: it no longer matches");
        } else {
            tracing::debug!("{comm} ({pid}) has ended: {end:?}");
        }
        process.facts.lack = lack;
        process.end(end);
        self.lifecycle.to_forget = true;
    }

    /// Stops tracing an instance that continues to run.
    pub(super) fn leave(&mut self, number: u32) {
        let Some(process) = self.roster.get_mut(number) else {
            return;
        };
        let attached = std::mem::take(&mut process.attached);
        let sharers = std::mem::take(&mut process.sharers);
        Attachments::detach(sharers.into_values().chain([attached]));
        self.kernel.processes.leave(&process.instance);
    }

    /// Handles events: notes which mappings to read again, and provides saves at once.
    pub(super) fn react(&mut self, events: &[Event]) -> anyhow::Result<()> {
        for event in events {
            let (instance, demanded) = match *event {
                Event::MappingsChanged { instance } => (instance, true),
                Event::UnknownMapping { instance, .. } => (instance, false),
                Event::SavesWanted { instance, address } => {
                    self.provide_saves(instance, address)?;
                    continue;
                }
                Event::Stopped { instance } => {
                    self.attach_stopped(instance)?;
                    continue;
                }
                Event::Shared { instance, pid } => {
                    self.awaited.add(instance, pid);
                    continue;
                }
                Event::Ending => {
                    self.stops.note_end();
                    continue;
                }
                Event::Lifecycle | Event::Members | Event::Unknown => continue,
            };
            let Some(process) = self.roster.get_mut(instance) else {
                continue;
            };
            if demanded {
                process.reloads.demand();
            } else {
                process.reloads.request();
            }
        }
        Ok(())
    }

    /// Attaches to the files that the started program has mapped since its exec, and resumes it.
    fn attach_stopped(&mut self, number: u32) -> anyhow::Result<()> {
        let began = Instant::now();
        let attached = self.reload_and_attach(number);
        self.stops.go_on(began);
        attached.map(drop)
    }

    /// Provides the saves that walks of an instance requested at `address`.
    fn provide_saves(&mut self, number: u32, address: Avma) -> anyhow::Result<()> {
        let Some(process) = self.roster.get(number) else {
            return Ok(());
        };
        let slot = process.instance.slot;
        let mut has_saves = false;
        if let Some(MappedCode::Module { module, .. }) =
            process.mappings.find(address).map(|entry| &entry.code)
        {
            let module = *module;
            self.code
                .provide_saves(module, None, &self.roster, &mut self.kernel)?;
            has_saves = self.code.tables().has_saves(module, &self.kernel);
        }
        self.kernel.publisher.answer_saves(slot, has_saves);
        Ok(())
    }

    /// Resumes the started program after probes are detached; it is not stopped again.
    pub(super) fn let_go(&mut self) -> anyhow::Result<()> {
        if self.stops.any() {
            self.kernel.exec_stops.end();
            let events = self.events.wait(Duration::ZERO).context("cannot read events")?;
            if events.contains(&Event::Ending) {
                self.stops.note_end();
            }
            let is_stopped = events.iter().any(|event| matches!(event, Event::Stopped { .. }));
            self.stops.let_go(is_stopped);
        }
        Ok(())
    }

    /// Reads the mappings of all running processes again.
    pub(super) fn reload_all(&mut self) -> anyhow::Result<()> {
        for number in self.roster.running_that(|_, _| true) {
            self.reload_and_attach(number)?;
        }
        Ok(())
    }

    /// Reads an instance's mappings again, and attaches to what is new. Returns whether they changed.
    pub(super) fn reload_and_attach(&mut self, number: u32) -> anyhow::Result<bool> {
        let changed = self.reload(number)?;
        if changed {
            self.attach_later(number);
        }
        Ok(changed)
    }

    /// Reads the mappings that are due to be read again. Returns the time until the next are due.
    pub(super) fn reload_due(&mut self) -> anyhow::Result<Option<Duration>> {
        let now = Instant::now();
        for number in self.roster.running_that(|_, process| process.reloads.is_due(now)) {
            let began = Instant::now();
            if let Some(process) = self.roster.get_mut(number) {
                process.reloads.begin();
            }
            let changed = self.reload_and_attach(number)?;
            if let Some(process) = self.roster.get_mut(number) {
                process.reloads.done(began, Instant::now(), changed);
                if !changed {
                    self.kernel.publisher.answer_reload_in_vain(process.instance.slot);
                }
            }
        }
        let now = Instant::now();
        let live = self.roster.running();
        Ok(live.filter_map(|process| process.reloads.rest(now)).min())
    }

    /// Calls [`Live::attach_new`], and logs a failure, as the trace goes on.
    pub(super) fn attach_later(&mut self, number: u32) {
        if let Err(error) = self.attach_new(number) {
            tracing::warn!("{error:#}: allocations there are not traced");
        }
    }

    /// Frees the slots of ended instances once no walk uses them.
    fn free_slots(&self) -> anyhow::Result<()> {
        let closed = self.kernel.processes.closed();
        if !closed.is_empty() {
            self.kernel
                .publisher
                .await_walks()
                .context("cannot wait for walks to end")?;
            self.kernel.processes.free(&closed);
        }
        Ok(())
    }

    /// Calls [`Live::forget_ended`], unless the pause since the last call is not over.
    pub(super) fn forget_when_due(&mut self) -> anyhow::Result<()> {
        // Blocks of ended instances must stay until the next report has listed them.
        if self.asked.lists_blocks {
            return Ok(());
        }
        let now = Instant::now();
        match self.lifecycle.forget_not_before {
            Some(not_before) if now < not_before => Ok(()),
            _ => self.forget_ended(),
        }
    }

    /// Removes the blocks of ended instances from the block table.
    pub(super) fn forget_ended(&mut self) -> anyhow::Result<()> {
        if !self.lifecycle.to_forget {
            return Ok(());
        }
        let began = Instant::now();
        let ended = self.roster.ended();
        self.kernel
            .forget_ended()
            .context("cannot clear the block table of ended processes")?;
        self.lifecycle.forgotten.extend(ended);
        self.give_back_stand_ins()?;
        tracing::debug!("blocks of ended processes forgotten in {:.1?}", began.elapsed());
        let pause = (PAUSE_PER_WORK * began.elapsed()).max(MIN_PAUSE);
        self.lifecycle.to_forget = false;
        self.lifecycle.forget_not_before = Some(Instant::now() + pause);
        Ok(())
    }
}
/// Returns whether the kernel removed all perf events from a process when it executed its program
/// (`begin_new_exec`), as it does if the process may not be dumped. Such a process has other rights than its
/// user (setuid, setgid), or more than it had (capabilities of the file), or its user may not read the file;
/// its files in `/proc` belong to root (`task_dump_owner`).
fn loses_events(pid: u32) -> bool {
    let status = ProcFields::status(pid).unwrap_or_default();
    let ids = |name| {
        let mut ids = status.words(name).filter_map(|id| id.parse::<u32>().ok());
        Some((ids.next()?, ids.next()?))
    };
    let (user, group) = (ids("Uid"), ids("Gid"));
    let is_different = |ids: Option<(u32, u32)>| ids.is_some_and(|(real, effective)| real != effective);
    let owner = std::fs::metadata(format!("/proc/{pid}/status")).map(|file| file.uid());
    let is_owned = |owner: u32| user.is_some_and(|(_, effective)| owner == effective);
    is_different(user) || is_different(group) || owner.is_ok_and(|owner| !is_owned(owner))
}
