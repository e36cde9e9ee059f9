//! The loader's hook: the function that a target's loader calls, for debuggers, before and after it maps or unmaps
//! objects (`r_brk` of `struct r_debug`; glibc and musl both call it `_dl_debug_state`).

use unwind_tables::ElfView;

use crate::allocator::choose_site;
use crate::bpf::Hook;
use crate::target::{Mappings, Modules};

const HOOK: &str = "_dl_debug_state";

/// The hook of a process with these mappings, if its loader has one. A static program has no loader.
pub(super) fn find(mappings: &Mappings, modules: &Modules) -> Option<Hook> {
    let loader = modules.get(mappings.loader()?)?;
    let site = choose_site(loader, HOOK)
        .inspect_err(|reason| {
            tracing::debug!(
                "no events of mapping changes: {}: {reason}",
                loader.path.display()
            );
        })
        .ok()?;
    Some(Hook {
        path: loader.probe_path()?,
        file: loader.path.display().to_string(),
        offset: ElfView::parse(loader.bytes()).ok()?.offset_of(site)?,
    })
}
