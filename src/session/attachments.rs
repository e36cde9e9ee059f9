//! Attachments of one process or of all: probes in allocators and hooks of loaders, each file once.

use std::collections::HashSet;

use super::hook;
use super::probes::AllocatorProbes;
use crate::bpf::{AttachError, Attached, AttachedHook, Kernel, detach_at_once};
use crate::process::{Mappings, ModuleId, Modules};

/// Probes and hooks; dropping them detaches.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    probes: Attached,
    hooks: Vec<AttachedHook>,
    /// Modules already handled: their probes, if any, are attached, or attaching failed.
    probed: HashSet<ModuleId>,
    /// Loaders already handled: their hook, if any, is attached, or attaching failed.
    hooked: HashSet<ModuleId>,
}

impl Attachments {
    /// Attaches to the mapped files not handled yet, for process `pid` or, without one, for all processes.
    ///
    /// # Errors
    ///
    /// Fails if probes cannot be attached. These are not tried again.
    pub(super) fn add(
        &mut self,
        kernel: &Kernel<'_>,
        pid: Option<u32>,
        mappings: &Mappings,
        modules: &Modules,
        allocators: &mut AllocatorProbes,
    ) -> Result<(), AttachError> {
        self.add_hook(kernel, pid, mappings, modules);
        let new: Vec<_> = mappings
            .module_ids()
            .filter(|&module| self.probed.insert(module))
            .collect();
        let probes = allocators.of(&new, modules);
        if !probes.is_empty() {
            self.probes
                .add(kernel.attach(pid, &probes.functions, &probes.usdt)?);
        }
        Ok(())
    }

    /// Attaches the loader's hook. Without it, only the walks that meet changed mappings notice them.
    pub(super) fn add_hook(
        &mut self,
        kernel: &Kernel<'_>,
        pid: Option<u32>,
        mappings: &Mappings,
        modules: &Modules,
    ) {
        let new = mappings.loader().is_some_and(|loader| self.hooked.insert(loader));
        let hook = new.then(|| hook::find(mappings, modules)).flatten();
        if let Some(hook) = hook {
            let attached = kernel.attach_hook(pid, &hook);
            self.hooks.extend(
                attached.inspect_err(|error| tracing::debug!("no events of mapping changes: {error}")),
            );
        }
    }

    /// Detaches all of these, in no particular order. What was recorded must have been read before.
    pub(super) fn detach(all: impl IntoIterator<Item = Self>) {
        let (probes, hooks): (Vec<_>, Vec<_>) = all.into_iter().map(|one| (one.probes, one.hooks)).unzip();
        detach_at_once(probes, hooks.into_iter().flatten());
    }

    /// Number of links that hold probes.
    pub(super) fn link_count(&self) -> usize {
        self.probes.link_count()
    }
}
