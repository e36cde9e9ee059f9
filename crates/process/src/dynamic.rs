//! The dynamic segment of an ELF file. The loader uses it, so that stripped files and files without sections
//! have it, too.
//!
//! Pure. Untrusted input: the number of entries is bounded, and tables outside the file are treated as
//! absent.

use object::elf::{self, FileHeader64};
use object::read::StringTable;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{LittleEndian, ReadRef};

use memleak_base::untrusted::Untrusted;

type Header = FileHeader64<LittleEndian>;
type Bytes<'a> = Untrusted<&'a [u8]>;

/// Maximum number of `DT_NEEDED` entries; the linker of a large browser needs 120.
const MAX_NEEDED: usize = 4096;
/// Maximum number of entries read; objects have about thirty, and one for each object that they need.
const MAX_ENTRIES: usize = MAX_NEEDED + 1024;

/// The dynamic segment of a parsed ELF file.
#[derive(Clone, Copy, Debug)]
pub struct Dynamic<'a> {
    file: Bytes<'a>,
    machine: elf::Machine,
    kind: elf::FileType,
    segments: &'a [elf::ProgramHeader64<LittleEndian>],
    entries: &'a [elf::Dyn64<LittleEndian>],
}

impl<'a> Dynamic<'a> {
    /// Parses an ELF file. One without a dynamic segment has no entries; `None` if its headers cannot be
    /// read.
    pub fn of(file: &'a [u8]) -> Option<Self> {
        let file = Untrusted::mapped(file);
        let header = Header::parse(file).ok()?;
        let segments = header.program_headers(LittleEndian, file).ok()?;
        let mut entries = segments
            .iter()
            .filter_map(|segment| segment.dynamic(LittleEndian, file).ok()?);
        let entries = entries.next().unwrap_or_default();
        Some(Self {
            file,
            machine: header.e_machine(LittleEndian),
            kind: header.e_type(LittleEndian),
            segments,
            entries: entries.get(..MAX_ENTRIES).unwrap_or(entries),
        })
    }

    /// `e_machine`: `EM_…`.
    pub fn machine(&self) -> elf::Machine {
        self.machine
    }

    /// `PT_INTERP`: the path of the loader.
    pub fn interpreter(&self) -> Option<&'a [u8]> {
        self.segments
            .iter()
            .find_map(|segment| segment.interpreter(LittleEndian, self.file).ok()?)
    }

    /// True for a program, position independent (`DF_1_PIE`) or not, that has no loader and needs no other
    /// object.
    pub fn is_static_program(&self) -> bool {
        let flags = self.value(elf::DT_FLAGS_1).unwrap_or(0);
        let is_program = self.kind == elf::ET_EXEC || flags & elf::DF_1_PIE.0 != 0;
        is_program && self.interpreter().is_none() && self.needed().next().is_none()
    }

    /// `DT_NEEDED`: the names of the objects that it needs.
    pub fn needed(&self) -> impl Iterator<Item = &'a [u8]> {
        self.names(elf::DT_NEEDED).take(MAX_NEEDED)
    }

    /// `DT_SONAME`: the name by which other objects need it.
    pub fn soname(&self) -> Option<&'a [u8]> {
        self.names(elf::DT_SONAME).next()
    }

    /// Value of the first entry with a tag.
    pub fn value(&self, tag: elf::DynamicTag) -> Option<u64> {
        self.values(tag).next()
    }

    /// The bytes from the address in the first entry with a tag to the end of the loaded segment that
    /// contains it: tables do not state their length.
    pub fn table(&self, tag: elf::DynamicTag) -> Option<&'a [u8]> {
        let address = self.value(tag)?;
        self.segments.iter().find_map(|segment| {
            let into = usize::try_from(address.checked_sub(segment.p_vaddr(LittleEndian))?).ok()?;
            let loaded = segment.p_type(LittleEndian) == elf::PT_LOAD;
            let data = segment.data(LittleEndian, self.file).ok().filter(|_| loaded)?;
            data.get(into..).filter(|rest| !rest.is_empty())
        })
    }

    /// `DT_STRTAB`: the string table, cut to `DT_STRSZ`.
    pub fn strings(&self) -> Option<StringTable<'a, Bytes<'a>>> {
        let strings = Untrusted::mapped(self.table(elf::DT_STRTAB)?);
        let stated = self.value(elf::DT_STRSZ).unwrap_or(u64::MAX);
        Some(StringTable::new(strings, 0, stated.min(strings.len().ok()?)))
    }

    /// The entries with a tag as names; the string table is looked up once.
    fn names(&self, tag: elf::DynamicTag) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let strings = self.strings();
        self.values(tag)
            .filter_map(move |offset| strings?.get(u32::try_from(offset).ok()?).ok())
    }

    fn values(&self, tag: elf::DynamicTag) -> impl Iterator<Item = u64> + use<'a> {
        let of_tag = move |entry: &&elf::Dyn64<LittleEndian>| entry.d_tag(LittleEndian) == tag;
        self.entries
            .iter()
            .filter(of_tag)
            .map(|entry| entry.d_val(LittleEndian))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the needed C library, the loader and the symbol table of this program, and rejects files that
    /// are not ELF.
    #[test]
    fn own_program() {
        let bytes = std::fs::read("/proc/self/exe").expect("own program");
        let dynamic = Dynamic::of(&bytes).expect("an ELF file");
        assert!(dynamic.needed().any(|name| name == b"libc.so.6"));
        let loader = dynamic.interpreter().expect("it is linked dynamically");
        assert!(loader.windows(9).any(|part| part == b"/ld-linux"));
        assert_eq!(dynamic.soname(), None);
        assert!(
            dynamic
                .table(elf::DT_SYMTAB)
                .is_some_and(|table| table.len() > 24)
        );
        assert!(Dynamic::of(b"\x7fELF").is_none());
        assert!(Dynamic::of(&[]).is_none());
    }
}
