//! Functions, inlined functions and lines from DWARF.
//!
//! The sections are copied, not mapped: a debug file can be truncated by its owner at any time, and reading a
//! mapping beyond its file's end is a signal, not an error.

use std::sync::Arc;

use addr2line::Context;
use gimli::{EndianArcSlice, LittleEndian, SectionId};
use object::{Object, ObjectSection};

use super::demangle::demangle;
use super::frame::{Gap, InlinedFrame};

/// The most bytes of debug sections, uncompressed, that are held for one object.
const MAX_SECTIONS: u64 = 1 << 30;
/// The most functions inlined into each other that are shown.
const MAX_INLINED: usize = 128;
/// The deepest nesting of entries that is accepted. The reader recurses once per level; compilers nest a
/// level per scope and inlined call, a few dozen.
const MAX_NESTING: isize = 1024;

type Reader = EndianArcSlice<LittleEndian>;

/// The sections that functions and lines come from.
const SECTIONS: [SectionId; 10] = [
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

/// An object's debug information.
pub(super) struct Lines {
    context: Context<Reader>,
    memory: usize,
}

/// What debug information says of an address.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The function in whose machine code the address lies, demangled.
    pub(super) function: Option<String>,
    /// Source file of the call in that function.
    pub(super) file: Option<String>,
    /// Line of the call in that file.
    pub(super) line: Option<u32>,
    /// Functions inlined there, innermost first.
    pub(super) inlined: Vec<InlinedFrame>,
}

/// Whether `elf` has debug information of its own.
pub(super) fn has_lines<'a>(elf: &impl Object<'a>) -> bool {
    let info = elf.section_by_name(".debug_info");
    info.is_some_and(|section| {
        section
            .compressed_data()
            .is_ok_and(|data| data.uncompressed_size > 0)
    })
}

impl Lines {
    /// Copies the debug information of `elf`.
    pub(super) fn load<'a>(elf: &impl Object<'a>) -> Result<Self, Gap> {
        let mut memory = 0;
        for id in SECTIONS {
            memory += uncompressed_size(elf, id);
            if memory > MAX_SECTIONS {
                return Err(Gap::TooLarge);
            }
        }
        let dwarf = gimli::Dwarf::load(|id| section(elf, id))?;
        check_nesting(&dwarf).map_err(|_| Gap::Malformed)?;
        let context = Context::from_dwarf(dwarf).map_err(|_| Gap::Malformed)?;
        Ok(Self {
            context,
            // Parsed units and line rows take about as much again.
            memory: usize::try_from(memory).unwrap_or(usize::MAX).saturating_mul(2),
        })
    }

    /// What is known of the code at `address`.
    pub(super) fn find(&self, address: u64) -> Result<Found, Gap> {
        let mut frames = self
            .context
            .find_frames(address)
            .skip_all_loads()
            .map_err(|_| Gap::Malformed)?;
        let mut chain = Vec::new();
        while let Some(frame) = frames.next().map_err(|_| Gap::Malformed)? {
            if chain.len() > MAX_INLINED {
                break;
            }
            let name = frame
                .function
                .as_ref()
                .and_then(|function| function.raw_name().ok());
            let location = frame.location;
            chain.push(InlinedFrame {
                symbol: name.map(|name| demangle(name.as_bytes())),
                file: location
                    .as_ref()
                    .and_then(|location| location.file)
                    .map(str::to_owned),
                // Line 0 is code that belongs to no line.
                line: location
                    .and_then(|location| location.line)
                    .filter(|&line| line > 0),
            });
        }
        let Some(outermost) = chain.pop() else {
            return Ok(Found::default());
        };
        Ok(Found {
            function: outermost.symbol,
            file: outermost.file,
            line: outermost.line,
            inlined: chain,
        })
    }

    /// About how much memory this takes, in bytes.
    pub(super) fn memory(&self) -> usize {
        self.memory
    }
}

fn uncompressed_size<'a>(elf: &impl Object<'a>, id: SectionId) -> u64 {
    let section = elf.section_by_name(id.name());
    let data = section.and_then(|section| section.compressed_data().ok());
    data.map_or(0, |data| data.uncompressed_size)
}

/// A copy of one section; empty where there is none or it is not needed.
fn section<'a>(elf: &impl Object<'a>, id: SectionId) -> Result<Reader, Gap> {
    let section = SECTIONS
        .contains(&id)
        .then(|| elf.section_by_name(id.name()))
        .flatten();
    let bytes: Arc<[u8]> = match section {
        None => Arc::from([]),
        Some(section) => section.uncompressed_data().map_err(|_| Gap::Malformed)?.into(),
    };
    Ok(Reader::new(bytes, LittleEndian))
}

/// Rejects entries nested so deep that reading them could exhaust the program's own stack.
fn check_nesting(dwarf: &gimli::Dwarf<Reader>) -> Result<(), gimli::Error> {
    let mut headers = dwarf.units();
    while let Some(header) = headers.next()? {
        // A unit that cannot be read is skipped here as it is when it is looked up.
        let Ok(abbreviations) = dwarf.abbreviations(&header) else {
            continue;
        };
        let Ok(mut entries) = header.entries_raw(&abbreviations, None) else {
            continue;
        };
        while !entries.is_empty() {
            if entries.next_depth() > MAX_NESTING {
                return Err(gimli::Error::UnexpectedEof(gimli::ReaderOffsetId(0)));
            }
            let Ok(abbreviation) = entries.read_abbreviation() else {
                break;
            };
            if let Some(abbreviation) = abbreviation
                && entries.skip_attributes(abbreviation.attributes()).is_err()
            {
                break;
            }
        }
    }
    Ok(())
}
