//! Settled modules: those that a process cannot unload while its program runs. These are the executable, its
//! loader, and the objects that they need.
//!
//! The loader never closes objects that the program itself needs; all others were loaded on request and can
//! be unloaded at any time. Objects can only be matched by name, so a name shared by two mapped objects
//! settles neither of them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use unwind_tables::addr::Bias;

use super::jvm_code::JvmCode;
use super::mappings::{MappedCode, Mappings};
use super::modules::{Module, ModuleId, Modules};

/// Module with a name, or a mark that several have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamedModule {
    One(ModuleId),
    Several,
}

/// Modules that a process cannot unload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) modules: BTreeSet<ModuleId>,
    /// The loader, which is one of `modules`.
    pub(super) loader: Option<ModuleId>,
    /// Modules whose memory differs from the file that their mapping was resolved to.
    pub(super) different: BTreeSet<ModuleId>,
    /// Code that a JVM generates in the process.
    pub(super) jvm: JvmCode,
}

/// Computes the settled modules among `mappings`, given the process's executable.
pub(super) fn settled(mappings: &Mappings, modules: &Modules, executable: Option<ModuleId>) -> Settled {
    let mapped = mapped_once(mappings);
    let modules_by_name = modules_by_name(mapped.keys().filter_map(|&id| modules.get(id)));
    let once = |id: &ModuleId| mapped.get(id).is_some_and(Option::is_some);
    let named = |name: &[u8]| match modules_by_name.get(file_name(name)) {
        Some(&NamedModule::One(id)) => Some(id).filter(once),
        Some(NamedModule::Several) | None => None,
    };
    let executable = executable.filter(once).and_then(|id| modules.get(id));
    let interpreter = executable.and_then(|module| module.linking().interpreter.as_deref());
    let is_loader = |module: &&Module| module.is_loader();
    let loader = match interpreter {
        Some(name) => named(name),
        // `ld-linux-x86-64.so.2 PROGRAM`: the executable is the loader, not the program that it runs.
        None => executable.filter(is_loader).map(|module| module.id),
    };
    let mut settled: BTreeSet<_> = mapped
        .keys()
        .copied()
        .filter(|&id| modules.get(id).is_some_and(Module::is_vdso))
        .collect();
    let mut waiting: Vec<ModuleId> = executable
        .map(|module| module.id)
        .into_iter()
        .chain(loader)
        .collect();
    while let Some(module) = waiting.pop().and_then(|id| modules.get(id)) {
        if settled.insert(module.id) {
            let needed = module.linking().needed.iter();
            waiting.extend(needed.filter_map(|name| named(name)));
        }
    }
    Settled {
        modules: settled,
        loader,
        different: BTreeSet::new(),
        jvm: JvmCode::default(),
    }
}

/// The mapped modules with their bias; `None` for a module with several, by `dlmopen` for example.
fn mapped_once(mappings: &Mappings) -> BTreeMap<ModuleId, Option<Bias>> {
    let mut mapped = BTreeMap::new();
    for entry in mappings.entries() {
        if let MappedCode::Module { module, bias } = entry.code {
            let known = mapped.entry(module).or_insert(Some(bias));
            if *known != Some(bias) {
                *known = None;
            }
        }
    }
    mapped
}

/// Modules by name: the name in the object (`DT_SONAME`), and the file's.
fn modules_by_name<'a>(modules: impl Iterator<Item = &'a Module>) -> BTreeMap<&'a [u8], NamedModule> {
    let mut modules_by_name = BTreeMap::new();
    for module in modules {
        let file = module.path.file_name().map(OsStrExt::as_bytes);
        let names: BTreeSet<_> = module
            .linking()
            .soname
            .as_deref()
            .into_iter()
            .chain(file)
            .collect();
        for name in names {
            modules_by_name
                .entry(name)
                .and_modify(|named| *named = NamedModule::Several)
                .or_insert(NamedModule::One(module.id));
        }
    }
    modules_by_name
}

/// Last part of a name that may be a path.
fn file_name(name: &[u8]) -> &[u8] {
    Path::new(std::ffi::OsStr::from_bytes(name))
        .file_name()
        .map_or(name, OsStrExt::as_bytes)
}

#[cfg(test)]
mod tests;
