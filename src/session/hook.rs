//! The loader's hook: the function that a target's loader calls, for debuggers, before and after it maps or
//! unmaps objects (`r_brk` of `struct r_debug`; glibc and musl both call it `_dl_debug_state`). And the
//! function by which programs end.

use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSymbol};
use unwind_tables::ElfView;
use unwind_tables::addr::{Avma, Svma};

use crate::allocator::choose_site;
use crate::bpf::{Hook, HookKind};
use crate::process::{MappedCode, Mappings, Module, Modules};

const HOOK: &str = "_dl_debug_state";

/// Function by which programs end, after all that `atexit` has registered. `_exit` is another name of it
/// (glibc), or calls it, and is not called where `main` returns (musl).
const EXIT: &str = "_Exit";

/// Symbol of the loader's `struct r_debug`.
const RECORD: &str = "_r_debug";
/// Offset of `r_state` in `struct r_debug`: 0 unless the loader is changing its mappings.
const STATE_AT: u64 = 24;

/// Finds the loader's hook in these mappings; `None` if the loader has none, or a static program has no
/// loader.
pub(super) fn find(mappings: &Mappings, modules: &Modules) -> Option<Hook> {
    let loader = modules.get(mappings.loader()?)?;
    Some(Hook {
        kind: HookKind::Loader,
        path: loader.probe_path()?,
        file: loader.path.display().to_string(),
        offset: ElfView::parse(loader.bytes()).ok()?.offset_of(site(loader)?)?,
    })
}

/// Finds the function by which programs of a C library end; `None` if `module` is no C library, or has no
/// such function.
pub(super) fn exit(module: &Module, is_loader: bool) -> Option<Hook> {
    // musl's loader is its C library.
    let is_c_library = module.is_glibc() || module.is_static_program() || is_loader;
    if !is_c_library {
        return None;
    }
    Some(Hook {
        kind: HookKind::Exit,
        path: module.probe_path()?,
        file: module.path.display().to_string(),
        offset: ElfView::parse(module.bytes())
            .ok()?
            .offset_of(choose_site(module, EXIT).ok()?)?,
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

/// Addresses in the process of the hook and of `r_state`, which is 0 when the hook is called after everything
/// is mapped and relocated. Without that word (musl), the first call of the hook means this.
pub(super) fn in_memory(mappings: &Mappings, modules: &Modules) -> Option<(Avma, Option<Avma>)> {
    let loader = modules.get(mappings.loader()?)?;
    let bias = mappings.entries().iter().find_map(|entry| match entry.code {
        MappedCode::Module { module, bias } => (module == loader.id).then_some(bias),
        MappedCode::Generated { .. } | MappedCode::Trampoline | MappedCode::Unreadable { .. } => None,
    })?;
    let state = record(loader).map(|record| bias.to_avma(record.wrapping_add(STATE_AT)));
    Some((bias.to_avma(site(loader)?), state))
}

fn record(loader: &Module) -> Option<Svma> {
    let elf = ElfFile64::<LittleEndian>::parse(loader.bytes()).ok()?;
    let record = elf.dynamic_symbols().find(|symbol| symbol.name() == Ok(RECORD))?;
    Some(Svma::new(record.address()))
}
