//! Go's own table of functions (`pclntab`), which its runtime walks stacks by. Stripping leaves it.
//!
//! Only one thing is read of it: which functions write the stack pointer otherwise than by steps of a known size. The
//! assembler notes that of each (`SPWRITE`), and the runtime ends its own walks there. Format: `pcHeader` and `functab` in
//! Go's `runtime/symtab.go`, `_func` in `runtime/runtime2.go`; those of Go 1.18 and 1.20, which 1.27 still has. Older tables
//! do not have the note, or have absolute addresses.

use std::ops::Range;

use memchr::memmem;

use crate::addr::{self, FileOffset, Svma};
use crate::architecture::Architecture;
use crate::bytes::Bytes;
use crate::elf::ElfView;

/// Sections that hold the table alone: without relocations (always since Go 1.26), and with them, as Go's linker names them.
const OWN_SECTIONS: [&[u8]; 2] = [b".gopclntab", b".data.rel.ro.gopclntab"];
/// Section into which other linkers put the second.
const SHARED_SECTION: &[u8] = b".data.rel.ro";
/// Section that begins with the module's description, since Go 1.26.
const MODULE_SECTION: &[u8] = b".go.module";
/// Offset of the text's start in the module's description (`moduledata.text`), and in the table's header before.
const TEXT_IN_MODULE: u64 = 176;
const TEXT_IN_HEADER: u64 = 24;
/// Places that look like a table's header and are looked at; there is one.
const MAX_CANDIDATES: usize = 4;
/// Bytes of a shared section that are searched for the table, which lies behind descriptions of types; a file with a hole in it
/// can claim any size.
const MAX_SEARCHED_BYTES: usize = 64 << 20;
/// MAX functions of a table. The largest programs have some hundred thousand.
const MAX_FUNCTIONS: u64 = 1 << 20;
/// `funcFlag_SPWRITE`.
const WRITES_SP: u8 = 2;

/// Layouts of a function's record: the magic number, and where the flags are.
const LAYOUTS: [(u32, u64); 2] = [(0xffff_fff0, 37), (0xffff_fff1, 41)];

/// Returns the functions that write the stack pointer, ascending and not overlapping. `None` if there is no table that can be read.
pub(crate) fn sp_writers(view: &ElfView<'_>) -> Option<Vec<Range<Svma>>> {
    candidates(view).find_map(|table| table.sp_writers(view))
}

/// A table, from its header to the end of its section.
struct Table<'a> {
    bytes: Bytes<'a>,
    svma: Svma,
    /// Where a function's record has its flags.
    flags_at: u64,
}

/// Places at which a header may be.
fn candidates<'a>(view: &'a ElfView<'a>) -> impl Iterator<Item = Table<'a>> {
    let min_instruction = match view.architecture() {
        Architecture::X86_64 => 1,
        Architecture::Aarch64 => 4,
    };
    let headers = LAYOUTS.map(|(magic, flags_at)| {
        let [a, b, c, d] = magic.to_le_bytes();
        ([a, b, c, d, 0, 0, min_instruction, 8], flags_at)
    });
    let own = OWN_SECTIONS.iter().filter_map(move |name| {
        let section = view.section_range(name)?;
        let bytes = bytes_of(view, &section)?;
        let (_, flags_at) = headers.iter().find(|(header, _)| bytes.0.starts_with(header))?;
        table(view, &section, 0, *flags_at)
    });
    let shared = view.section_range(SHARED_SECTION).into_iter();
    let shared = shared.flat_map(move |section| {
        let bytes = bytes_of(view, &section).map_or(&[][..], |bytes| bytes.0);
        let bytes = &bytes[..bytes.len().min(MAX_SEARCHED_BYTES)];
        let found = headers.into_iter().flat_map(move |(header, flags_at)| {
            let places: Vec<_> = memmem::find_iter(bytes, &header).take(MAX_CANDIDATES).collect();
            places.into_iter().map(move |at| (at as u64, flags_at))
        });
        found.filter_map(move |(at, flags_at)| table(view, &section, at, flags_at))
    });
    own.chain(shared)
}

fn bytes_of<'a>(view: &ElfView<'a>, section: &Range<FileOffset>) -> Option<Bytes<'a>> {
    let length = section.end.offset_from(section.start);
    view.bytes().at(section.start.get(), length)
}

/// The table at an offset in a section.
fn table<'a>(view: &ElfView<'a>, section: &Range<FileOffset>, at: u64, flags_at: u64) -> Option<Table<'a>> {
    let start = FileOffset::new(section.start.get().checked_add(at)?);
    Some(Table {
        bytes: bytes_of(view, &(start..section.end))?,
        svma: view.svma_of(start)?,
        flags_at,
    })
}

impl Table<'_> {
    /// As [`sp_writers`]; `None` also if starts do not ascend, or functions lie outside the code.
    fn sp_writers(&self, view: &ElfView<'_>) -> Option<Vec<Range<Svma>>> {
        let functions = self.bytes.u64(8)?;
        let table_at = self.bytes.u64(64)?;
        let table = self.bytes.at(table_at, self.bytes.len().checked_sub(table_at)?)?;
        if functions == 0 || functions > MAX_FUNCTIONS {
            return None;
        }
        let text = self.text(view, table.u32(8 * functions)?)?;
        let mut found = Vec::new();
        for function in 0..functions {
            let [start, record, end] = [0, 4, 8].map(|field| table.u32(8 * function + field));
            let (start, end) = (start?, end?);
            if start > end {
                return None;
            }
            let flags = table.u8(u64::from(record?) + self.flags_at)?;
            if flags & WRITES_SP != 0 {
                let at = |offset| text.wrapping_add(u64::from(offset));
                found.push(at(start)..at(end));
            }
        }
        Some(found)
    }

    /// Where the code starts that the table counts from, and which has `length` bytes in one executable segment.
    fn text(&self, view: &ElfView<'_>, length: u32) -> Option<Svma> {
        let in_module = || {
            let section = view.section_range(MODULE_SECTION)?;
            Some(view.svma_of(section.start)?.wrapping_add(TEXT_IN_MODULE))
        };
        let in_header = self.svma.wrapping_add(TEXT_IN_HEADER);
        let places = [Some(in_header), in_module()];
        let texts = places.into_iter().flatten().filter_map(|at| view.pointer(at));
        let mut texts = texts.filter(|text| {
            let holds = |range: Range<Svma>| {
                addr::contains(&range, *text) && range.end.offset_from(*text) >= u64::from(length)
            };
            let mut executable = view.segments().iter().filter(|segment| segment.executable);
            text.get() != 0 && executable.any(|segment| holds(segment.file_backed()))
        });
        texts.next()
    }
}
