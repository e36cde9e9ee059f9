//! Finds functions by name in the objects that the loader has mapped, as `dlsym(RTLD_NEXT, …)` does. `dlsym`
//! is not used, since it is in a separate library before glibc 2.34, and allocates in some versions.

use core::ffi::c_void;
use core::ptr;

/// Name of a function, with its hashes of both kinds.
#[derive(Clone, Copy)]
pub(super) struct Name {
    text: &'static str,
    gnu: u32,
    sysv: u32,
}

impl Name {
    pub(super) const fn new(text: &'static str) -> Self {
        let bytes = text.as_bytes();
        let (mut gnu, mut sysv) = (5381_u32, 0_u32);
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at] as u32;
            gnu = gnu.wrapping_mul(33).wrapping_add(byte);
            sysv = (sysv << 4).wrapping_add(byte);
            sysv ^= sysv >> 24 & 0xf0;
            sysv &= 0x0fff_ffff;
            at += 1;
        }
        Self { text, gnu, sysv }
    }
}

/// A function, and the object that has it, identified by its place in memory.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) function: *const (),
    pub(super) object: usize,
}

/// Finds a function in the objects behind this one; if there is none, in those before it.
pub(super) fn next(name: Name) -> Option<Found> {
    /// In this object, as its code is.
    static HERE: u8 = 0;
    let own = ptr::from_ref(&HERE).addr();
    let mut search = Search {
        name,
        own,
        is_behind: false,
        before: None,
        behind: None,
    };
    search.run();
    search.behind.or(search.before)
}

struct Search {
    name: Name,
    /// An address within this object.
    own: usize,
    is_behind: bool,
    before: Option<Found>,
    behind: Option<Found>,
}

/// `struct dl_phdr_info`, as far as it is read.
#[repr(C)]
struct ObjectInfo {
    bias: usize,
    name: *const u8,
    headers: *const ProgramHeader,
    header_count: u16,
}

/// `Elf64_Phdr`.
#[repr(C)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: usize,
    physical_address: u64,
    file_size: u64,
    size: usize,
    alignment: u64,
}

/// `Elf64_Sym`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: u64,
}

unsafe extern "C" {
    fn dl_iterate_phdr(
        callback: extern "C" fn(*const ObjectInfo, usize, *mut c_void) -> i32,
        data: *mut c_void,
    ) -> i32;
}

impl Search {
    fn run(&mut self) {
        let data = ptr::from_mut(self).cast();
        // SAFETY: `visit` gets what it expects, with `self`, which is not used elsewhere meanwhile.
        unsafe { dl_iterate_phdr(visit, data) };
    }

    fn visit(&mut self, object: &ObjectInfo) {
        // SAFETY: the loader's own list.
        let headers = unsafe { core::slice::from_raw_parts(object.headers, object.header_count.into()) };
        let is_own = headers.iter().any(|header| {
            const LOADED: u32 = 1;
            let start = object.bias.wrapping_add(header.address);
            header.kind == LOADED && self.own.wrapping_sub(start) < header.size
        });
        if is_own {
            self.is_behind = true;
            return;
        }
        let place = match self.is_behind {
            true => &mut self.behind,
            false => &mut self.before,
        };
        if place.is_none() {
            let function = Object::of(object.bias, headers).and_then(|object| object.function(self.name));
            *place = function.map(|function| Found {
                function,
                object: object.headers.addr(),
            });
        }
    }
}

extern "C" fn visit(object: *const ObjectInfo, _size: usize, search: *mut c_void) -> i32 {
    // SAFETY: what `Search::run` has passed, and the loader's.
    let (search, object) = unsafe { (&mut *search.cast::<Search>(), &*object) };
    search.visit(object);
    i32::from(search.behind.is_some())
}

/// Tables of an object that the loader has mapped. They are trusted, as the loader itself trusts them.
struct Object {
    bias: usize,
    symbols: *const Symbol,
    strings: *const u8,
    versions: Option<*const u16>,
    hashes: Hashes,
}

enum Hashes {
    Gnu(*const u32),
    Sysv(*const u32),
}

impl Object {
    fn of(bias: usize, headers: &[ProgramHeader]) -> Option<Self> {
        const DYNAMIC: u32 = 2;
        let header = headers.iter().find(|header| header.kind == DYNAMIC)?;
        let mut entry: *const [usize; 2] = ptr::with_exposed_provenance(bias.wrapping_add(header.address));
        let (mut symbols, mut strings, mut versions, mut gnu, mut sysv) = (0, 0, 0, 0, 0);
        loop {
            // SAFETY: the object's dynamic section, which ends with an entry of kind 0.
            let [kind, value] = unsafe { entry.read() };
            // glibc has turned these values into addresses in the process; musl leaves them as they are in
            // the file.
            let address = match value < bias {
                true => value.wrapping_add(bias),
                false => value,
            };
            match kind {
                0 => break,
                4 => sysv = address,
                5 => strings = address,
                6 => symbols = address,
                0x6fff_fef5 => gnu = address,
                0x6fff_fff0 => versions = address,
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
        let hashes = match (gnu, sysv) {
            (0, 0) => return None,
            (0, sysv) => Hashes::Sysv(ptr::with_exposed_provenance(sysv)),
            (gnu, _) => Hashes::Gnu(ptr::with_exposed_provenance(gnu)),
        };
        (symbols != 0 && strings != 0).then(|| Self {
            bias,
            symbols: ptr::with_exposed_provenance(symbols),
            strings: ptr::with_exposed_provenance(strings),
            versions: (versions != 0).then(|| ptr::with_exposed_provenance(versions)),
            hashes,
        })
    }

    fn function(&self, name: Name) -> Option<*const ()> {
        match self.hashes {
            Hashes::Gnu(table) => self.by_gnu_hash(table, name),
            Hashes::Sysv(table) => self.by_sysv_hash(table, name),
        }
    }

    /// Looks a name up in a table of `DT_GNU_HASH`: four numbers, a Bloom filter, the start of a chain for
    /// each bucket, and the hashes of all symbols from the first one in the table on. The last hash of a
    /// chain has its lowest bit set.
    fn by_gnu_hash(&self, table: *const u32, name: Name) -> Option<*const ()> {
        let word = |at: u32| {
            // SAFETY: within the table, by its own counts.
            unsafe { table.add(at as usize).read() }
        };
        let (buckets, first, filter_words, shift) = (word(0), word(1), word(2), word(3));
        if buckets == 0 || filter_words == 0 {
            return None;
        }
        let filter = 4 + 2 * ((name.gnu / 64) & (filter_words - 1));
        let bits = u64::from(word(filter)) | u64::from(word(filter + 1)) << 32;
        let wanted = 1_u64 << (name.gnu % 64) | 1_u64 << ((name.gnu >> shift) % 64);
        if bits & wanted != wanted {
            return None;
        }
        let starts = 4 + 2 * filter_words;
        let mut index = word(starts + name.gnu % buckets);
        if index < first {
            return None;
        }
        loop {
            let hash = word(starts + buckets + index - first);
            if hash | 1 == name.gnu | 1
                && let Some(function) = self.at(index, name)
            {
                return Some(function);
            }
            if hash & 1 != 0 {
                return None;
            }
            index += 1;
        }
    }

    /// Looks a name up in a table of `DT_HASH`: two counts, the start of a chain for each bucket, and for
    /// each symbol the next one of its chain.
    fn by_sysv_hash(&self, table: *const u32, name: Name) -> Option<*const ()> {
        let word = |at: u32| {
            // SAFETY: within the table, by its own counts.
            unsafe { table.add(at as usize).read() }
        };
        let buckets = word(0);
        if buckets == 0 {
            return None;
        }
        let mut index = word(2 + name.sysv % buckets);
        while index != 0 {
            if let Some(function) = self.at(index, name) {
                return Some(function);
            }
            index = word(2 + buckets + index);
        }
        None
    }

    /// Address of a symbol if it is a function of that name that is defined here, in its default version.
    fn at(&self, index: u32, name: Name) -> Option<*const ()> {
        const FUNCTION: u8 = 2;
        const HIDDEN_VERSION: u16 = 0x8000;
        // SAFETY: the hash table's indexes are of this table.
        let symbol = unsafe { self.symbols.add(index as usize).read() };
        if symbol.section == 0 || symbol.info & 15 != FUNCTION {
            return None;
        }
        if !self.has_text(symbol.name, name.text) {
            return None;
        }
        let is_hidden = self.versions.is_some_and(|versions| {
            // SAFETY: has an entry for each symbol.
            let version = unsafe { versions.add(index as usize).read() };
            version & HIDDEN_VERSION != 0
        });
        (!is_hidden).then(|| ptr::with_exposed_provenance(self.bias.wrapping_add(symbol.value)))
    }

    /// Compares without the C library, whose functions may not be usable yet.
    fn has_text(&self, at: u32, text: &str) -> bool {
        let start = self.strings.wrapping_add(at as usize);
        let bytes = text.bytes().chain([0]).enumerate();
        bytes.into_iter().all(|(at, byte)| {
            // SAFETY: names are within the table of strings, each ended by a zero, and the comparison stops
            // there.
            unsafe { start.add(at).read_volatile() == byte }
        })
    }
}
