//! Unwind tables of a process's modules: built on all cores, stored in the kernel, referred to by its
//! mappings.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use unwind_tables::addr::{Avma, Bias, Svma};
use unwind_tables::fingerprint::Fingerprint;
use unwind_tables::image::Image;
use unwind_tables::mapping::{ADDRESS_BITS, Check, Identity, Mapping, MappingKind, Trust};
use unwind_tables::places::Places;
use unwind_tables::{Compiled, ElfView, TableError, build, compile_saves_of_view};

use super::copies::Copies;
use crate::base::parallel;
use crate::bpf::{Kernel, Stored, TableStore, Walk};
use crate::process::{
    JvmCode, KnownCode, KnownCodeKind, MappedCode, Mappings, Module, ModuleId, Modules, Target,
};
use crate::symbolize::{compile_with_debug_file, separate_cfi};
use leak_report::model::TableFacts;
use leak_report::units::size;

/// State of a module's table.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Stored in the kernel, at this word.
    Stored(u32),
    /// The module has no CFI.
    NoCfi,
    /// No table; the reason was logged when it was found.
    Missing,
    /// No room for the table, which takes this many words.
    NoRoom(usize),
}

/// Result of compiling one module, or the reason for failure.
type Built = Result<Compiled, String>;

/// The tables of all modules seen.
#[derive(Debug, Default)]
pub(super) struct ModuleTables {
    /// States by the module that stands for all copies of a file.
    states: HashMap<ModuleId, State>,
    facts: HashMap<ModuleId, TableFacts>,
    copies: Copies,
    /// Places of code, for modules whose images have it closer together than the file.
    places: HashMap<ModuleId, Places>,
    /// Modules whose saves were requested; these are in the kernel, or are not available.
    saves: HashSet<ModuleId>,
}

/// Files from which tables are made.
#[derive(Clone, Copy)]
pub(super) struct Files<'a> {
    pub(super) modules: &'a Modules,
    /// Returns the root directories to search for debug files, which objects without CFI of their own may
    /// have.
    pub(super) roots: &'a dyn Fn() -> Vec<PathBuf>,
}

/// Tables that were built but not yet stored, the smallest first.
#[derive(Debug, Default)]
pub(super) struct BuiltTables(Vec<(ModuleId, Built)>);

impl BuiltTables {
    /// Words that the images take in the store, with room for their alignment.
    pub(super) fn words(&self) -> usize {
        let sizes = self.0.iter().map(|(_, built)| words(built));
        sizes.map(|words| words + TableStore::ALIGNMENT).sum()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Words of the image; 0 without one.
fn words(built: &Built) -> usize {
    let image = built.as_ref().ok().and_then(|compiled| compiled.image.as_ref());
    image.map_or(0, |image| image.words().len())
}

impl ModuleTables {
    /// Compiles the modules of `mappings` that have no table and could have one, on all cores.
    ///
    /// `has_room` returns whether a table of that many words would fit now, for those that did not fit
    /// before.
    pub(super) fn build<'a>(
        &mut self,
        mappings: impl IntoIterator<Item = &'a Mappings>,
        files: Files<'_>,
        walk: Walk,
        has_room: impl Fn(usize) -> bool,
    ) -> BuiltTables {
        if walk != Walk::Dwarf {
            return BuiltTables::default();
        }
        let modules = files.modules;
        let ids = mappings.into_iter().flat_map(Mappings::module_ids);
        let mut wanted: Vec<&Module> = ids
            .filter_map(|id| modules.get(self.copies.original(id, modules)))
            .filter(|module| match self.states.get(&module.id) {
                None => true,
                Some(&State::NoRoom(words)) => has_room(words),
                Some(State::Stored(_) | State::NoCfi | State::Missing) => false,
            })
            .collect();
        wanted.sort_unstable_by_key(|module| (module.bytes().len(), module.id));
        wanted.dedup_by_key(|module| module.id);
        if wanted.is_empty() {
            return BuiltTables::default();
        }
        let mut built = build_in_parallel(wanted, &(files.roots)());
        built.sort_by_key(|(id, built)| (words(built), *id));
        BuiltTables(built)
    }

    /// Stores built tables. Tables that `used` modules need stay; others are evicted if there is not enough
    /// room.
    ///
    /// # Errors
    ///
    /// Fails if it cannot wait for walks that may still use evicted tables.
    pub(super) fn store(
        &mut self,
        built: &BuiltTables,
        modules: &Modules,
        used: &HashSet<ModuleId>,
        kernel: &mut Kernel<'_>,
    ) -> Result<(), libbpf_rs::Error> {
        for &(id, ref built) in &built.0 {
            let path = modules.get(id).map(|module| module.path.display().to_string());
            let path = path.unwrap_or_default();
            if let Ok(compiled) = built {
                self.facts.insert(id, facts(compiled));
            }
            let state = match built.as_ref().map(|compiled| &compiled.image) {
                Ok(None) => State::NoCfi,
                Ok(Some(image)) => self.store_image((id, &path), image, used, kernel)?,
                Err(error) => {
                    tracing::warn!("no unwind table for {path}: {error}: stacks end there");
                    State::Missing
                }
            };
            self.states.insert(id, state);
        }
        Ok(())
    }

    fn store_image(
        &mut self,
        (id, path): (ModuleId, &str),
        image: &Image,
        used: &HashSet<ModuleId>,
        kernel: &mut Kernel<'_>,
    ) -> Result<State, libbpf_rs::Error> {
        let is_used = |module| used.contains(&module);
        let stored = kernel.tables.store(id, image, is_used, &kernel.publisher)?;
        if let Some(stored) = stored {
            self.forget(&stored, path);
            if !image.places().are_of_file() {
                self.places.insert(id, image.places().clone());
            }
            return Ok(State::Stored(stored.at));
        }
        if !self.states.contains_key(&id) {
            let (taken, all) = kernel.tables.usage();
            let [taken, all] = [taken, all].map(|bytes| size(bytes as u64));
            tracing::warn!(
                "no room for the unwind table of {path}, {}, with {taken} of {all} in use: stacks end there; raise \
                 --table-memory",
                size(image.byte_len() as u64)
            );
        }
        Ok(State::NoRoom(image.words().len()))
    }

    /// Builds and stores the saves of a module, once. Returns whether the module has them now, and did not
    /// have them before.
    pub(super) fn provide_saves(
        &mut self,
        module: ModuleId,
        files: Files<'_>,
        used: &HashSet<ModuleId>,
        kernel: &mut Kernel<'_>,
    ) -> Result<bool, libbpf_rs::Error> {
        let original = self.copies.known_original(module);
        let Some(module) = files
            .modules
            .get(original)
            .filter(|_| self.saves.insert(original))
        else {
            return Ok(false);
        };
        let path = module.path.display();
        let Ok(Some(image)) = saves_of(module, &(files.roots)()) else {
            return Ok(false);
        };
        let is_used = |module| used.contains(&module);
        match kernel
            .tables
            .store_saves(original, &image, is_used, &kernel.publisher)?
        {
            Some(stored) => {
                tracing::debug!(
                    "{path}: where it saves registers takes {} bytes",
                    image.byte_len()
                );
                self.forget(&stored, &path.to_string());
                Ok(true)
            }
            None => {
                tracing::warn!(
                    "no room for the register saves of {path}, {}: stacks that need them end there; raise \
                     --table-memory",
                    size(image.byte_len() as u64)
                );
                Ok(false)
            }
        }
    }

    /// Returns whether the kernel side has the saves of a module.
    pub(super) fn has_saves(&self, module: ModuleId, kernel: &Kernel<'_>) -> bool {
        kernel.tables.has_saves(self.copies.known_original(module))
    }

    fn forget(&mut self, stored: &Stored, path: &str) {
        for module in &stored.evicted {
            tracing::debug!("the table of module {} makes room for {path}", module.index());
            self.states.remove(module);
        }
        for module in &stored.evicted_saves {
            self.saves.remove(module);
        }
    }

    /// Modules whose tables `mappings` need.
    pub(super) fn used<'a>(
        &mut self,
        mappings: impl IntoIterator<Item = &'a Mappings>,
        modules: &Modules,
    ) -> HashSet<ModuleId> {
        let ids = mappings.into_iter().flat_map(Mappings::module_ids);
        ids.map(|id| self.copies.original(id, modules)).collect()
    }

    /// Facts about a module's table; `None` without one.
    pub(super) fn facts(&self, id: ModuleId) -> Option<TableFacts> {
        self.facts.get(&self.copies.known_original(id)).copied()
    }

    /// Makes the mapping list for the kernel.
    pub(super) fn kernel_mappings(
        &self,
        mappings: &Mappings,
        jvm: &JvmCode,
        modules: &Modules,
    ) -> Vec<Mapping> {
        let kernel_mapping = |entry: &crate::process::CodeMapping| {
            let (kind, bias, image_at) = match entry.code {
                MappedCode::Module { module, bias } => {
                    match self.states.get(&self.copies.known_original(module)) {
                        Some(&State::Stored(image_at)) => (MappingKind::Table, bias, image_at),
                        Some(State::NoCfi) => (MappingKind::NoCfi, bias, 0),
                        Some(State::Missing) => (MappingKind::NoTable, bias, 0),
                        Some(State::NoRoom(_)) | None => (MappingKind::Pending, bias, 0),
                    }
                }
                MappedCode::Generated { .. } => (MappingKind::Anonymous, Default::default(), 0),
                MappedCode::Trampoline => (MappingKind::Trampoline, Default::default(), 0),
                MappedCode::Unreadable { ref why, .. } if why.may_pass() => {
                    (MappingKind::Pending, Default::default(), 0)
                }
                MappedCode::Unreadable { .. } => (MappingKind::NoTable, Default::default(), 0),
            };
            // A return address into a trampoline is its first byte, and is looked up one byte lower.
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
        // Beyond these addresses is only the kernel's own page; walks look nothing up there.
        let user = mappings
            .entries()
            .iter()
            .filter(|entry| entry.range.end.get() >> ADDRESS_BITS == 0);
        let all = user.flat_map(|entry| self.placed(kernel_mapping(entry), &entry.code));
        match jvm.pushes_frame_pointers {
            true => all.flat_map(|mapping| of_jvm(mapping, jvm)).collect(),
            false => all.collect(),
        }
    }

    /// Splits a mapping by the places of its code in the image.
    fn placed(&self, mapping: Mapping, code: &MappedCode) -> Vec<Mapping> {
        let places = match (code, mapping.kind) {
            (&MappedCode::Module { module, .. }, MappingKind::Table) => {
                self.places.get(&self.copies.known_original(module))
            }
            _ => None,
        };
        let Some(places) = places else {
            return vec![mapping];
        };
        let bias = mapping.bias;
        let range = bias.to_svma(mapping.start)..bias.to_svma(mapping.end);
        let piece = |part: Range<Svma>| Mapping {
            start: bias.to_avma(part.start),
            end: bias.to_avma(part.end),
            bias: Bias::from_raw(bias.get().wrapping_add(places.bias(part.start).get())),
            ..mapping
        };
        places.parts(&range).into_iter().map(piece).collect()
    }
}

/// Splits a mapping of a process with a JVM. If the JVM keeps frame pointers, its generated code is split by
/// what is known of it.
fn of_jvm(mapping: Mapping, jvm: &JvmCode) -> Vec<Mapping> {
    let piece = |start: Avma, end: Avma, kind| Mapping {
        start,
        end,
        kind,
        ..mapping
    };
    if mapping.kind != MappingKind::Anonymous {
        return vec![mapping];
    }
    if !jvm.keeps_frame_pointers {
        return vec![piece(mapping.start, mapping.end, MappingKind::AnonymousPushed)];
    }
    let mut pieces = Vec::new();
    let mut at = mapping.start;
    for KnownCode { range, kind } in &jvm.known {
        let (start, end) = (range.start.max(mapping.start), range.end.min(mapping.end));
        if start < end {
            pieces.push(piece(at, start, MappingKind::AnonymousLinked));
            let kind = match kind {
                KnownCodeKind::Methods => MappingKind::AnonymousMethods,
                KnownCodeKind::Stub => MappingKind::AnonymousStub,
            };
            pieces.push(piece(start, end, kind));
            at = end;
        }
    }
    pieces.push(piece(at, mapping.end, MappingKind::AnonymousLinked));
    pieces.retain(|piece| piece.start < piece.end);
    pieces
}

/// Evidence by which a walk verifies that a mapping is still there.
fn identity(code: &MappedCode, mappings: &Mappings, modules: &Modules) -> Identity {
    match *code {
        MappedCode::Module { module, .. } if mappings.is_settled(module) => Identity::SETTLED,
        MappedCode::Module { module, bias } => {
            // If a part was mapped elsewhere, its words are not where this bias says.
            let module = modules
                .get(module)
                .filter(|module| mappings.is_loaded(module, bias));
            let fingerprint = module.and_then(|module| module.fingerprint);
            fingerprint.map_or(Identity::UNCHANGED, |words| by_words(words, bias))
        }
        MappedCode::Trampoline => Identity::SETTLED,
        MappedCode::Generated { .. } | MappedCode::Unreadable { .. } => Identity::UNCHANGED,
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

/// Compiles modules, the last first, and releases the pages of their files, which are not needed again soon.
fn build_in_parallel(queue: Vec<&Module>, roots: &[PathBuf]) -> Vec<(ModuleId, Built)> {
    parallel::for_each(queue, |module| {
        let compiled = compile_with_debug_file(module.bytes(), &module.path, roots);
        let mut result = compiled.map_err(|error| error.to_string());
        if module.is_cut() {
            result = Err("its file was cut off while it was read".to_owned());
        }
        module.release();
        (module.id, result)
    })
}

/// Compiles the saves of a module by the same CFI as its table.
fn saves_of(module: &Module, roots: &[PathBuf]) -> Result<Option<Image>, TableError> {
    let view = ElfView::parse_any(module.bytes())?;
    let (_, coverage) = build::build(&view)?;
    let separate = separate_cfi(&coverage, module.bytes(), &module.path, roots);
    compile_saves_of_view(&view.with_debug_frame(separate.as_deref().unwrap_or_default()))
}

/// Directories to search for separate debug files: the root directory of each target, then our own.
pub(super) fn debug_roots<'a>(targets: impl IntoIterator<Item = &'a Target>) -> Vec<PathBuf> {
    let mut roots = Vec::new();
    let mut seen = HashSet::new();
    for target in targets {
        let root = PathBuf::from(format!("/proc/{}/root", target.pid()));
        // Targets with the same root share the path of the first, which works for as long as that one runs.
        let identity = fs::metadata(&root).map(|metadata| (metadata.dev(), metadata.ino()));
        if identity.map_or(true, |identity| seen.insert(identity)) {
            roots.push(root);
        }
    }
    roots.push(PathBuf::from("/"));
    roots
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generated code is split where known code begins and ends; nothing is lost, and other mappings stay as
    /// they are.
    #[test]
    fn code_of_a_jvm_is_told_apart() {
        let mapping = |start, end, kind| Mapping {
            start: Avma::new(start),
            end: Avma::new(end),
            bias: Bias::default(),
            image_at: 0,
            kind,
            identity: Identity::SETTLED,
        };
        let known = [
            (0, 15, KnownCodeKind::Methods),
            (20, 30, KnownCodeKind::Methods),
            (30, 35, KnownCodeKind::Stub),
            (38, 50, KnownCodeKind::Methods),
        ];
        let known = known.map(|(start, end, kind)| KnownCode {
            range: Avma::new(start)..Avma::new(end),
            kind,
        });
        let mut jvm = JvmCode {
            pushes_frame_pointers: true,
            keeps_frame_pointers: true,
            known: known.to_vec(),
            ..JvmCode::default()
        };
        let anonymous = mapping(10, 40, MappingKind::Anonymous);
        let pieces = of_jvm(anonymous, &jvm);
        let expected = [
            (10, 15, MappingKind::AnonymousMethods),
            (15, 20, MappingKind::AnonymousLinked),
            (20, 30, MappingKind::AnonymousMethods),
            (30, 35, MappingKind::AnonymousStub),
            (35, 38, MappingKind::AnonymousLinked),
            (38, 40, MappingKind::AnonymousMethods),
        ];
        assert_eq!(
            pieces,
            expected.map(|(start, end, kind)| mapping(start, end, kind))
        );
        let table = mapping(10, 40, MappingKind::Table);
        assert_eq!(of_jvm(table, &jvm), [table]);
        jvm.keeps_frame_pointers = false;
        assert_eq!(of_jvm(table, &jvm), [table]);
        assert_eq!(
            of_jvm(anonymous, &jvm),
            [mapping(10, 40, MappingKind::AnonymousPushed)]
        );
    }
}
