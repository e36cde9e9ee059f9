//! What is attached for one process or for all: probes in allocators and the hooks of loaders, each file once.

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
    /// Modules whose probes, if there are any, are attached, and those for which that failed.
    probed: HashSet<ModuleId>,
    /// The same for loaders and their hooks.
    hooked: HashSet<ModuleId>,
}

impl Attachments {
    /// Attaches to what is mapped and has nothing attached yet, for process `pid` or for all processes.
    ///
    /// # Errors
    ///
    /// The probes that could not be attached. It is not tried again.
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
            self.probes.add(kernel.attach(pid, &probes)?);
        }
        Ok(())
    }

    /// Without the hook, changes of the mappings are noticed by the walks that meet them.
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

    /// Detaches all of these, in no order. What was recorded must have been read.
    pub(super) fn detach(all: impl IntoIterator<Item = Self>) {
        let (probes, hooks): (Vec<_>, Vec<_>) = all.into_iter().map(|one| (one.probes, one.hooks)).unzip();
        detach_at_once(probes, hooks.into_iter().flatten());
    }

    /// Links that hold probes.
    pub(super) fn link_count(&self) -> usize {
        self.probes.link_count()
    }
}
