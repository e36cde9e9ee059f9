//! Claims about names of code, from files of the target.

use std::path::Path;

use object::{Object, ObjectSection, ObjectSymbol, SectionKind};
use unwind_tables::addr::{Avma, Svma};

use crate::symbolize::{CodeObject, PerfMap, Symbolizer, demangle};
use leak_report::model::abbreviated;

/// Maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 4096;
/// Number of addresses of a section that are looked up.
const ASKED_OF_SECTION: u64 = 8;
const MAX_ADDRESSES: usize = 64;

/// For any file, an address has names of bounded length, from a symbol that begins at or below it; and the
/// same ones when the file is read again.
pub(super) fn symbols(bytes: &[u8]) {
    let object = CodeObject {
        key: 0,
        path: Path::new("/nonexistent/object"),
        bytes,
    };
    let mut first = Symbolizer::new(Vec::new());
    let mut second = Symbolizer::new(Vec::new());
    let addresses = addresses_of(bytes);
    for &address in &addresses {
        for exact in [true, false] {
            let names = first.symbolize(object, Svma::new(address), exact);
            let symbol = names.symbol.iter().map(|symbol| &symbol.name);
            let inlined = names.inlined.iter().filter_map(|frame| frame.symbol.as_ref());
            for name in symbol.chain(inlined) {
                assert!(name.len() <= MAX_NAME_BYTES, "{} bytes", name.len());
            }
            assert!(names.inlined.len() <= 128, "{} functions", names.inlined.len());
        }
    }
    for &address in addresses.iter().rev() {
        let [one, other] =
            [&mut first, &mut second].map(|names| names.symbolize(object, Svma::new(address), true));
        assert_eq!(one, other, "{address:#x}");
    }
}

/// Addresses of code and of symbols.
fn addresses_of(bytes: &[u8]) -> Vec<u64> {
    let mut addresses = vec![0, 1, u64::MAX];
    let Ok(file) = object::File::parse(bytes) else {
        return addresses;
    };
    addresses.push(file.entry());
    let code = file
        .sections()
        .filter(|section| section.kind() == SectionKind::Text);
    for section in code.take(4) {
        let step = (section.size() / ASKED_OF_SECTION).max(1);
        let steps = (0..ASKED_OF_SECTION).map(|number| section.address().wrapping_add(number * step));
        addresses.extend(steps);
    }
    addresses.extend(file.symbols().take(MAX_ADDRESSES).map(|symbol| symbol.address()));
    addresses.truncate(MAX_ADDRESSES);
    addresses
}

/// A demangled name has bounded length; text that is not a mangled name stays unchanged. An abbreviated name
/// is not longer, and abbreviating it again changes nothing.
pub(super) fn demangled(bytes: &[u8]) {
    for name in bytes.split(|&byte| byte == b'\n') {
        let shown = demangle::demangle(name);
        // Each invalid byte is shown by a character of three bytes.
        assert!(shown.len() <= 3 * MAX_NAME_BYTES, "{} bytes", shown.len());
        let short = abbreviated(&shown);
        assert!(short.len() <= shown.len(), "{short} for {shown}");
        assert_eq!(abbreviated(&short), short, "of {shown}");
        if !name.starts_with(b"_") && !name.windows(3).any(|part| part == b"17h") {
            let name = &name[..name.len().min(MAX_NAME_BYTES)];
            assert_eq!(shown, String::from_utf8_lossy(name));
        }
    }
}

/// A piece of code is found unless a later line overlaps it, as by a search of the list from its end.
pub(super) fn perf_map(bytes: &[u8]) {
    let map = PerfMap::parse(bytes);
    let whole = bytes.iter().rposition(|&byte| byte == b'\n').unwrap_or(0);
    let mut pieces: Vec<(u64, u64, String)> = Vec::new();
    for line in bytes[..whole].split(|&byte| byte == b'\n').take(256) {
        let one = [line, b"\n"].concat();
        let named = PerfMap::parse(&one);
        for (start, end, name) in named.pieces() {
            pieces.retain(|&(other_start, other_end, _)| other_end <= start || end <= other_start);
            pieces.push((start, end, name.to_owned()));
        }
    }
    if bytes[..whole].split(|&byte| byte == b'\n').count() > 256 {
        return;
    }
    let ends = pieces
        .iter()
        .flat_map(|&(start, end, _)| [start.wrapping_sub(1), start, end - 1, end]);
    for address in ends {
        let expected = pieces
            .iter()
            .find(|&&(start, end, _)| (start..end).contains(&address));
        let expected = expected.map(|(start, _, name)| (name.as_str(), Avma::new(*start)));
        assert_eq!(map.find(Avma::new(address)), expected, "{address:#x}");
    }
}

/// For any dump, pieces of code do not overlap, and have names that can be shown.
pub(super) fn jit_dump(bytes: &[u8]) {
    let mut map = PerfMap::default();
    _ = map.add_jit_dump_from(bytes);
    let mut last = 0;
    for (start, end, name) in map.pieces() {
        assert!(last <= start && start < end, "{last:#x} {start:#x} {end:#x}");
        assert!(!name.is_empty() && !name.contains(char::is_control), "{name:?}");
        last = end;
    }
}
