//! Allocations that no probe can see: by functions of an allocator that are not in the table.
//!
//! Pure: ELF bytes in. A trace only misses these blocks, but code that must know of all blocks
//! (`bpf/process/freed.h`) cannot rely on it.

use memchr::memmem;
use object::read::elf::ElfFile64;
use object::{LittleEndian, Object, ObjectSymbol, SymbolKind};

use super::catalog::Catalog;
use super::discovery::TEXTS;

/// Returns true if all functions by which other objects can allocate from the allocator in a file are in
/// `catalog`, or are named by their callers ([`names_unknown_mimalloc`]).
///
/// This is known of allocators whose functions are all in the table, and of a library that exports no other
/// functions. It is not known of musl: the loader, and functions that keep their arguments, like `atexit`,
/// allocate there by names that are not exported.
pub fn is_all_known(bytes: &[u8], catalog: &Catalog) -> bool {
    /// Text in the banner that glibc prints when it is executed.
    const GLIBC: &[u8] = b"GNU C Library";
    let mut texts = TEXTS.iter().map(|(text, _)| *text).chain([GLIBC]);
    texts.any(|text| memmem::find(bytes, text).is_some()) || exports_only_known(bytes, catalog)
}

/// Returns true if a file is a library whose exported functions are all in `catalog`, or do not allocate.
fn exports_only_known(bytes: &[u8], catalog: &Catalog) -> bool {
    const HARMLESS: [&str; 12] = [
        "_init",
        "_fini",
        "malloc_good_size",
        "malloc_info",
        "malloc_size",
        "malloc_stats",
        "malloc_trim",
        "malloc_usable_size",
        "mallinfo",
        "mallinfo2",
        "mallopt",
        "memalign_usable_size",
    ];
    let Ok(elf) = ElfFile64::<LittleEndian>::parse(bytes) else {
        return false;
    };
    // A program's own code calls its functions whatever it exports.
    if elf.section_by_name(".interp").is_some() || elf.dynamic_symbol_table().is_none() {
        return false;
    }
    let is_function = |kind| matches!(kind, SymbolKind::Text | SymbolKind::Unknown);
    let mut exported = elf
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && is_function(symbol.kind()));
    exported.all(|symbol| {
        let name = symbol.name_bytes().unwrap_or_default();
        catalog.number(name).is_some() || HARMLESS.iter().any(|harmless| harmless.as_bytes() == name)
    })
}

/// Returns true if a file other than mimalloc names a function of mimalloc that may allocate and is not in
/// `catalog`.
pub fn names_unknown_mimalloc(bytes: &[u8], catalog: &Catalog) -> bool {
    const PREFIX: &[u8] = b"\0mi_";
    /// Parts of the names of functions that allocate.
    const PARTS: [&[u8]; 5] = [b"alloc", b"new", b"dup", b"realpath", b"expand"];
    /// Longer than all of these names.
    const MAX: usize = 64;
    memmem::find_iter(bytes, PREFIX).any(|at| {
        let name = bytes.get(at + 1..).unwrap_or_default();
        let name = name.get(..MAX).unwrap_or(name);
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let allocates = PARTS.iter().any(|part| memmem::find(name, part).is_some());
        allocates && catalog.number(name).is_none()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allocators are recognized by their messages; a file that is no library is unknown.
    #[test]
    fn known_allocators() {
        let is_known = |bytes: &[u8]| is_all_known(bytes, &Catalog::default());
        assert!(is_known(b"GNU C Library (Debian GLIBC 2.36-9) stable"));
        assert!(is_known(b"malloc\0<jemalloc>: Error"));
        assert!(!is_known(b"musl libc (x86_64)\nVersion"));
        assert!(!is_known(b""));
    }

    /// Names of functions that are probed, or that do not allocate, do not count.
    #[test]
    fn functions_of_mimalloc() {
        let names = |bytes: &[u8]| names_unknown_mimalloc(bytes, &Catalog::default());
        assert!(!names(b"\0mi_malloc\0mi_free\0mi_collect\0malloc\0"));
        assert!(!names(b"\0mi_heap_strdup\0mi_heap_alloc_new"));
        assert!(names(b"\0mi_malloc\0mi_heap_realpath\0mi_collect\0"));
        assert!(!names(b"\0xmi_heap_realpath\0"));
        assert!(names(b"\0mi_heap_alloc_zeroed"));
    }
}
