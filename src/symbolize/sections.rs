//! The sections of a file that functions and lines come from, uncompressed and up to a limit.
//!
//! They are copied, not mapped: a debug file can be truncated by its owner at any time, and reading a mapping beyond
//! its file's end is a signal, not an error.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use gimli::{AbbreviationsCacheStrategy, Dwarf, DwarfPackage, EndianArcSlice, LittleEndian, SectionId};
use object::read::ReadCache;
use object::read::elf::ElfFile64;
use object::{CompressedFileRange, CompressionFormat, Object, ObjectSection, ReadRef};

use super::proportions;
use crate::base::untrusted::{MAX_SECTIONS, Untrusted};
use leak_report::model::Gap;

/// An ELF file that nobody vouches for.
pub(super) type Elf<'a, R> = ElfFile64<'a, object::LittleEndian, Untrusted<R>>;

/// The headers of a file that is in memory.
pub(super) fn parse_mapped(bytes: &[u8]) -> Option<Elf<'_, &[u8]>> {
    parse(Untrusted::mapped(bytes))
}

/// The headers of a file that is copied as it is read.
pub(super) fn parse_copied<'a, 'f>(
    cache: &'a ReadCache<&'f File>,
) -> Option<Elf<'a, &'a ReadCache<&'f File>>> {
    parse(Untrusted::copied(cache))
}

/// A section is looked for among all of them, and many are.
fn parse<'a, R: ReadRef<'a>>(bytes: Untrusted<R>) -> Option<Elf<'a, R>> {
    let elf = ElfFile64::parse(bytes).ok()?;
    (elf.elf_section_table().len() <= MAX_SECTIONS).then_some(elf)
}

/// Maximal bytes of debug sections, uncompressed, that are held for one object.
const MAX_SECTION_BYTES: u64 = 1 << 30;

/// What debug information is read with.
pub(super) type Reader = EndianArcSlice<LittleEndian>;

/// The sections of an ordinary file, and of a supplementary one.
const WHOLE: [SectionId; 10] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

/// The sections of a `.dwo` file. Lines are in the program's own file.
const SPLIT: [SectionId; 5] = [
    SectionId::DebugAbbrev,
    SectionId::DebugInfo,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

/// The reason for a missing name where gimli cannot read what is there.
pub(super) fn malformed(_: gimli::Error) -> Gap {
    Gap::Malformed
}

/// A reason that gimli's error converts to.
struct Unreadable(Gap);

impl From<gimli::Error> for Unreadable {
    fn from(error: gimli::Error) -> Self {
        Self(malformed(error))
    }
}

/// How much has been taken for one object.
#[derive(Debug, Default)]
pub(super) struct Budget {
    taken: u64,
}

impl Budget {
    /// Bytes taken so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    fn take(&mut self, bytes: u64) -> Result<(), Gap> {
        let taken = self.taken.saturating_add(bytes);
        if taken > MAX_SECTION_BYTES {
            return Err(Gap::TooLarge);
        }
        self.taken = taken;
        Ok(())
    }
}

/// Where the bytes of an ELF file are.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'a> {
    /// All of them.
    Memory(&'a [u8]),
    /// To be read when they are needed.
    File(&'a File),
}

/// An ELF file's headers, and its bytes.
pub(super) struct Source<'a, E> {
    /// The headers.
    pub(super) elf: &'a E,
    /// The bytes.
    pub(super) content: Content<'a>,
}

/// Whether `elf` has debug information of its own.
pub(super) fn has_lines<'d>(elf: &impl Object<'d>) -> bool {
    let info = elf.section_by_name(SectionId::DebugInfo.name());
    let range = info.and_then(|section| section.compressed_file_range().ok());
    range.is_some_and(|range| range.uncompressed_size > 0)
}

impl<'d, E: Object<'d>> Source<'_, E> {
    /// The debug information of a whole file.
    pub(super) fn dwarf(&self, budget: &mut Budget) -> Result<Dwarf<Reader>, Gap> {
        let section = |id: SectionId| self.section(WHOLE.contains(&id).then(|| id.name()), budget);
        let mut dwarf = Dwarf::load(section)?;
        proportions::check_units(&dwarf)?;
        // Units that dwz makes share one large table of abbreviations.
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        proportions::check_lines(&dwarf)?;
        Ok(dwarf)
    }

    /// That of a `.dwo` file.
    pub(super) fn split(&self, budget: &mut Budget) -> Result<Dwarf<Reader>, Gap> {
        Dwarf::load(|id| match id.dwo_name() {
            Some(name) if id == SectionId::DebugInfo => self.joined(name, budget),
            name => self.section(name.filter(|_| SPLIT.contains(&id)), budget),
        })
    }

    /// That of a package of `.dwo` files: all of it, as its index is about all.
    pub(super) fn package(&self, budget: &mut Budget) -> Result<DwarfPackage<Reader>, Gap> {
        let section = |id: SectionId| self.section(id.dwo_name(), budget).map_err(Unreadable);
        DwarfPackage::load(section, empty()).map_err(|Unreadable(gap)| gap)
    }

    /// A copy of one section; empty where there is none or it is not needed.
    fn section(&self, name: Option<&str>, budget: &mut Budget) -> Result<Reader, Gap> {
        match name.and_then(|name| self.elf.section_by_name(name)) {
            Some(section) => self.read(&section, budget),
            None => Ok(empty()),
        }
    }

    /// All sections of this name, one after the other: units of types can be in sections of their own.
    fn joined(&self, name: &str, budget: &mut Budget) -> Result<Reader, Gap> {
        let sections = self.elf.sections();
        let mut bytes = Vec::new();
        for section in sections.filter(|section| section.name() == Ok(name)) {
            bytes.extend_from_slice(self.read(&section, budget)?.bytes());
        }
        Ok(Reader::new(bytes.into(), LittleEndian))
    }

    fn read(&self, section: &impl ObjectSection<'d>, budget: &mut Budget) -> Result<Reader, Gap> {
        let range = section.compressed_file_range().map_err(|_| Gap::Malformed)?;
        budget.take(range.uncompressed_size)?;
        let bytes = self.content.read(range).ok_or(Gap::Malformed)?;
        Ok(Reader::new(bytes, LittleEndian))
    }
}

impl Content<'_> {
    /// The bytes of `range`, uncompressed. Its size is to be checked before.
    fn read(self, range: CompressedFileRange) -> Option<Arc<[u8]>> {
        match self {
            Self::Memory(bytes) => Some(range.data(bytes).ok()?.decompress().ok()?.into()),
            Self::File(file) if range.format == CompressionFormat::None => {
                read_exactly(file, range.offset, range.compressed_size)
            }
            Self::File(file) => {
                let cache = ReadCache::new(file);
                Some(range.data(&cache).ok()?.decompress().ok()?.into())
            }
        }
    }
}

fn read_exactly(file: &File, offset: u64, size: u64) -> Option<Arc<[u8]>> {
    // Not before it is known that there is so much.
    if offset.checked_add(size)? > file.metadata().ok()?.len() {
        return None;
    }
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, usize::try_from(size).ok()?).collect();
    file.read_exact_at(Arc::get_mut(&mut bytes)?, offset).ok()?;
    Some(bytes)
}

fn empty() -> Reader {
    Reader::new(Arc::from([]), LittleEndian)
}
