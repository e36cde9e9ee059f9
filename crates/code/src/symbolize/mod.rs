//! Lookup of an address in a module: its function, inlined functions, file and line.
//!
//! A function's name comes from a symbol table if a symbol contains the address, since a symbol has a start
//! address, and from DWARF otherwise; lines and inlined functions come from DWARF. Both are looked for in the
//! module's own file and in its separate debug file. A name that is not found is `None` with a reason, never
//! a guess from the nearest symbol. Code outside all modules has the name that the program wrote to its perf
//! map, if any.
//!
//! Debug information can be in many files: `debug_file` and `debug_files` find an object's separate file and
//! the supplementary file that it shares with others, `split` the parts that the compiler put into separate
//! files, `mini_debug` a small table in the object itself, and [`debuginfod`] asks servers. All of them are
//! untrusted.

mod debug_file;
mod debug_files;
#[cfg_attr(not(feature = "net"), path = "no_debuginfod.rs")]
pub mod debuginfod;
mod declarations;
pub mod demangle;
mod elf;
mod folded;
mod frames;
mod heap;
mod jit_dump;
mod kallsyms;
mod lines;
mod live_code;
mod mini_debug;
mod object;
mod perf_map;
mod proportions;
pub mod python;
mod reader;
mod sections;
pub mod sources;
mod split;
mod symbols;
mod variables;

use leak_report::model::{Gap, Symbol, Symbolized};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lru::LruCache;
use unwind_tables::addr::{Avma, Svma};

use self::debug_file::BuildId;
use self::debug_files::DebugFiles;
use self::debuginfod::{Arrival, Debuginfod, Patience};
use self::object::LoadedObject;
pub use declarations::Declared;
pub use demangle::demangled;
pub use frames::{compile_with_debug_file, separate_cfi};
pub use kallsyms::{Kallsyms, KallsymsError, KernelSymbol, readable};
pub use perf_map::PerfMap;
pub use variables::{Variable, VariableFinder, VariablePlace, Variables};

/// Maximum number of objects that are kept in memory.
const MAX_OBJECTS: usize = 64;
/// Maximum memory of all objects in bytes, approximately; the one in use may exceed it alone.
const MAX_MEMORY: usize = 1 << 30;
/// Maximum memory of one object in bytes: its debug information, uncompressed, and twice that for the parsed
/// form. An object that needs more was made to exhaust memory.
const MAX_OF_ONE: usize = 3 << 30;
/// Maximum memory of all objects between reports, in bytes.
const KEPT_MEMORY: usize = 64 << 20;
/// Maximum memory of cached names in bytes: those of some 100 thousand addresses of C++ or Rust code with its
/// inlined functions. All are looked up again for each report.
const MAX_NAMES: usize = 128 << 20;

/// An object with code, as the symbolizer needs it.
#[derive(Clone, Copy, Debug)]
pub struct CodeObject<'a> {
    /// Identifies the object: the same object always has the same key.
    pub key: u32,
    /// Path in its process's view.
    pub path: &'a Path,
    /// Content of the ELF file.
    pub bytes: &'a [u8],
}

/// Finds names, and caches them.
pub struct Symbolizer {
    files: DebugFiles,
    objects: LruCache<u32, LoadedObject>,
    known: LruCache<Lookup, Arc<Symbolized>>,
    known_memory: usize,
    /// Objects with files that are still being fetched.
    awaiting: Vec<(u32, BuildId)>,
}

/// Key of a cached lookup.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Lookup {
    object: u32,
    svma: Svma,
    exact: bool,
}

impl Symbolizer {
    /// Makes a symbolizer that looks for separate debug files under each of `debug_roots` in turn, such as
    /// `/proc/PID/root` and `/`.
    pub fn new(debug_roots: Vec<PathBuf>) -> Self {
        Self {
            files: DebugFiles::new(debug_roots),
            objects: LruCache::unbounded(),
            known: LruCache::unbounded(),
            known_memory: 0,
            awaiting: Vec::new(),
        }
    }

    /// Sets the servers for debug files that no root has.
    pub fn with_servers(mut self, servers: Option<Debuginfod>) -> Self {
        self.files.servers = servers;
        self
    }

    /// Discards the names of objects whose files have arrived, so that they are looked up anew. Lookups wait
    /// for missing files as `patience` says. To be called before the names for a report are looked up.
    pub fn begin(&mut self, patience: Patience) {
        let Some(servers) = &mut self.files.servers else {
            return;
        };
        let waits = !matches!(patience, Patience::None);
        servers.set_patience(patience);
        let arrivals: Vec<_> = self
            .awaiting
            .drain(..)
            .map(|(object, id)| (servers.arrival(&id), object, id))
            .collect();
        for (arrival, object, id) in arrivals {
            match arrival {
                Arrival::Never => {}
                Arrival::Awaited if !waits => self.awaiting.push((object, id)),
                Arrival::Awaited | Arrival::Found => self.forget(object),
            }
        }
    }

    /// Releases the memory used for lookups, except for cached names. To be called when all names for a
    /// report have been looked up.
    pub fn release(&mut self) {
        let held = self.objects.len();
        self.shrink(0, KEPT_MEMORY);
        if self.objects.len() < held {
            heap::trim();
        }
    }

    /// Discards an object and its cached names.
    fn forget(&mut self, object: u32) {
        self.objects.pop(&object);
        let of_object = self.known.iter().map(|(lookup, _)| *lookup);
        let of_object: Vec<_> = of_object.filter(|lookup| lookup.object == object).collect();
        for lookup in of_object {
            let forgotten = self.known.pop(&lookup);
            self.known_memory -= forgotten.map_or(0, |names| remembered(&names));
        }
    }

    /// Looks up the code at `svma` of `object`.
    ///
    /// A return address is looked up one byte lower, in the call: the next instruction can belong to another
    /// line, or, behind a call that does not return, to another function. `exact` addresses (a signal
    /// interrupted them) are looked up unchanged.
    pub fn symbolize(&mut self, object: CodeObject<'_>, svma: Svma, exact: bool) -> Arc<Symbolized> {
        let lookup = Lookup {
            object: object.key,
            svma,
            exact,
        };
        if let Some(known) = self.known.get(&lookup) {
            return known.clone();
        }
        let code = if exact { svma } else { svma.wrapping_sub(1) };
        let before = heap::own_bytes();
        let symbolized = Arc::new(self.loaded(object).symbolize(svma.get(), code.get()));
        self.account(object, heap::own_bytes().saturating_sub(before));
        self.remember(lookup, symbolized.clone());
        // A single lookup can use much memory: it reads its object's debug information, and parses its unit.
        self.shrink(1, MAX_MEMORY);
        symbolized
    }

    fn remember(&mut self, lookup: Lookup, names: Arc<Symbolized>) {
        self.known_memory += remembered(&names);
        self.known.put(lookup, names);
        while self.known_memory > MAX_NAMES {
            let Some((_, forgotten)) = self.known.pop_lru() else {
                return;
            };
            self.known_memory -= remembered(&forgotten);
        }
    }

    fn loaded(&mut self, object: CodeObject<'_>) -> &LoadedObject {
        if !self.objects.contains(&object.key) {
            let loaded = LoadedObject::load(object.bytes, object.path, &self.files);
            let awaited = self.files.take_awaited().into_iter().map(|id| (object.key, id));
            let awaited: Vec<_> = awaited
                .filter(|awaited| !self.awaiting.contains(awaited))
                .collect();
            self.awaiting.extend(awaited);
            self.objects.put(object.key, loaded);
        }
        self.objects
            .get_or_insert(object.key, || unreachable!("the object was put there above"))
    }

    /// Adds to the memory counted for an object. If it exceeds [`MAX_OF_ONE`], only its symbols are used from
    /// now on.
    fn account(&mut self, object: CodeObject<'_>, bytes: usize) {
        let Some(loaded) = self.objects.peek_mut(&object.key) else {
            return;
        };
        if loaded.add_memory(bytes) > MAX_OF_ONE {
            tracing::warn!(
                "ignoring the debug information of {} from now on: it takes more than 3 GiB of memory",
                object.path.display()
            );
            loaded.give_up_lines();
            heap::trim();
        }
    }

    /// Discards the least recently used objects until the rest uses at most `memory` or is at most `few`.
    fn shrink(&mut self, few: usize, memory: usize) {
        let taken = |objects: &LruCache<u32, LoadedObject>| -> usize {
            objects.iter().map(|(_, object)| object.memory()).sum()
        };
        while self.objects.len() > MAX_OBJECTS || self.objects.len() > few && taken(&self.objects) > memory {
            self.objects.pop_lru();
        }
    }
}

/// Memory of cached names in bytes, with their entry in the cache.
fn remembered(names: &Symbolized) -> usize {
    names.memory() + 4 * size_of::<Lookup>()
}

/// Names for an address outside all modules, from the program's map of generated code.
pub fn outside_modules(map: Option<&PerfMap>, pc: Avma, exact: bool) -> Arc<Symbolized> {
    let code = if exact { pc } else { pc.wrapping_sub(1) };
    let symbol = map.and_then(|map| map.find(code)).map(|(name, start)| Symbol {
        name: name.into(),
        offset: Some(pc.offset_from(start)),
    });
    Arc::new(Symbolized {
        gap: symbol.is_none().then_some(Gap::NoModule),
        symbol,
        ..Symbolized::default()
    })
}
