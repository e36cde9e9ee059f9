//! The loader's hook: the function that a target's loader calls, for debuggers, before and after it maps or unmaps
//! objects (`r_brk` of `struct r_debug`; glibc and musl both call it `_dl_debug_state`).

use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSymbol};
use unwind_tables::ElfView;
use unwind_tables::addr::{Avma, Svma};

use crate::allocator::choose_site;
use crate::bpf::Hook;
use crate::process::{MappedCode, Mappings, Module, Modules};

const HOOK: &str = "_dl_debug_state";

/// The loader's record for debuggers, and where in it is said whether it is at work (`r_state` of `struct r_debug`).
const RECORD: &str = "_r_debug";
const STATE_AT: u64 = 24;

/// The hook of a process with these mappings, if its loader has one. A static program has no loader.
pub(super) fn find(mappings: &Mappings, modules: &Modules) -> Option<Hook> {
    let loader = modules.get(mappings.loader()?)?;
    Some(Hook {
        path: loader.probe_path()?,
        file: loader.path.display().to_string(),
        offset: ElfView::parse(loader.bytes()).ok()?.offset_of(site(loader)?)?,
    })
}

fn site(loader: &Module) -> Option<Svma> {
    choose_site(loader, HOOK)
        .inspect_err(|reason| {
            tracing::debug!(
                "no events of mapping changes: {}: {reason}",
                loader.path.display()
            );
        })
        .ok()
}

/// The hook in the process's memory, and the word that is 0 when the hook is called and all is mapped and relocated.
/// Without that word (musl), the first call says so.
pub(super) fn in_memory(mappings: &Mappings, modules: &Modules) -> Option<(Avma, Option<Avma>)> {
    let loader = modules.get(mappings.loader()?)?;
    let bias = mappings.entries().iter().find_map(|entry| match entry.code {
        MappedCode::Module { module, bias } => (module == loader.id).then_some(bias),
        MappedCode::Anonymous | MappedCode::Trampoline | MappedCode::Unreadable { .. } => None,
    })?;
    let state = record(loader).map(|record| bias.to_avma(record.wrapping_add(STATE_AT)));
    Some((bias.to_avma(site(loader)?), state))
}

fn record(loader: &Module) -> Option<Svma> {
    let elf = ElfFile64::<LittleEndian>::parse(loader.bytes()).ok()?;
    let record = elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(RECORD))?;
    Some(Svma::new(record.address()))
}
