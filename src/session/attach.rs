//! Owns the attachments of a trace: probes of allocators and hooks, in each process or shared by all.

use anyhow::Result;

use super::attachments::{Attachments, Place};
use super::bystanders::Sharing;
use super::probes::AllocatorProbes;
use super::process::Process;
use super::roster::Roster;
use crate::bpf::{AttachError, Attached, Hook, Kernel, ProbedIn, detach_at_once};
use crate::process::{ModuleId, Modules};

/// Attachments of a trace. Those of single processes are theirs ([`Process::attached`]).
pub(super) struct Attach {
    /// Attachments for all processes; none if each has its own.
    shared: Attachments,
    sharing: Sharing,
    probes: AllocatorProbes,
    /// True if the started program is stopped where it is about to end.
    holds_end: bool,
    /// First instance that began after the last probes were attached; earlier ones may lack them.
    probed_since: u32,
}

/// Files and programs that are attached.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a, 'obj> {
    pub(super) kernel: &'a Kernel<'obj>,
    pub(super) modules: &'a Modules,
}

impl Attach {
    pub(super) fn new(sharing: Sharing, probes: AllocatorProbes, holds_end: bool) -> Self {
        Self {
            shared: Attachments::default(),
            sharing,
            probes,
            holds_end,
            probed_since: 0,
        }
    }

    pub(super) fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Probes in the mapped files.
    pub(super) fn probes(&self) -> &AllocatorProbes {
        &self.probes
    }

    /// Takes the probes out of a trace that was not started.
    pub(super) fn take_probes(&mut self) -> AllocatorProbes {
        std::mem::take(&mut self.probes)
    }

    /// Returns whether an instance may have begun without probes that a running one has.
    pub(super) fn is_older_than_probes(&self, number: u32) -> bool {
        number < self.probed_since
    }

    /// Makes a process that was not started by a traced one carry shared probes.
    ///
    /// # Errors
    ///
    /// Its calls are not seen.
    pub(super) fn carry(&mut self, pid: u32) -> Result<()> {
        self.sharing.carry(&mut self.shared, pid)
    }

    /// Attaches to the loader of an instance alone.
    pub(super) fn add_hook(&mut self, number: u32, roster: &mut Roster, parts: Parts<'_, '_>) {
        self.with(number, roster, |attached, process, probed_in, _| {
            attached.add_hook(place(process, probed_in, parts));
        });
    }

    /// Attaches to those mapped files of an instance that have nothing attached for it yet. Returns whether
    /// any of them has an allocator, whose blocks were not seen until now.
    pub(super) fn add(
        &mut self,
        number: u32,
        roster: &mut Roster,
        parts: Parts<'_, '_>,
    ) -> Result<bool, AttachError> {
        let holds_end = self.holds_end;
        let is_seen_now = self.with(number, roster, |attached, process, probed_in, probes| {
            let place = place(process, probed_in, parts);
            let is_seen_now = attached.add(place, probes)?;
            if holds_end {
                attached.add_exit_hooks(place);
            }
            probes.warn_of_environment(process.facts.pid, &process.mappings);
            Ok(is_seen_now)
        });
        let is_seen_now = is_seen_now.unwrap_or(Ok(false))?;
        self.probed_since = parts.kernel.processes.next();
        Ok(is_seen_now)
    }

    /// Attaches to the function that ends code objects of an instance's interpreter.
    ///
    /// # Errors
    ///
    /// Fails if there is no hook, or it cannot be attached.
    pub(super) fn add_python_hook(
        &mut self,
        number: u32,
        roster: &mut Roster,
        kernel: &Kernel<'_>,
        (module, hook): (ModuleId, impl FnOnce() -> Option<Hook>),
    ) -> Result<()> {
        let added = self.with(number, roster, |attached, _, probed_in, _| {
            attached.add_python_hook(kernel, probed_in, module, hook)
        });
        added.unwrap_or(Ok(()))
    }

    /// Calls `act` with the attachments that an instance's are among, and where these are; returns `None` if
    /// the instance is unknown.
    fn with<T>(
        &mut self,
        number: u32,
        roster: &mut Roster,
        act: impl FnOnce(&mut Attachments, &Process, &ProbedIn<'_>, &mut AllocatorProbes) -> T,
    ) -> Option<T> {
        let pid = roster.get(number)?.facts.pid;
        let probed_in = &self.sharing.probed_in(pid, roster.pids());
        let process = roster.get_mut(number)?;
        if self.sharing.is_shared() {
            return Some(act(&mut self.shared, process, probed_in, &mut self.probes));
        }
        let mut own = std::mem::take(&mut process.attached);
        let done = act(&mut own, process, probed_in, &mut self.probes);
        process.attached = own;
        Some(done)
    }

    /// Attaches to the mapped files of an instance for the processes that share its memory.
    pub(super) fn add_for_sharers(&mut self, process: &mut Process, parts: Parts<'_, '_>) {
        let mut sharers = std::mem::take(&mut process.sharers);
        for (&pid, attached) in &mut sharers {
            let probed_in = ProbedIn::Process(pid);
            let added = attached.add(place(process, &probed_in, parts), &mut self.probes);
            // It may have ended; its calls alone are not seen.
            if let Err(error) = added {
                tracing::debug!("process {pid}: {error}");
            }
        }
        process.sharers = sharers;
    }

    /// Changes to USDT probes of another `distance`. While both are attached, the kernel side ignores one.
    ///
    /// # Errors
    ///
    /// Fails if probes cannot be attached; then the former distance stays in use.
    pub(super) fn change_distance(
        &mut self,
        distance: u64,
        roster: &mut Roster,
        parts: Parts<'_, '_>,
    ) -> Result<()> {
        let before = self.probes.distance();
        self.probes.use_distance(distance);
        let probed_in = self
            .sharing
            .is_shared()
            .then(|| self.sharing.probed_in(0, roster.pids()));
        let shared = probed_in.map(|probed_in| (probed_in, &mut self.shared));
        let own = roster.running_mut().flat_map(|process| {
            let sharers = process.sharers.iter_mut();
            let sharers = sharers.map(|(&pid, attached)| (ProbedIn::Process(pid), attached));
            sharers.chain([(ProbedIn::Process(process.facts.pid), &mut process.attached)])
        });
        let mut replaced: Vec<(&mut Attachments, Attached)> = Vec::new();
        for (probed_in, attached) in shared.into_iter().chain(own) {
            match attached.change_distance(parts.kernel, &probed_in, parts.modules, &mut self.probes) {
                Ok(old) => replaced.push((attached, old)),
                Err(error) => {
                    self.probes.use_distance(before);
                    for (attached, old) in replaced {
                        attached.keep(old);
                    }
                    return Err(error.into());
                }
            }
        }
        parts.kernel.recorded.distance.set(distance);
        detach_at_once(replaced.into_iter().map(|(_, old)| old), []);
        Ok(())
    }

    /// Removes all probes and hooks from all processes. Recorded data stays.
    pub(super) fn detach(&mut self, roster: &mut Roster) {
        let own = roster.all_mut().flat_map(|process| {
            let sharers = std::mem::take(&mut process.sharers).into_values();
            sharers.chain([std::mem::take(&mut process.attached)])
        });
        Attachments::detach(own.chain([std::mem::take(&mut self.shared)]));
    }

    /// Number of links that hold probes.
    pub(super) fn link_count(&self, roster: &Roster) -> usize {
        let own = roster.all().map(|process| process.attached.link_count());
        self.shared.link_count() + own.sum::<usize>()
    }
}

fn place<'a, 'obj>(
    process: &'a Process,
    probed_in: &'a ProbedIn<'a>,
    parts: Parts<'a, 'obj>,
) -> Place<'a, 'obj> {
    Place {
        kernel: parts.kernel,
        probed_in,
        mappings: &process.mappings,
        modules: parts.modules,
    }
}
