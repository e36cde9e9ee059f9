//! From an address in a module to function, inlined functions, file and line.
//!
//! A function's name comes from a symbol table where one holds the address, since a symbol says where it
//! starts, and from DWARF otherwise; lines and inlined functions come from DWARF. Both are sought in the
//! module's own file and in its separate debug file. What cannot be found is `None` with a reason, never a
//! guess from the nearest symbol. Code outside all modules has the name that the program gave it, if it did.
//!
//! Debug information can be in many files: `debug_file` and `debug_files` find an object's separate file and what
//! that shares with others, `split` the parts that the compiler put into files of their own, `mini_debug` a small
//! table in the object itself, and [`debuginfod`] asks servers. All of them are untrusted.

mod debug_file;
mod debug_files;
#[cfg_attr(not(feature = "net"), path = "no_debuginfod.rs")]
pub mod debuginfod;
pub(crate) mod demangle;
mod heap;
mod kallsyms;
mod lines;
mod mini_debug;
mod object;
mod perf_map;
mod proportions;
mod sections;
mod split;
mod symbols;

use leak_report::model::{Gap, Symbol, Symbolized};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lru::LruCache;
use unwind_tables::addr::{Avma, Svma};

use self::debug_file::BuildId;
use self::debug_files::DebugFiles;
use self::debuginfod::{Arrival, Debuginfod, Patience};
use self::object::LoadedObject;
pub use kallsyms::{Kallsyms, KallsymsError, KernelSymbol, readable};
pub use perf_map::PerfMap;

/// How many objects are held at once.
const MAX_OBJECTS: usize = 64;
/// About how much memory objects may take together, in bytes; the one in use may exceed it alone.
const MAX_MEMORY: usize = 1 << 30;
/// The most that one object may turn out to take, in bytes: its debug information, uncompressed, and twice that for what
/// is made of it. What takes more was made to.
const MAX_OF_ONE: usize = 3 << 30;
/// The same while no names are sought.
const KEPT_MEMORY: usize = 64 << 20;
/// How much memory the names that are remembered may take, in bytes: those of some 100 thousand addresses of C++ or Rust
/// code with its inlined functions. All are asked for again in each report.
const MAX_NAMES: usize = 128 << 20;

/// An object with code, as the symbolizer needs it.
#[derive(Clone, Copy, Debug)]
pub struct CodeObject<'a> {
    /// Tells objects apart; always the same for the same one.
    pub key: u32,
    /// Where it lies, in its process's view.
    pub path: &'a Path,
    /// The ELF file.
    pub bytes: &'a [u8],
}

/// Finds names, and remembers them.
pub struct Symbolizer {
    files: DebugFiles,
    objects: LruCache<u32, LoadedObject>,
    known: LruCache<Lookup, Arc<Symbolized>>,
    known_memory: usize,
    /// Objects whose files are on their way.
    awaiting: Vec<(u32, BuildId)>,
}

/// An address that was looked up.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Lookup {
    object: u32,
    svma: Svma,
    exact: bool,
}

impl Symbolizer {
    /// A symbolizer that looks for separate debug files under each of `debug_roots` in turn, such as
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

    /// The same, and what is found nowhere is asked of servers, if there are any.
    pub fn with_servers(mut self, servers: Option<Debuginfod>) -> Self {
        self.files.servers = servers;
        self
    }

    /// Uses from now on what has come from servers by now; what is yet to come is waited for as `patience` says. To be
    /// called before the names for a report are sought.
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
                Arrival::Awaited | Arrival::Here => self.forget(object),
            }
        }
    }

    /// Gives back the memory that seeking names took, but for what is known by now. To be called when all names for a
    /// report are found.
    pub fn release(&mut self) {
        let held = self.objects.len();
        self.shrink(0, KEPT_MEMORY);
        if self.objects.len() < held {
            heap::give_back();
        }
    }

    /// Forgets an object and the names in it.
    fn forget(&mut self, object: u32) {
        self.objects.pop(&object);
        let of_object = self.known.iter().map(|(lookup, _)| *lookup);
        let of_object: Vec<_> = of_object.filter(|lookup| lookup.object == object).collect();
        for lookup in of_object {
            let forgotten = self.known.pop(&lookup);
            self.known_memory -= forgotten.map_or(0, |names| remembered(&names));
        }
    }

    /// What is known of the code at `svma` of `object`.
    ///
    /// A return address is looked up one byte lower, in the call: the next instruction can belong to another
    /// line, and behind a call that does not return to another function. `exact` addresses (a signal
    /// interrupted them) are looked up as they are.
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
        // What is read for one address can be much: its object's debug information, and its unit's.
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

    /// Adds to what an object is known to take. Of one that takes too much, only symbols are used from now on.
    fn account(&mut self, object: CodeObject<'_>, bytes: usize) {
        let Some(loaded) = self.objects.peek_mut(&object.key) else {
            return;
        };
        if loaded.add_memory(bytes) > MAX_OF_ONE {
            tracing::warn!(
                "the debug information of {} takes out of proportion: it is not used any more",
                object.path.display()
            );
            loaded.give_up_lines();
            heap::give_back();
        }
    }

    /// Forgets the objects that were not used for the longest time until the rest takes at most `memory` or is no more
    /// than `few`.
    fn shrink(&mut self, few: usize, memory: usize) {
        let taken = |objects: &LruCache<u32, LoadedObject>| -> usize {
            objects.iter().map(|(_, object)| object.memory()).sum()
        };
        while self.objects.len() > MAX_OBJECTS || self.objects.len() > few && taken(&self.objects) > memory {
            self.objects.pop_lru();
        }
    }
}

/// How much memory it takes to remember names, in bytes: theirs, and that of a place in the cache.
fn remembered(names: &Symbolized) -> usize {
    names.memory() + 4 * size_of::<Lookup>()
}

/// Names for an address outside all modules: those that the program gave to code that it generated, if it did.
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
