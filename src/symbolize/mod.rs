//! From an address in a module to function, inlined functions, file and line.
//!
//! A function's name comes from a symbol table where one holds the address, since a symbol says where it
//! starts, and from DWARF otherwise; lines and inlined functions come from DWARF. Both are sought in the
//! module's own file and in its separate debug file. What cannot be found is `None` with a reason, never a
//! guess from the nearest symbol. Code outside all modules has the name that the program gave it, if it did.

mod debug_file;
mod demangle;
pub mod frame;
mod kallsyms;
mod lines;
mod object;
mod perf_map;
mod root;
mod symbols;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lru::LruCache;
use unwind_tables::addr::{Avma, Svma};

use self::object::LoadedObject;
pub use frame::{Gap, InlinedFrame, Symbol, Symbolized};
pub use kallsyms::{Kallsyms, KallsymsError, KernelSymbol, readable};
pub use perf_map::PerfMap;

/// How many objects are held at once.
const MAX_OBJECTS: usize = 64;
/// About how much memory objects may take together, in bytes; the one in use may exceed it alone.
const MAX_MEMORY: usize = 1 << 30;
/// How many addresses are remembered.
const MAX_ADDRESSES: NonZeroUsize = NonZeroUsize::new(1 << 15).unwrap();

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
    debug_roots: Vec<PathBuf>,
    objects: LruCache<u32, LoadedObject>,
    memory: usize,
    known: LruCache<Lookup, Arc<Symbolized>>,
}

/// An address that was looked up.
#[derive(PartialEq, Eq, Hash)]
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
            debug_roots,
            objects: LruCache::unbounded(),
            memory: 0,
            known: LruCache::new(MAX_ADDRESSES),
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
        let symbolized = Arc::new(self.loaded(object).symbolize(svma.get(), code.get()));
        self.known.put(lookup, symbolized.clone());
        symbolized
    }

    fn loaded(&mut self, object: CodeObject<'_>) -> &LoadedObject {
        if !self.objects.contains(&object.key) {
            let loaded = LoadedObject::load(object.bytes, object.path, &self.debug_roots);
            self.make_room(loaded.memory());
            self.memory += loaded.memory();
            self.objects.put(object.key, loaded);
        }
        self.objects
            .get_or_insert(object.key, || unreachable!("the object was put there above"))
    }

    /// Forgets the objects that were not used for the longest time until `memory` more bytes fit.
    fn make_room(&mut self, memory: usize) {
        while self.objects.len() >= MAX_OBJECTS || self.memory.saturating_add(memory) > MAX_MEMORY {
            match self.objects.pop_lru() {
                Some((_, forgotten)) => self.memory -= forgotten.memory(),
                None => return,
            }
        }
    }
}

/// Names for an address outside all modules: those that the program gave to code that it generated, if it did.
pub fn outside_modules(map: Option<&PerfMap>, pc: Avma, exact: bool) -> Arc<Symbolized> {
    let code = if exact { pc } else { pc.wrapping_sub(1) };
    let symbol = map.and_then(|map| map.find(code)).map(|(name, start)| Symbol {
        name: name.to_owned(),
        offset: Some(pc.offset_from(start)),
    });
    Arc::new(Symbolized {
        gap: symbol.is_none().then_some(Gap::NoModule),
        symbol,
        ..Symbolized::default()
    })
}
