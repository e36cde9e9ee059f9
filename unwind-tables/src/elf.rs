//! What an ELF file says about itself: segments, build-id, and where its unwind information lies.
//!
//! Only executables and shared objects, with or without section headers, from a file or copied out
//! of memory (the vDSO). Reads no CFI and opens no files. Every offset and size in the file is untrusted:
//! the file is read through `Bytes`, which answers out-of-range reads with `None`. The ELF structures are
//! read field by field because a slice, such as a copy of the vDSO, need not be aligned for a cast.

use std::borrow::Cow;
use std::ops::Range;

use crate::addr::{self, FileOffset, Svma};
use crate::architecture::Architecture;
use crate::bytes::Bytes;
use crate::error::TableError;
use crate::sections::{MAX_CFI_BYTES, eh_frame_from_header, section_data};

/// A loadable segment (`PT_LOAD`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its addresses, with the part that is zero-filled rather than read from the file.
    pub svma: Range<Svma>,
    /// The part that is read from the file, cut where the file ends.
    pub offset: Range<FileOffset>,
    /// Whether code in it can run.
    pub executable: bool,
    /// Whether the program may change it.
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
    /// Where the contents start; 0 for a section that is not loaded.
    pub svma: Svma,
    /// The end of `data` is the section's end, not just somewhere behind it.
    pub exact: bool,
}

/// One section header that matters here.
#[derive(Clone, Debug)]
pub(crate) struct Section<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) svma: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) kind: u32,
    pub(crate) flags: u64,
}

/// An ELF file's headers.
#[derive(Clone, Debug)]
pub struct ElfView<'a> {
    bytes: Bytes<'a>,
    architecture: Architecture,
    segments: Vec<Segment>,
    build_id: Option<Range<FileOffset>>,
    eh_frame_hdr: Option<Svma>,
    sections: Vec<Section<'a>>,
}

const TYPE_EXEC: u16 = 2;
const TYPE_DYN: u16 = 3;
const PROGRAM_HEADER_BYTES: u64 = 56;
const SECTION_HEADER_BYTES: u64 = 64;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const SHT_NOTE: u32 = 7;
const SHF_EXECINSTR: u64 = 4;
/// The number that stands for "see the first section header".
const SHN_XINDEX: u16 = 0xffff;
/// More section headers than any linked file has: Chromium's debug build has 50.
const MAX_SECTIONS: u64 = 1 << 16;
const NOTE_BUILD_ID: u32 = 3;
/// Notes that are looked through, and bytes of each. Objects have half a dozen, and the largest, libc's list of places to
/// probe, is some ten kilobytes; what a file claims beyond that can be a hole of any size.
const MAX_NOTES: usize = 64;
const MAX_NOTE_BYTES: u64 = 1 << 20;
/// Bytes of code that are searched: the largest browsers have hardly more.
const MAX_CODE_BYTES: u64 = 256 << 20;

impl<'a> ElfView<'a> {
    /// Reads the headers of an executable or shared object that can run here.
    ///
    /// # Errors
    ///
    /// As [`Self::parse_any`], and [`TableError::Unsupported`] for another architecture.
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
        let file = Bytes(bytes);
        let architecture = check_identity(file)?;
        let mut view = Self {
            bytes: file,
            architecture,
            segments: Vec::new(),
            build_id: None,
            eh_frame_hdr: None,
            sections: sections(file).unwrap_or_default(),
        };
        view.read_program_headers()
            .ok_or(TableError::Malformed("program headers lie outside the file"))?;
        if view.build_id.is_none() {
            let notes = view.sections.iter().filter(|section| section.kind == SHT_NOTE);
            view.build_id = notes
                .take(MAX_NOTES)
                .find_map(|section| find_build_id(file, section.offset, section.size, 4));
        }
        Ok(view)
    }

    fn read_program_headers(&mut self) -> Option<()> {
        let (start, count) = (self.bytes.u64(32)?, self.bytes.u16(56)?);
        if count > 0 && u64::from(self.bytes.u16(54)?) != PROGRAM_HEADER_BYTES {
            return None;
        }
        let headers = self.bytes.at(start, u64::from(count) * PROGRAM_HEADER_BYTES)?;
        let mut notes = 0;
        for at in (0..u64::from(count)).map(|number| number * PROGRAM_HEADER_BYTES) {
            let (kind, flags) = (headers.u32(at)?, headers.u32(at + 4)?);
            let (offset, svma) = (headers.u64(at + 8)?, headers.u64(at + 16)?);
            let (file_size, memory_size) = (headers.u64(at + 32)?, headers.u64(at + 40)?);
            match kind {
                PT_LOAD => {
                    let segment = self.segment(offset, svma, file_size, memory_size, flags);
                    self.segments.extend(segment);
                }
                PT_NOTE if self.build_id.is_none() && notes < MAX_NOTES => {
                    notes += 1;
                    self.build_id = find_build_id(self.bytes, offset, file_size, headers.u64(at + 48)?);
                }
                PT_GNU_EH_FRAME => self.eh_frame_hdr = Some(Svma::new(svma)),
                _ => {}
            }
        }
        Some(())
    }

    /// `None` for a segment that wraps around the address space; such a file cannot be mapped.
    fn segment(
        &self,
        offset: u64,
        svma: u64,
        file_size: u64,
        memory_size: u64,
        flags: u32,
    ) -> Option<Segment> {
        let start = Svma::new(svma);
        let end = start.checked_add(memory_size)?;
        let file_start = offset.min(self.bytes.len());
        let file_end = offset
            .saturating_add(file_size.min(memory_size))
            .min(self.bytes.len());
        Some(Segment {
            svma: start..end,
            offset: FileOffset::new(file_start)..FileOffset::new(file_end),
            executable: flags & PF_X != 0,
            writable: flags & PF_W != 0,
        })
    }

    /// What its code is for.
    pub fn architecture(&self) -> Architecture {
        self.architecture
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

    /// Where in the file the GNU build-id stands.
    pub fn build_id_range(&self) -> Option<Range<FileOffset>> {
        self.build_id.clone()
    }

    /// The word at an address, if it is loaded where the program cannot change it.
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

    /// Whether the file has usable section headers.
    pub fn has_section_headers(&self) -> bool {
        !self.sections.is_empty()
    }

    /// Size of the file.
    pub fn byte_len(&self) -> u64 {
        self.bytes.len()
    }

    /// Where a byte of the file is loaded.
    pub fn svma_of(&self, offset: FileOffset) -> Option<Svma> {
        let holds = |segment: &&Segment| addr::contains(&segment.offset, offset);
        let segment = self.segments.iter().find(holds)?;
        addr::segment_svma(offset, segment.offset.start, segment.svma.start)
    }

    /// Which byte of the file is loaded at an address; `None` also for zero-filled memory.
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

    /// Gives the file's bytes of ranges of code, each in one segment, of no more bytes in all than the file has, and
    /// [`MAX_CODE_BYTES`].
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

    /// Where code may lie: the executable sections, or without section headers the executable segments.
    pub fn code_ranges(&self) -> Vec<Range<Svma>> {
        let executable = |section: &&Section<'_>| section.flags & SHF_EXECINSTR != 0;
        let of_section = |section: &Section<'_>| {
            let start = Svma::new(section.svma);
            Some(start..start.checked_add(section.size)?)
        };
        let from_sections: Vec<_> = self
            .sections
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

    /// `.eh_frame`, from the section headers or else through `PT_GNU_EH_FRAME`; `None` also when it is damaged or
    /// implausibly large.
    pub fn eh_frame(&self) -> Option<CfiSection<'a>> {
        if let Some(section) = self.section(b".eh_frame") {
            return Some(CfiSection {
                data: section_data(self.bytes, section)?,
                svma: Svma::new(section.svma),
                exact: true,
            });
        }
        let header_svma = self.eh_frame_hdr?;
        let header = self.loaded_from(header_svma)?;
        let eh_frame = eh_frame_from_header(header, header_svma)?;
        let bytes = self.loaded_from(eh_frame.svma)?;
        let end = eh_frame
            .last_fde
            .and_then(|last| entry_end(bytes, last, eh_frame.svma));
        let length = end.unwrap_or(bytes.len()).min(MAX_CFI_BYTES);
        Some(CfiSection {
            data: Cow::Borrowed(bytes.at(0, length)?.0),
            svma: eh_frame.svma,
            exact: end.is_some(),
        })
    }

    /// `.debug_frame`, decompressed; `None` also when it is damaged or implausibly large.
    pub fn debug_frame(&self) -> Option<CfiSection<'a>> {
        let section = self.section(b".debug_frame")?;
        Some(CfiSection {
            data: section_data(self.bytes, section)?,
            svma: Svma::new(0),
            exact: true,
        })
    }

    /// Where the contents of the section of this name are in the file, as they are there, if its headers name one.
    pub fn section_range(&self, name: &[u8]) -> Option<Range<FileOffset>> {
        let section = self.section(name)?;
        let end = section.offset.checked_add(section.size)?;
        Some(FileOffset::new(section.offset)..FileOffset::new(end))
    }

    /// Whether there is a section of this name.
    pub(crate) fn has_section(&self, name: &[u8]) -> bool {
        self.section(name).is_some()
    }

    fn section(&self, name: &[u8]) -> Option<&Section<'a>> {
        self.sections.iter().find(|section| section.name == name)
    }
}

fn check_identity(file: Bytes<'_>) -> Result<Architecture, TableError> {
    let ident = file.at(0, 16).ok_or(TableError::NotElf)?.0;
    if !ident.starts_with(b"\x7fELF") {
        return Err(TableError::NotElf);
    }
    if ident[4] != 2 {
        return Err(TableError::Unsupported("not 64-bit"));
    }
    if ident[5] != 1 {
        return Err(TableError::Unsupported("not little-endian"));
    }
    let field = |at| file.u16(at).ok_or(TableError::Malformed("header is cut off"));
    let architecture =
        Architecture::from_elf(field(18)?).ok_or(TableError::Unsupported("not for x86-64 or aarch64"))?;
    match field(16)? {
        TYPE_EXEC | TYPE_DYN => Ok(architecture),
        _ => Err(TableError::Unsupported(
            "neither an executable nor a shared object",
        )),
    }
}

/// The section headers; `None` when they are missing or damaged.
fn sections(file: Bytes<'_>) -> Option<Vec<Section<'_>>> {
    let (start, size, count) = (file.u64(40)?, file.u16(58)?, file.u16(60)?);
    if start == 0 || u64::from(size) != SECTION_HEADER_BYTES {
        return None;
    }
    let first = file.at(start, SECTION_HEADER_BYTES)?;
    // Past 0xff00 sections, the counts stand in the first section header (gABI, "Section Header").
    let count = if count == 0 { first.u64(32)? } else { count.into() };
    let names_index = match file.u16(62)? {
        SHN_XINDEX => first.u32(40)?,
        index => index.into(),
    };
    if count > MAX_SECTIONS {
        return None;
    }
    let headers = file.at(start, count * SECTION_HEADER_BYTES)?;
    let names_header = u64::from(names_index).checked_mul(SECTION_HEADER_BYTES)?;
    let names = file.at(
        headers.u64(names_header.checked_add(24)?)?,
        headers.u64(names_header.checked_add(32)?)?,
    )?;
    let section = |number: u64| {
        let header = headers.at(number * SECTION_HEADER_BYTES, SECTION_HEADER_BYTES)?;
        Some(Section {
            name: names.c_string(header.u32(0)?.into())?,
            kind: header.u32(4)?,
            flags: header.u64(8)?,
            svma: header.u64(16)?,
            offset: header.u64(24)?,
            size: header.u64(32)?,
        })
    };
    (0..count).map(section).collect()
}

/// Where the build-id is among the `size` bytes of notes at `start`, which are padded to `align` bytes (gABI: 4,
/// or 8 as `p_align` says).
fn find_build_id(file: Bytes<'_>, start: u64, size: u64, align: u64) -> Option<Range<FileOffset>> {
    let notes = file.at(start, size)?;
    let notes = notes.at(0, size.min(MAX_NOTE_BYTES))?;
    let align = if align == 8 { 8 } else { 4 };
    let mut at: u64 = 0;
    loop {
        let (name_size, desc_size) = (u64::from(notes.u32(at)?), u64::from(notes.u32(at + 4)?));
        let desc_at = (at + 12 + name_size).next_multiple_of(align);
        if notes.u32(at + 8)? == NOTE_BUILD_ID && notes.at(at + 12, name_size)?.0 == b"GNU\0" {
            notes.at(desc_at, desc_size).filter(|id| id.len() > 0)?;
            let found = start + desc_at;
            return Some(FileOffset::new(found)..FileOffset::new(found + desc_size));
        }
        at = (desc_at + desc_size).next_multiple_of(align);
    }
}

/// Where the CFI entry at `entry` ends, counted from `start`, whose bytes are `bytes`.
fn entry_end(bytes: Bytes<'_>, entry: Svma, start: Svma) -> Option<u64> {
    let at = entry.get().checked_sub(start.get())?;
    let end = match bytes.u32(at)? {
        u32::MAX => at.checked_add(12)?.checked_add(bytes.u64(at + 4)?)?,
        length => at + 4 + u64::from(length),
    };
    (end <= bytes.len()).then_some(end)
}
