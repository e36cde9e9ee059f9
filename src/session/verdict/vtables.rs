//! C++ classes by the tables of virtual functions that blocks begin with.
//!
//! The Itanium C++ ABI puts the address of the class's `type_info` before the table's first function, whose
//! second word is the address of the mangled name (2.5.2, 2.9.5). A symbol, if there is one, has the same
//! name. Memory is untrusted: only a name that is mangled like a type's, at the place where a `type_info` has
//! it, makes a class.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Maximum bytes of a mangled name.
const MAX_NAME: usize = 1024;
/// Bytes from the beginning of a table to the first function: offset to the top, and `type_info`.
const HEAD: u64 = 16;

/// Class of objects whose table is the symbol `name`, if `offset` in it is the place of a function.
pub(super) fn class_of_symbol(name: &[u8], offset: u64) -> Option<String> {
    let class = name
        .strip_prefix(b"_ZTV")
        .filter(|_| offset >= HEAD && offset.is_multiple_of(8))?;
    class_name(class)
}

/// Class of objects that begin with the address `table`, as read from the memory of their process.
pub(super) fn class_in_memory(memory: &File, table: u64, is_data: impl Fn(u64) -> bool) -> Option<String> {
    let word = |at: u64| {
        let mut bytes = [0; 8];
        let is_read = at.is_multiple_of(8) && is_data(at) && memory.read_exact_at(&mut bytes, at).is_ok();
        is_read.then(|| u64::from_ne_bytes(bytes))
    };
    let type_info = word(table.checked_sub(8)?)?;
    let name = word(type_info.checked_add(8)?).filter(|name| is_data(*name))?;
    let mut bytes = [0; MAX_NAME];
    // The name can be at the end of its mapping.
    let read = memory.read_at(&mut bytes, name).ok()?;
    let bytes = bytes.get(..read)?;
    let end = bytes.iter().position(|&byte| byte == 0)?;
    let name = &bytes[..end];
    // A type that is local to its object is marked.
    class_name(name.strip_prefix(b"*").unwrap_or(name))
}

/// Demangles the name of a class; `None` if it is not one.
fn class_name(mangled: &[u8]) -> Option<String> {
    let is_class = mangled
        .first()
        .is_some_and(|&first| first.is_ascii_digit() || matches!(first, b'N' | b'S' | b'Z'));
    if !is_class || !mangled.iter().all(u8::is_ascii_graphic) {
        return None;
    }
    let symbol = [b"_ZTI", mangled].concat();
    let name = crate::symbolize::demangled(&symbol)?;
    Some(name.strip_prefix("typeinfo for ")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Classes by symbols: at the place of a function only, and only of tables.
    #[test]
    fn symbols() {
        for (symbol, offset, expected) in [
            (&b"_ZTV7Session"[..], 16, Some("Session")),
            (b"_ZTVN3app7SessionE", 40, Some("app::Session")),
            (b"_ZTV7Session", 8, None),
            (b"_ZTV7Session", 17, None),
            (b"_ZTT7Session", 16, None),
            (b"_ZTV", 16, None),
            (b"_ZTV7Sess", 16, None),
        ] {
            let found = class_of_symbol(symbol, offset);
            assert_eq!(found.as_deref(), expected, "{}", symbol.escape_ascii());
        }
    }

    /// Classes in memory: by `type_info` alone. Anything else is no class, and no address is followed out of
    /// the data.
    #[test]
    fn memory() {
        let memory = File::open("/proc/self/mem").expect("our own");
        let name = *b"*N3app7SessionE\0";
        let odd = *b"not a class at all\0";
        let address = |bytes: &[u8]| bytes.as_ptr().addr() as u64;
        let word = |words: &[u64], at: usize| words[at..].as_ptr().addr() as u64;
        let info = [0x1234, address(&name), 0x1234, address(&odd), 0x1234, u64::MAX];
        for (type_info, expected) in [
            (word(&info, 0), Some("app::Session")),
            (word(&info, 2), None),
            (word(&info, 4), None),
            (word(&info, 0) + 4, None),
            (0, None),
            (u64::MAX - 7, None),
        ] {
            let table = [0, type_info, 0];
            let found = class_in_memory(&memory, word(&table, 2), |_| true);
            assert_eq!(found.as_deref(), expected, "{type_info:#x}");
            let elsewhere = word(&table, 1);
            let found = class_in_memory(&memory, word(&table, 2), |at| at != elsewhere);
            assert_eq!(found, None, "{type_info:#x}");
        }
        assert_eq!(class_in_memory(&memory, 0, |_| true), None);
    }
}
