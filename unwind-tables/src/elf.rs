//! Facts of an ELF file: segments, build-id, and where its unwind information lies.
//!
//! Only executables and shared objects, with or without section headers, from a file or copied out of memory
//! (the vDSO). Reads no CFI and opens no files. Every offset and size in the file is untrusted: `object`
//! checks it against the file, whose bytes need not be aligned, and limits here bound the sizes that a file
//! with a hole in it can claim.

use std::borrow::Cow;
use std::ops::Range;

use object::elf::{self, FileHeader64, ProgramHeader64, SectionHeader64, Sym64};
use object::read::elf::{FileHeader as _, NoteIterator, ProgramHeader as _, SectionHeader as _};
use object::{LittleEndian, ReadRef};

use crate::addr::{self, FileOffset, Svma};
use crate::architecture::Architecture;
use crate::bytes::Bytes;
use crate::error::TableError;
pub use crate::sections::MAX_CFI_BYTES;
use crate::sections::{EhFrameHeader, old_section_data, section_data};

/// A loadable segment (`PT_LOAD`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its addresses, including the part that is zero-filled rather than read from the file.
    pub svma: Range<Svma>,
    /// The part of the file that it is read from, cut where the file ends.
    pub offset: Range<FileOffset>,
    /// True if code in it can run.
    pub executable: bool,
    /// True if the program may write to it.
    pub writable: bool,
}

impl Segment {
    /// The addresses that are read from the file.
    pub fn file_backed(&self) -> Range<Svma> {
        let length = self.offset.end.offset_from(self.offset.start);
        self.svma.start..self.svma.start.wrapping_add(length)
    }
}

/// Bytes of call frame information and the address they are loaded at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CfiSection<'a> {
    /// The section's contents, decompressed.
    pub data: Cow<'a, [u8]>,
    /// Address of the contents; 0 for a section that is not loaded.
    pub svma: Svma,
    /// True if `data` ends where the section ends, not somewhere behind it.
    pub exact: bool,
}

/// Byte order for `object`: every file that is read is little-endian.
pub(crate) const ENDIAN: LittleEndian = LittleEndian;
pub(crate) type SectionHeader = SectionHeader64<LittleEndian>;
type FileHeader = FileHeader64<LittleEndian>;

/// The section headers, and the section with their names.
#[derive(Clone, Copy, Debug, Default)]
struct Sections<'a> {
    headers: &'a [SectionHeader],
    names: &'a [u8],
}

/// An ELF file's headers.
#[derive(Clone, Debug)]
pub struct ElfView<'a> {
    bytes: Bytes<'a>,
    architecture: Architecture,
    is_fixed: bool,
    entry: Svma,
    segments: Vec<Segment>,
    build_id: Option<Range<FileOffset>>,
    eh_frame_hdr: Option<Svma>,
    sections: Sections<'a>,
    /// `.debug_frame` of its debug file.
    separate_debug_frame: &'a [u8],
}

/// Maximum number of section headers. Chromium's debug build has 50; linkers that do not join sections of
/// functions make as many as there are functions.
const MAX_SECTIONS: usize = 1 << 20;
/// Maximum number of symbols that are read; the largest browsers have some million.
const MAX_SYMBOLS: usize = 1 << 22;
/// Maximum number of program headers that are read; the kernel runs no program with more than 1170.
const MAX_PROGRAM_HEADERS: usize = 1 << 16;
/// Maximum number of note sections or segments that are searched, and of bytes of each. Objects have half a
/// dozen, and the largest, libc's list of USDT probes, is some ten kilobytes; a file with a hole in it can
/// claim any size.
const MAX_NOTES: usize = 64;
const MAX_NOTE_BYTES: usize = 1 << 20;
/// Maximum number of relocation sections that are read, of which linkers make two, and of relocations in one
/// section, of which the largest browsers have a million.
const MAX_RELOCATION_SECTIONS: usize = 2;
const MAX_RELOCATIONS: usize = 1 << 21;
/// Maximum number of bytes of code that are searched; the largest browsers have hardly more.
const MAX_CODE_BYTES: u64 = 256 << 20;

impl<'a> ElfView<'a> {
    /// Reads the headers of an executable or shared object that can run here.
    ///
    /// # Errors
    ///
    /// Fails as [`Self::parse_any`] does, and with [`TableError::Unsupported`] for another architecture.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, TableError> {
        let view = Self::parse_any(bytes)?;
        if view.architecture == Architecture::HOST {
            return Ok(view);
        }
        Err(TableError::Unsupported(match Architecture::HOST {
            Architecture::X86_64 => "not for x86-64",
            Architecture::Aarch64 => "not for aarch64",
        }))
    }

    /// Reads the headers of an executable or shared object for any known [`Architecture`].
    ///
    /// Section headers that are missing or damaged are treated as missing: a process runs without them.
    ///
    /// # Errors
    ///
    /// [`TableError::NotElf`], [`TableError::Unsupported`] for another class, byte order, machine or type,
    /// [`TableError::Malformed`] when the program headers lie outside the file.
    pub fn parse_any(bytes: &'a [u8]) -> Result<Self, TableError> {
        let header = check_identity(bytes)?;
        let (machine, kind) = (header.e_machine(ENDIAN), header.e_type(ENDIAN));
        let architecture =
            Architecture::from_elf(machine).ok_or(TableError::Unsupported("not for x86-64 or aarch64"))?;
        if ![elf::ET_EXEC, elf::ET_DYN].contains(&kind) {
            return Err(TableError::Unsupported(
                "neither an executable nor a shared object",
            ));
        }
        let mut view = Self {
            bytes: Bytes(bytes),
            architecture,
            is_fixed: kind == elf::ET_EXEC,
            entry: Svma::new(header.e_entry(ENDIAN)),
            segments: Vec::new(),
            build_id: None,
            eh_frame_hdr: None,
            sections: Sections::of(header, bytes).unwrap_or_default(),
            separate_debug_frame: &[],
        };
        let headers = header
            .program_headers(ENDIAN, bytes)
            .map_err(|_| TableError::Malformed("program headers lie outside the file"))?;
        view.read_program_headers(headers);
        if view.build_id.is_none() {
            let headers = view.sections.headers.iter();
            let notes = headers.filter(|section| section.sh_type(ENDIAN) == elf::SHT_NOTE);
            view.build_id = notes
                .take(MAX_NOTES)
                .find_map(|section| find_build_id(bytes, section.data(ENDIAN, bytes).ok()?, 4));
        }
        Ok(view)
    }

    fn read_program_headers(&mut self, headers: &[ProgramHeader64<LittleEndian>]) {
        let mut notes = 0;
        for header in headers.iter().take(MAX_PROGRAM_HEADERS) {
            match header.p_type(ENDIAN) {
                elf::PT_LOAD => self.segments.extend(self.segment(header)),
                elf::PT_NOTE if self.build_id.is_none() && notes < MAX_NOTES => {
                    notes += 1;
                    let found = header.data(ENDIAN, self.bytes.0).ok();
                    let align = header.p_align(ENDIAN);
                    self.build_id = found.and_then(|found| find_build_id(self.bytes.0, found, align));
                }
                elf::PT_GNU_EH_FRAME => self.eh_frame_hdr = Some(Svma::new(header.p_vaddr(ENDIAN))),
                _ => {}
            }
        }
    }

    /// Reads a segment; `None` if it wraps around the address space, as such a file cannot be mapped.
    fn segment(&self, header: &ProgramHeader64<LittleEndian>) -> Option<Segment> {
        let (offset, file_size) = header.file_range(ENDIAN);
        let memory_size = header.p_memsz(ENDIAN);
        let start = Svma::new(header.p_vaddr(ENDIAN));
        let end = start.checked_add(memory_size)?;
        let file_start = offset.min(self.bytes.len());
        let file_end = offset
            .saturating_add(file_size.min(memory_size))
            .min(self.bytes.len());
        let flags = header.p_flags(ENDIAN);
        Some(Segment {
            svma: start..end,
            offset: FileOffset::new(file_start)..FileOffset::new(file_end),
            executable: flags.contains(elf::PF_X),
            writable: flags.contains(elf::PF_W),
        })
    }

    /// Architecture of its code.
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// True if it is loaded at the addresses that it states: an executable that is not position-independent.
    pub fn is_fixed(&self) -> bool {
        self.is_fixed
    }

    /// The entry point; 0 if there is none.
    pub(crate) fn entry(&self) -> Svma {
        self.entry
    }

    /// The loadable segments, in the order of the program headers.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The GNU build-id.
    pub fn build_id(&self) -> Option<&'a [u8]> {
        let Range { start, end } = self.build_id.clone()?;
        Some(self.bytes.at(start.get(), end.offset_from(start))?.0)
    }

    /// Range of the GNU build-id in the file.
    pub fn build_id_range(&self) -> Option<Range<FileOffset>> {
        self.build_id.clone()
    }

    /// The word at an address, if it is loaded and the program cannot change it.
    pub fn constant_word(&self, svma: Svma) -> Option<u64> {
        let end = svma.checked_add(8)?;
        let holds = |segment: &&Segment| {
            let range = segment.file_backed();
            !segment.writable && range.start <= svma && end <= range.end
        };
        let segment = self.segments.iter().find(holds)?;
        let offset = addr::segment_offset(svma, segment.svma.start, segment.offset.start)?;
        self.bytes.u64(offset.get())
    }

    /// The pointer that the loader stores at an address, less the bias: from a relative relocation, or as it
    /// is in the file if there is none.
    pub(crate) fn pointer(&self, svma: Svma) -> Option<Svma> {
        let relative = match self.architecture {
            Architecture::X86_64 => elf::R_X86_64_RELATIVE,
            Architecture::Aarch64 => elf::R_AARCH64_RELATIVE,
        };
        let is_loaded = |section: &&SectionHeader| section.sh_flags(ENDIAN).contains(elf::SHF_ALLOC);
        let sections = self.sections.headers.iter().filter(is_loaded);
        let relocations = sections.filter_map(|section| Some(section.rela(ENDIAN, self.bytes.0).ok()??.0));
        let sections = relocations.take(MAX_RELOCATION_SECTIONS);
        let mut relocations = sections.flat_map(|section| section.iter().take(MAX_RELOCATIONS));
        let applies = |relocation: &&elf::Rela64<LittleEndian>| {
            relocation.r_offset.get(ENDIAN) == svma.get() && relocation.r_type(ENDIAN, false) == relative
        };
        match relocations.find(applies) {
            Some(relocation) => Some(Svma::new(relocation.r_addend.get(ENDIAN).cast_unsigned())),
            None => self.loaded_from(svma)?.u64(0).map(Svma::new),
        }
    }

    /// The whole file.
    pub(crate) fn bytes(&self) -> Bytes<'a> {
        self.bytes
    }

    /// Returns whether the file has usable section headers.
    pub fn has_section_headers(&self) -> bool {
        !self.sections.headers.is_empty()
    }

    /// Size of the file.
    pub fn byte_len(&self) -> u64 {
        self.bytes.len()
    }

    /// SVMA at which a byte of the file is loaded.
    pub fn svma_of(&self, offset: FileOffset) -> Option<Svma> {
        let holds = |segment: &&Segment| addr::contains(&segment.offset, offset);
        let segment = self.segments.iter().find(holds)?;
        addr::segment_svma(offset, segment.offset.start, segment.svma.start)
    }

    /// File offset of the byte that is loaded at an address; `None` also for zero-filled memory.
    pub fn offset_of(&self, svma: Svma) -> Option<FileOffset> {
        let holds = |segment: &&Segment| addr::contains(&segment.file_backed(), svma);
        let segment = self.segments.iter().find(holds)?;
        addr::segment_offset(svma, segment.svma.start, segment.offset.start)
    }

    /// The bytes from `svma` to the end of the file-backed part of its segment.
    fn loaded_from(&self, svma: Svma) -> Option<Bytes<'a>> {
        let holds = |segment: &&Segment| addr::contains(&segment.file_backed(), svma);
        let segment = self.segments.iter().find(holds)?;
        let start = addr::segment_offset(svma, segment.svma.start, segment.offset.start)?;
        self.bytes.at(start.get(), segment.offset.end.offset_from(start))
    }

    /// Returns a function that gives the file's bytes of a range of code in one segment. In all it gives at
    /// most as many bytes as the file has, and at most [`MAX_CODE_BYTES`].
    pub(crate) fn code_bytes(&self) -> impl FnMut(&Range<Svma>) -> Option<&'a [u8]> {
        let executable = self.segments.iter().filter(|segment| segment.executable);
        let mut segments: Vec<_> = executable.cloned().collect();
        segments.sort_by_key(|segment| segment.svma.start);
        let (bytes, mut budget) = (self.bytes, self.bytes.len().min(MAX_CODE_BYTES));
        move |range| {
            let after = segments.partition_point(|segment| segment.svma.start <= range.start);
            let segment = segments.get(after.checked_sub(1)?)?;
            let start = range.start.offset_from(segment.svma.start);
            let length = range.end.offset_from(range.start);
            let file = bytes.at(
                segment.offset.start.get(),
                segment.offset.end.offset_from(segment.offset.start),
            )?;
            budget = budget.checked_sub(length)?;
            file.at(start, length).map(|found| found.0)
        }
    }

    /// Ranges that may contain code: the executable sections, or without section headers the executable
    /// segments.
    pub fn code_ranges(&self) -> Vec<Range<Svma>> {
        let executable = |section: &&SectionHeader| section.sh_flags(ENDIAN).contains(elf::SHF_EXECINSTR);
        let of_section = |section: &SectionHeader| {
            let start = Svma::new(section.sh_addr(ENDIAN));
            Some(start..start.checked_add(section.sh_size(ENDIAN))?)
        };
        let from_sections: Vec<_> = self
            .sections
            .headers
            .iter()
            .filter(executable)
            .filter_map(of_section)
            .collect();
        if !from_sections.is_empty() {
            return from_sections;
        }
        let segments = self.segments.iter().filter(|segment| segment.executable);
        segments.map(Segment::file_backed).collect()
    }

    /// Ranges of functions by the file's symbols, or by its dynamic symbols if it has no others. The range of
    /// a symbol without a size is empty.
    pub(crate) fn function_symbols(&self) -> impl Iterator<Item = Range<Svma>> {
        let of_kind = |kind| {
            let mut sections = self.sections.headers.iter();
            let section = sections.find(|section| section.sh_type(ENDIAN) == kind)?;
            section
                .data_as_array::<Sym64<LittleEndian>, _>(ENDIAN, self.bytes.0)
                .ok()
        };
        let symbols = of_kind(elf::SHT_SYMTAB).or_else(|| of_kind(elf::SHT_DYNSYM));
        let symbols = symbols.unwrap_or_default().iter().take(MAX_SYMBOLS);
        let functions = symbols.filter(|symbol| symbol.st_type() == elf::STT_FUNC);
        functions.filter_map(|symbol| {
            let start = Svma::new(symbol.st_value.get(ENDIAN));
            Some(start..start.checked_add(symbol.st_size.get(ENDIAN))?)
        })
    }

    /// `.eh_frame`, from the section headers or else through `PT_GNU_EH_FRAME`; `None` also when it is
    /// damaged or implausibly large.
    pub fn eh_frame(&self) -> Option<CfiSection<'a>> {
        if let Some(section) = self.sections.named(b".eh_frame") {
            return Some(CfiSection {
                data: section_data(self.bytes, section)?,
                svma: Svma::new(section.sh_addr(ENDIAN)),
                exact: true,
            });
        }
        let header = self.eh_frame_header()?;
        let svma = header.eh_frame()?;
        let bytes = self.loaded_from(svma)?;
        let end = header.last_fde().and_then(|last| entry_end(bytes, last, svma));
        let length = end.unwrap_or(bytes.len()).min(MAX_CFI_BYTES);
        Some(CfiSection {
            data: Cow::Borrowed(bytes.at(0, length)?.0),
            svma,
            exact: end.is_some(),
        })
    }

    /// Starts of functions, or of parts of them, from the search table of `.eh_frame_hdr`, up to the first
    /// damaged entry. Linkers write them in ascending order.
    pub fn function_starts(&self) -> Vec<Svma> {
        let header = self.eh_frame_header();
        header.map_or_else(Vec::new, |header| header.function_starts())
    }

    /// The first of [`Self::function_starts`] after an address, if they ascend. A binary search, which does
    /// not read the whole table.
    pub fn function_start_after(&self, address: Svma) -> Option<Svma> {
        self.eh_frame_header()?.function_start_after(address)
    }

    fn eh_frame_header(&self) -> Option<EhFrameHeader<'a>> {
        let svma = self.eh_frame_hdr?;
        EhFrameHeader::parse(self.loaded_from(svma)?, svma)
    }

    /// Sets the contents of `.debug_frame` of the object's debug file, for an object that has none itself.
    #[must_use]
    pub fn with_debug_frame(self, separate_debug_frame: &'a [u8]) -> Self {
        Self {
            separate_debug_frame,
            ..self
        }
    }

    /// `.debug_frame`, decompressed: its own, also as `.zdebug_frame`, else its debug file's. `None` also
    /// when it is damaged or implausibly large.
    pub fn debug_frame(&self) -> Option<CfiSection<'a>> {
        let own = self.sections.named(b".debug_frame");
        let own = own.map(|section| section_data(self.bytes, section));
        let old = || self.sections.named(b".zdebug_frame");
        let own = own.or_else(|| old().map(|section| old_section_data(self.bytes, section)));
        let separate = self.separate_debug_frame;
        let data = match own {
            Some(data) => data?,
            None => (!separate.is_empty()).then_some(Cow::Borrowed(separate))?,
        };
        Some(CfiSection {
            data,
            svma: Svma::new(0),
            exact: true,
        })
    }

    /// Range in the file of the contents of the section with this name, which may be compressed; `None` if
    /// there is none.
    pub fn section_range(&self, name: &[u8]) -> Option<Range<FileOffset>> {
        let section = self.sections.named(name)?;
        let start = section.sh_offset(ENDIAN);
        let end = start.checked_add(section.sh_size(ENDIAN))?;
        Some(FileOffset::new(start)..FileOffset::new(end))
    }

    /// Returns whether there is a section of this name.
    pub(crate) fn has_section(&self, name: &[u8]) -> bool {
        self.sections.named(name).is_some()
    }
}

impl<'a> Sections<'a> {
    /// Reads the section headers; `None` when they or their names are missing or damaged, or when there are
    /// too many.
    fn of(header: &'a FileHeader, bytes: &'a [u8]) -> Option<Self> {
        let headers = header.section_headers(ENDIAN, bytes).ok()?;
        let names = header.section_strings_index(ENDIAN, bytes).ok()?;
        let names = headers.get(names.0)?.data(ENDIAN, bytes).ok()?;
        (headers.len() <= MAX_SECTIONS).then_some(Self { headers, names })
    }

    /// The first section with a name. Names are compared in place, since one can go on to the end of its
    /// section.
    fn named(&self, name: &[u8]) -> Option<&'a SectionHeader> {
        let is_named = |section: &&SectionHeader| {
            let at = usize::try_from(section.sh_name(ENDIAN)).ok();
            let found = at.and_then(|at| self.names.get(at..)?.strip_prefix(name));
            found.is_some_and(|rest| rest.first() == Some(&0))
        };
        self.headers.iter().find(is_named)
    }
}

/// The header of a 64-bit little-endian file. Its version is not checked; the kernel does not check it
/// either.
fn check_identity(file: &[u8]) -> Result<&FileHeader, TableError> {
    if !file.starts_with(&elf::ELFMAG) {
        return Err(TableError::NotElf);
    }
    let header: &FileHeader = file
        .read_at(0)
        .map_err(|()| TableError::Malformed("header is cut off"))?;
    if !header.is_class_64() {
        return Err(TableError::Unsupported("not 64-bit"));
    }
    if !header.is_little_endian() {
        return Err(TableError::Unsupported("not little-endian"));
    }
    Ok(header)
}

/// Range of the build-id in a file. `notes` are notes of the file, padded to `align` bytes (gABI: 4, or 8 as
/// `p_align` says).
fn find_build_id(file: &[u8], notes: &[u8], align: u64) -> Option<Range<FileOffset>> {
    let align = if align == 8 { 8 } else { 4 };
    let notes = &notes[..notes.len().min(MAX_NOTE_BYTES)];
    let mut notes = NoteIterator::<FileHeader>::new(ENDIAN, align, notes).ok()?;
    let is_build_id = |kind, name| kind == elf::NT_GNU_BUILD_ID && name == elf::ELF_NOTE_GNU;
    let id = loop {
        let note = notes.next().ok()??;
        if is_build_id(note.n_type(ENDIAN), note.name()) {
            break note.desc();
        }
    };
    // Notes are borrowed from the file, and `object` does not say from where.
    let start = id.as_ptr().addr().checked_sub(file.as_ptr().addr())? as u64;
    let end = start.checked_add(id.len() as u64)?;
    (start < end).then(|| FileOffset::new(start)..FileOffset::new(end))
}

/// End of the CFI entry at `entry`, as an offset from `start`; `bytes` begin at `start`.
fn entry_end(bytes: Bytes<'_>, entry: Svma, start: Svma) -> Option<u64> {
    let at = entry.get().checked_sub(start.get())?;
    let end = match bytes.u32(at)? {
        u32::MAX => at.checked_add(12)?.checked_add(bytes.u64(at + 4)?)?,
        length => at + 4 + u64::from(length),
    };
    (end <= bytes.len()).then_some(end)
}
