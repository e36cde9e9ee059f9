//! The sections of a file with functions and lines, uncompressed and up to a limit.
//!
//! They are copied, not mapped: a debug file can be truncated by its owner at any time, and reading a mapping
//! beyond its file's end raises SIGBUS, while a failed read is an error.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use gimli::{AbbreviationsCacheStrategy, Dwarf, DwarfPackage, SectionId};
use object::read::ReadCache;
use object::{CompressedFileRange, CompressionFormat, Object, ObjectSection};

use super::elf::malformed;
use super::live_code::LiveCode;
use super::proportions;
use super::reader::Reader;
use leak_report::model::Gap;

/// Maximum total size of debug sections of one object in bytes, uncompressed.
const MAX_SECTION_BYTES: u64 = 1 << 30;

/// Sections of an ordinary or supplementary file.
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

/// Sections of a `.dwo` file. Its lines are in the program's own file.
const SPLIT: [SectionId; 5] = [
    SectionId::DebugAbbrev,
    SectionId::DebugInfo,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

/// A [`Gap`] to which gimli's error converts.
struct Unreadable(Gap);

impl From<gimli::Error> for Unreadable {
    fn from(error: gimli::Error) -> Self {
        Self(malformed(error))
    }
}

/// Bytes of sections read for one object, up to [`MAX_SECTION_BYTES`].
#[derive(Debug, Default)]
pub(super) struct Budget {
    taken: u64,
}

impl Budget {
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

/// Content of an ELF file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'a> {
    /// In memory.
    Memory(&'a [u8]),
    /// To be read when needed.
    File(&'a File),
}

/// An ELF file's headers and content.
pub(super) struct Source<'a, E> {
    pub(super) elf: &'a E,
    pub(super) content: Content<'a>,
    /// Code that addresses must belong to; without it, all addresses are kept.
    pub(super) code: Option<&'a Arc<LiveCode>>,
}

/// True if `elf` has its own debug information.
pub(super) fn has_lines<'d>(elf: &impl Object<'d>) -> bool {
    let info = elf.section_by_name(SectionId::DebugInfo.name());
    let range = info.and_then(|section| section.compressed_file_range().ok());
    range.is_some_and(|range| range.uncompressed_size > 0)
}

impl<'d, E: Object<'d>> Source<'_, E> {
    /// Loads the debug information of a file that is not split.
    pub(super) fn dwarf(&self, budget: &mut Budget) -> Result<Dwarf<Reader>, Gap> {
        let section = |id: SectionId| {
            let bytes = self.section(WHOLE.contains(&id).then(|| id.name()), budget)?;
            Ok(match self.code {
                Some(code) => Reader::with_addresses(bytes, id, code.clone()),
                None => Reader::new(bytes),
            })
        };
        let mut dwarf = Dwarf::load(section)?;
        proportions::check_units(&dwarf)?;
        // Units from dwz share one large abbreviation table.
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        proportions::check_lines(&dwarf)?;
        Ok(dwarf)
    }

    /// Loads the debug information of a `.dwo` file.
    pub(super) fn split(&self, budget: &mut Budget) -> Result<Dwarf<Reader>, Gap> {
        Dwarf::load(|id| match id.dwo_name() {
            Some(name) if id == SectionId::DebugInfo => self.joined(name, budget).map(Reader::new),
            name => self
                .section(name.filter(|_| SPLIT.contains(&id)), budget)
                .map(Reader::new),
        })
    }

    /// Loads a package of `.dwo` files: all of it, as its index covers all units.
    pub(super) fn package(&self, budget: &mut Budget) -> Result<DwarfPackage<Reader>, Gap> {
        let section = |id: SectionId| {
            let bytes = self.section(id.dwo_name(), budget).map_err(Unreadable)?;
            Ok(Reader::new(bytes))
        };
        DwarfPackage::load(section, Reader::new(Arc::from([]))).map_err(|Unreadable(gap)| gap)
    }

    /// Copies a section; empty if it does not exist or is not needed.
    fn section(&self, name: Option<&str>, budget: &mut Budget) -> Result<Arc<[u8]>, Gap> {
        match name.and_then(|name| self.elf.section_by_name(name)) {
            Some(section) => self.read(&section, budget),
            None => Ok(Arc::from([])),
        }
    }

    /// Joins all sections of this name: type units can be in their own sections.
    fn joined(&self, name: &str, budget: &mut Budget) -> Result<Arc<[u8]>, Gap> {
        let sections = self.elf.sections();
        let mut bytes = Vec::new();
        for section in sections.filter(|section| section.name() == Ok(name)) {
            bytes.extend_from_slice(&self.read(&section, budget)?);
        }
        Ok(bytes.into())
    }

    fn read(&self, section: &impl ObjectSection<'d>, budget: &mut Budget) -> Result<Arc<[u8]>, Gap> {
        let range = section.compressed_file_range().map_err(|_| Gap::Malformed)?;
        budget.take(range.uncompressed_size)?;
        self.content.read(range).ok_or(Gap::Malformed)
    }
}

impl Content<'_> {
    /// The bytes of `range`, uncompressed. The caller must check its size before.
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
    // Allocate only if the file is large enough.
    if offset.checked_add(size)? > file.metadata().ok()?.len() {
        return None;
    }
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, usize::try_from(size).ok()?).collect();
    file.read_exact_at(Arc::get_mut(&mut bytes)?, offset).ok()?;
    Some(bytes)
}
