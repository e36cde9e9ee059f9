//! Processes that share the memory of a traced one: their allocations and frees count as that one's, as if
//! its threads made them.
//!
//! The kernel side knows sharers that are started during the trace before they run. Earlier ones are found by
//! comparing memory. Where a probe tells processes apart, each sharer has its own links: until they are
//! attached, its calls are not seen.

use std::time::{Duration, Instant};

use super::attach::Parts;
use super::attachments::Attachments;
use super::bystanders::Sharing;
use super::live::Live;
use crate::process::shared::{share_memory, sharing_with};

/// Time within which a process that was started by `vfork` executes another program: one that shares memory
/// for longer is a sharer.
const PASSING: Duration = Duration::from_millis(20);
/// Pause between two looks for sharers that have ended.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// Processes that have just begun to share the memory of an instance.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    begun: Vec<Begun>,
    next_look: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    instance: u32,
    pid: u32,
    at: Instant,
}

impl Awaited {
    pub(super) fn add(&mut self, instance: u32, pid: u32) {
        let at = Instant::now();
        self.begun.push(Begun { instance, pid, at });
    }
}

impl Live<'_> {
    /// Finds the processes that share the memory of an instance that has just begun.
    pub(super) fn find_sharers(&mut self, number: u32) {
        let Some(process) = self.roster.get(number) else {
            return;
        };
        match sharing_with(process.facts.pid) {
            Ok(sharing) => {
                let of = process.facts.pid;
                for pid in sharing {
                    tracing::info!("{pid} shares the memory of {of}: both count as {of}");
                    self.add_sharer(number, pid);
                }
            }
            Err(error) => tracing::debug!(
                "processes that share the memory of {} are not counted as it: {error} (kcmp)",
                process.facts.pid
            ),
        }
    }

    /// Makes calls of process `pid` count as those of an instance whose memory it shares.
    /// [`Live::attach_new`] attaches its probes.
    fn add_sharer(&mut self, number: u32, pid: u32) {
        let Some(process) = self.roster.get_mut(number) else {
            return;
        };
        if process.sharers.contains_key(&pid) {
            return;
        }
        if let Err(error) = self.kernel.processes.lend(pid, &process.instance) {
            tracing::warn!(
                "allocations of process {pid} in the memory of {} are not traced: {error}",
                process.facts.pid
            );
            return;
        }
        process.sharers.insert(pid, Attachments::default());
    }

    /// Adds processes that have shared memory for [`PASSING`], and forgets sharers that no longer do.
    ///
    /// # Errors
    ///
    /// Probes cannot be attached.
    pub(super) fn follow_sharers(&mut self) -> anyhow::Result<()> {
        let due: Vec<_> = self
            .awaited
            .begun
            .extract_if(.., |begun| begun.at.elapsed() >= PASSING)
            .collect();
        for Begun { instance, pid, at } in due {
            let process = self.roster.get(instance).filter(|process| process.is_live());
            let of = process.map(|process| process.facts.pid);
            let Some(of) = of.filter(|&of| share_memory(of, pid) == Ok(true)) else {
                continue;
            };
            self.add_sharer(instance, pid);
            self.attach_new(instance)?;
            let but = match self.tells_apart() {
                true => format!("; its calls in its first {:.1?} were missed", at.elapsed()),
                false => String::new(),
            };
            tracing::warn!("{pid} shares the memory of {of}: both count as {of}{but}");
        }
        if self.awaited.next_look.is_none_or(|next| Instant::now() >= next) {
            self.awaited.next_look = Some(Instant::now() + LOOK_PAUSE);
            self.forget_sharers();
        }
        Ok(())
    }

    /// Detaches from sharers that have ended, or have executed another program.
    fn forget_sharers(&mut self) {
        let mut ceased = Vec::new();
        for process in self.roster.running_mut() {
            let of = process.facts.pid;
            let gone = process.sharers.keys().copied();
            let gone: Vec<_> = gone.filter(|&pid| share_memory(of, pid) != Ok(true)).collect();
            ceased.extend(gone.iter().filter_map(|pid| process.sharers.remove(pid)));
        }
        Attachments::detach(ceased);
    }

    /// Returns whether probes of one process are not hit by another that shares its memory.
    fn tells_apart(&self) -> bool {
        matches!(self.attach.sharing(), Sharing::Apart) && self.kernel.tells_processes_apart()
    }

    /// Attaches to the mapped files of an instance for those that share its memory.
    pub(super) fn attach_sharers(&mut self, number: u32) {
        if !self.tells_apart() {
            return;
        }
        let parts = Parts {
            kernel: &self.kernel,
            modules: self.code.modules(),
        };
        if let Some(process) = self.roster.get_mut(number) {
            self.attach.add_for_sharers(process, parts);
        }
    }
}
