//! Unwind tables of a process's modules: built on all cores, stored in the kernel, referred to by its mappings.

use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;

use unwind_tables::addr::Bias;
use unwind_tables::fingerprint::Fingerprint;
use unwind_tables::image::Image;
use unwind_tables::mapping::{ADDRESS_BITS, Check, Identity, Mapping, MappingKind, Trust};
use unwind_tables::{Compiled, compile};

use crate::bpf::{TableStore, Walk};
use crate::report::TableFacts;
use crate::target::{MappedCode, Mappings, Module, ModuleId, Modules};

/// What became of a module's table.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// It is in the kernel, at this word.
    Stored(u32),
    /// The module has no CFI.
    NoCfi,
    /// There is none; why was said when it was found out.
    Missing,
}

/// The result of compiling one module.
type Built = Result<Compiled, String>;

/// The tables of all modules seen.
#[derive(Debug, Default)]
pub(super) struct ModuleTables {
    states: HashMap<ModuleId, State>,
    facts: HashMap<ModuleId, TableFacts>,
}

/// Tables that were built but not yet stored.
#[derive(Debug, Default)]
pub(super) struct BuiltTables(Vec<(ModuleId, Built)>);

impl BuiltTables {
    /// Words that the images take in the store, with room for their alignment.
    pub(super) fn words(&self) -> usize {
        let images = self
            .0
            .iter()
            .filter_map(|(_, built)| built.as_ref().ok()?.image.as_ref());
        images
            .map(|image| image.words().len() + TableStore::ALIGNMENT)
            .sum()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl ModuleTables {
    /// Compiles the modules of `mappings` that have not been, on all cores.
    pub(super) fn build(&self, mappings: &[Mappings], modules: &Modules, walk: Walk) -> BuiltTables {
        if walk != Walk::Dwarf {
            return BuiltTables::default();
        }
        let mut wanted: Vec<&Module> = mappings
            .iter()
            .flat_map(Mappings::module_ids)
            .filter(|id| !self.states.contains_key(id))
            .filter_map(|id| modules.get(id))
            .collect();
        wanted.sort_unstable_by_key(|module| (module.bytes().len(), module.id));
        wanted.dedup_by_key(|module| module.id);
        BuiltTables(build_in_parallel(wanted))
    }

    /// Stores what was built.
    pub(super) fn store(&mut self, built: &BuiltTables, modules: &Modules, store: &mut TableStore) {
        for &(id, ref built) in &built.0 {
            let path = || {
                modules
                    .get(id)
                    .map(|module| module.path.display().to_string())
                    .unwrap_or_default()
            };
            if let Ok(compiled) = built {
                self.facts.insert(id, facts(compiled));
            }
            let state = match built.as_ref().map(|compiled| &compiled.image) {
                Ok(None) => State::NoCfi,
                Ok(Some(image)) => store.store(id, image).map_or_else(
                    || {
                        tracing::warn!("no room for the unwind table of {}: stacks end there", path());
                        State::Missing
                    },
                    State::Stored,
                ),
                Err(error) => {
                    tracing::warn!("no unwind table for {}: {error}: stacks end there", path());
                    State::Missing
                }
            };
            self.states.insert(id, state);
        }
    }

    /// What the table of a module holds; `None` without one.
    pub(super) fn facts(&self, id: ModuleId) -> Option<TableFacts> {
        self.facts.get(&id).copied()
    }

    /// The mapping list for the kernel.
    pub(super) fn kernel_mappings(&self, mappings: &Mappings, modules: &Modules) -> Vec<Mapping> {
        let kernel_mapping = |entry: &crate::target::CodeMapping| {
            let (kind, bias, image_at) = match entry.code {
                MappedCode::Module { module, bias } => match self.states.get(&module) {
                    Some(&State::Stored(image_at)) => (MappingKind::Table, bias, image_at),
                    Some(State::NoCfi) => (MappingKind::NoCfi, bias, 0),
                    Some(State::Missing) | None => (MappingKind::Pending, bias, 0),
                },
                MappedCode::Anonymous => (MappingKind::Anonymous, Default::default(), 0),
                MappedCode::Trampoline => (MappingKind::Trampoline, Default::default(), 0),
                MappedCode::Unreadable { .. } => (MappingKind::Pending, Default::default(), 0),
            };
            // What returns to a trampoline returns to its first byte, and is looked up one byte lower.
            let below = u64::from(kind == MappingKind::Trampoline);
            Mapping {
                start: entry.range.start.wrapping_sub(below),
                end: entry.range.end,
                bias,
                image_at,
                kind,
                identity: identity(&entry.code, mappings, modules),
            }
        };
        // Above, there is only the kernel's own page; walks look nothing up there.
        let user = mappings
            .entries()
            .iter()
            .filter(|entry| entry.range.end.get() >> ADDRESS_BITS == 0);
        user.map(kernel_mapping).collect()
    }
}

/// How a walk can tell that a mapping is still there.
fn identity(code: &MappedCode, mappings: &Mappings, modules: &Modules) -> Identity {
    match *code {
        MappedCode::Module { module, .. } if mappings.is_settled(module) => Identity::SETTLED,
        MappedCode::Module { module, bias } => {
            // The words of a part that was mapped elsewhere are not where the part's bias says.
            let module = modules
                .get(module)
                .filter(|module| mappings.is_loaded(module, bias));
            let fingerprint = module.and_then(|module| module.fingerprint);
            fingerprint.map_or(Identity::UNCHANGED, |words| by_words(words, bias))
        }
        MappedCode::Trampoline => Identity::SETTLED,
        MappedCode::Anonymous | MappedCode::Unreadable { .. } => Identity::UNCHANGED,
    }
}

fn by_words(fingerprint: Fingerprint, bias: Bias) -> Identity {
    Identity {
        trust: if fingerprint.unique {
            Trust::Checked
        } else {
            Trust::CheckedUnchanged
        },
        checks: fingerprint.words.map(|(svma, word)| Check {
            at: bias.to_avma(svma),
            word,
        }),
    }
}

fn facts(compiled: &Compiled) -> TableFacts {
    let table_bytes = compiled.image.as_ref().map_or(0, Image::byte_len);
    TableFacts::of(&compiled.coverage, table_bytes as u64)
}

/// Compiles `queue`, its last element first.
fn build_in_parallel(queue: Vec<&Module>) -> Vec<(ModuleId, Built)> {
    let workers = thread::available_parallelism().map_or(1, |cores| cores.get().min(queue.len()));
    let built = Mutex::new(Vec::with_capacity(queue.len()));
    let queue = Mutex::new(queue);
    // A worker that panicked would have poisoned the locks; what the others did is still good.
    let next = || {
        queue
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .pop()
    };
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(module) = next() {
                    let result = compile(module.bytes()).map_err(|error| error.to_string());
                    built
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner)
                        .push((module.id, result));
                }
            });
        }
    });
    built
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
