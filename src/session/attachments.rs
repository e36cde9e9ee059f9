//! Attachments of one process or of all: probes in allocators and hooks of loaders, each file once.

use std::collections::{BTreeMap, HashSet};
use std::io;

use anyhow::Context;

use super::hook;
use super::probes::{AllocatorProbes, Probes};
use crate::bpf::{
    AttachError, Attached, AttachedHook, DynamicEvents, Hook, Kernel, ProbedIn, detach_at_once,
};
use crate::process::{Mappings, ModuleId, Modules};

/// Probes and hooks; dropping them detaches.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    // Fields drop in this order.
    /// USDT probes of the distance in use.
    of_distance: Attached,
    probes: Attached,
    hooks: Vec<AttachedHook>,
    /// Modules already handled: their probes, if any, are attached, or attaching failed.
    probed: HashSet<ModuleId>,
    /// Loaders already handled: their hook, if any, is attached, or attaching failed.
    hooked: HashSet<ModuleId>,
    /// Modules that were searched for the function by which programs end.
    exits: HashSet<ModuleId>,
    /// Python's interpreters whose hook is attached.
    pythons: HashSet<ModuleId>,
}

/// Attachments for processes that share the memory of one, by pid: none where probes do not tell processes
/// apart.
pub(super) type Sharers = BTreeMap<u32, Attachments>;

/// Process to attach to: what it maps, and the processes that its probes are hit by.
#[derive(Clone, Copy)]
pub(super) struct Place<'a, 'obj> {
    pub(super) kernel: &'a Kernel<'obj>,
    pub(super) probed_in: &'a ProbedIn<'a>,
    pub(super) mappings: &'a Mappings,
    pub(super) modules: &'a Modules,
}

impl Attachments {
    /// Attaches to the mapped files not handled yet. Returns whether any has an allocator, whose blocks were
    /// not seen until now.
    ///
    /// # Errors
    ///
    /// Fails if probes cannot be attached. These are not tried again.
    pub(super) fn add(
        &mut self,
        place: Place<'_, '_>,
        allocators: &mut AllocatorProbes,
    ) -> Result<bool, AttachError> {
        let Place {
            kernel,
            probed_in,
            mappings,
            modules,
        } = place;
        self.add_hook(place);
        let new: Vec<_> = mappings
            .module_ids()
            .filter(|&module| self.probed.insert(module))
            .collect();
        let Probes { functions, usdt } = allocators.of(&new, modules);
        let (of_distance, usdt): (Vec<_>, Vec<_>) =
            usdt.into_iter().partition(|probe| probe.distance.is_some());
        let is_seen_now = allocators.allocate(&functions) || !usdt.is_empty() || !of_distance.is_empty();
        if !functions.is_empty() || !usdt.is_empty() {
            self.probes.add(kernel.attach(probed_in, &functions, &usdt)?);
        }
        if !of_distance.is_empty() {
            self.of_distance.add(kernel.attach(probed_in, &[], &of_distance)?);
        }
        Ok(is_seen_now)
    }

    /// Attaches to the USDT probes of the present distance, in the files that are already probed. Returns
    /// those of the former distance, which are still attached.
    ///
    /// # Errors
    ///
    /// Fails if probes cannot be attached; those that were stay.
    pub(super) fn change_distance(
        &mut self,
        kernel: &Kernel<'_>,
        probed_in: &ProbedIn<'_>,
        modules: &Modules,
        allocators: &mut AllocatorProbes,
    ) -> Result<Attached, AttachError> {
        let probed: Vec<_> = self.probed.iter().copied().collect();
        let mut wanted = allocators.of(&probed, modules).usdt;
        wanted.retain(|probe| probe.distance.is_some());
        let attached = match wanted.is_empty() {
            true => Attached::default(),
            false => kernel.attach(probed_in, &[], &wanted)?,
        };
        Ok(std::mem::replace(&mut self.of_distance, attached))
    }

    /// Makes a process that was added later carry all probes that are attached in families.
    ///
    /// # Errors
    ///
    /// An event could not be opened: calls of the process are not seen.
    pub(super) fn carry(&mut self, events: &DynamicEvents, pid: u32) -> io::Result<()> {
        self.probes.add(Attached::carried(events, pid)?);
        Ok(())
    }

    /// Adds probes that are detached with the others.
    pub(super) fn keep(&mut self, more: Attached) {
        self.of_distance.add(more);
    }

    /// Attaches the loader's hook. Without it, only the walks that meet changed mappings notice them.
    pub(super) fn add_hook(&mut self, place: Place<'_, '_>) {
        let Place { kernel, mappings, .. } = place;
        let new = mappings.loader().is_some_and(|loader| self.hooked.insert(loader));
        let is_wanted = new && kernel.has_loader_hook();
        let hook = is_wanted.then(|| hook::find(mappings, place.modules)).flatten();
        if let Some(hook) = hook {
            let attached = kernel.attach_hook(place.probed_in, &hook);
            self.hooks.extend(
                attached.inspect_err(|error| tracing::debug!("no events of mapping changes: {error}")),
            );
        }
    }

    /// Attaches to the end of the program.
    pub(super) fn add_exit_hooks(&mut self, place: Place<'_, '_>) {
        let Place {
            kernel,
            probed_in,
            mappings,
            modules,
        } = place;
        let loader = mappings.loader();
        for id in mappings.module_ids().filter(|&id| self.exits.insert(id)) {
            let module = modules.get(id);
            let hook = module.and_then(|module| hook::exit(module, loader == Some(id)));
            if let Some(hook) = hook {
                let attached = kernel.attach_hook(probed_in, &hook);
                self.hooks.extend(
                    attached.inspect_err(|error| tracing::warn!("no verdict when the program ends: {error}")),
                );
            }
        }
    }

    /// Attaches to the function that ends code objects of an interpreter, unless that was done before.
    ///
    /// # Errors
    ///
    /// Fails if there is no hook, or it cannot be attached.
    pub(super) fn add_python_hook(
        &mut self,
        kernel: &Kernel<'_>,
        probed_in: &ProbedIn<'_>,
        module: ModuleId,
        hook: impl FnOnce() -> Option<Hook>,
    ) -> anyhow::Result<()> {
        if !self.pythons.contains(&module) {
            let hook = hook().context("its file cannot be probed")?;
            self.hooks.push(kernel.attach_hook(probed_in, &hook)?);
            self.pythons.insert(module);
        }
        Ok(())
    }

    /// Detaches all of these, in no particular order. Recorded data must be read before.
    pub(super) fn detach(all: impl IntoIterator<Item = Self>) {
        let (probes, hooks): (Vec<_>, Vec<_>) = all
            .into_iter()
            .map(|one| ([one.of_distance, one.probes], one.hooks))
            .unzip();
        detach_at_once(probes.into_iter().flatten(), hooks.into_iter().flatten());
    }

    /// Number of links that hold probes.
    pub(super) fn link_count(&self) -> usize {
        self.of_distance.link_count() + self.probes.link_count()
    }
}
