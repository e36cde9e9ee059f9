//! What an ELF file says about how it is linked: its own name, the objects it needs, its loader.
//!
//! Pure. Untrusted input: bounded by the file's own dynamic segment, names that lie outside it are left out.

use object::LittleEndian;
use object::ReadRef;
use object::elf::{self, FileHeader64};
use object::read::StringTable;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};

use crate::untrusted::Untrusted;

type Header = FileHeader64<LittleEndian>;
type Segments<'a> = &'a [elf::ProgramHeader64<LittleEndian>];

/// Names by which objects ask for one another. Bytes: no encoding is promised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Linking {
    /// `DT_SONAME`.
    pub(super) soname: Option<Vec<u8>>,
    /// `DT_NEEDED`.
    pub(super) needed: Vec<Vec<u8>>,
    /// `PT_INTERP`: the path of the loader.
    pub(super) interpreter: Option<Vec<u8>>,
}

/// An object needs at most as many others; the linker of a large browser needs 120.
const MAX_NEEDED: usize = 4096;
/// Entries of the dynamic segment that are looked at; objects have some thirty, and one for each other that they need.
const MAX_ENTRIES: usize = MAX_NEEDED + 1024;

impl Linking {
    /// Reads an ELF file; what cannot be read is as if it were not there.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let bytes = Untrusted::mapped(bytes);
        Header::parse(bytes)
            .and_then(|header| header.program_headers(LittleEndian, bytes))
            .map_or_else(|_| Self::default(), |segments| Self::of_segments(bytes, segments))
    }

    fn of_segments<'a>(bytes: impl ReadRef<'a>, segments: Segments<'_>) -> Self {
        let endian = LittleEndian;
        let interpreter = segments
            .iter()
            .find_map(|segment| segment.interpreter(endian, bytes).ok().flatten());
        let entries = segments
            .iter()
            .find_map(|segment| segment.dynamic(endian, bytes).ok().flatten())
            .unwrap_or_default();
        let entries = entries.get(..MAX_ENTRIES).unwrap_or(entries);
        let values = |tag| {
            let of_tag = move |entry: &&elf::Dyn64<LittleEndian>| entry.d_tag(endian) == tag;
            entries.iter().filter(of_tag).map(|entry| entry.d_val(endian))
        };
        let strings = values(elf::DT_STRTAB)
            .next()
            .and_then(|address| loaded_from(bytes, segments, address));
        let name = |offset: u64| {
            let strings = strings?;
            let strings = StringTable::new(Untrusted::mapped(strings), 0, strings.len() as u64);
            strings.get(u32::try_from(offset).ok()?).ok().map(<[u8]>::to_vec)
        };
        Self {
            soname: values(elf::DT_SONAME).find_map(name),
            needed: values(elf::DT_NEEDED).take(MAX_NEEDED).filter_map(name).collect(),
            interpreter: interpreter.map(<[u8]>::to_vec),
        }
    }
}

/// The bytes from an address to the end of the loaded segment that holds it.
fn loaded_from<'a>(bytes: impl ReadRef<'a>, segments: Segments<'_>, address: u64) -> Option<&'a [u8]> {
    let endian = LittleEndian;
    segments.iter().find_map(|segment| {
        let into = usize::try_from(address.checked_sub(segment.p_vaddr(endian))?).ok()?;
        let loaded = segment.p_type(endian) == elf::PT_LOAD;
        let data = segment.data(endian, bytes).ok().filter(|_| loaded)?;
        data.get(into..).filter(|rest| !rest.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This very program names the C library and its loader, and bytes that are no ELF file name nothing.
    #[test]
    fn own_names() {
        let bytes = std::fs::read("/proc/self/exe").expect("own program");
        let linking = Linking::read(&bytes);
        assert!(linking.needed.contains(&b"libc.so.6".to_vec()), "{linking:?}");
        assert!(
            linking
                .interpreter
                .is_some_and(|path| path.windows(9).any(|part| part == b"/ld-linux"))
        );
        assert_eq!(linking.soname, None);
        assert_eq!(Linking::read(b"\x7fELF"), Linking::default());
        assert_eq!(Linking::read(&[]), Linking::default());
    }
}
