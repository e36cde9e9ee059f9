//! Go's own table of functions (`pclntab`), which its runtime uses to walk stacks. It remains in stripped
//! programs.
//!
//! Two facts are read from it: which functions write the stack pointer other than by steps of a known size
//! (`SPWRITE`), and which ones the runtime takes for the outermost of a stack (`TOPFRAME`). The runtime ends
//! its own walks at both. Format: `pcHeader` and `functab` in Go's `runtime/symtab.go`, `_func` in
//! `runtime/runtime2.go`, as of Go 1.18 and 1.20; 1.27 still has the latter. Older tables do not have these
//! flags, or have absolute addresses.

use std::ops::Range;

use memchr::memmem;

use crate::addr::{self, FileOffset, Svma};
use crate::architecture::Architecture;
use crate::bytes::Bytes;
use crate::elf::ElfView;

/// Sections that contain only the table: without relocations (always since Go 1.26), and with them, as Go's
/// linker names them.
const OWN_SECTIONS: [&[u8]; 2] = [b".gopclntab", b".data.rel.ro.gopclntab"];
/// Section into which other linkers put the table with relocations.
const SHARED_SECTION: &[u8] = b".data.rel.ro";
/// Section that begins with the module's description, since Go 1.26.
const MODULE_SECTION: &[u8] = b".go.module";
/// Offset of the text's start in the module's description (`moduledata.text`), and in the header of older
/// tables.
const TEXT_IN_MODULE: u64 = 176;
const TEXT_IN_HEADER: u64 = 24;
/// Offset of the header's field for the start of the functions' names, and of the field in a function's
/// record for the offset of its name.
const NAMES_IN_HEADER: u64 = 32;
const NAME_IN_RECORD: u64 = 4;
/// Maximum number of places that look like a table's header and are read; normally there is one.
const MAX_CANDIDATES: usize = 4;
/// Maximum number of bytes of a shared section that are searched for the table, which comes after the
/// descriptions of types; a file with a hole in it can claim any size.
const MAX_SEARCHED_BYTES: usize = 64 << 20;
/// Maximum number of functions of a table. The largest programs have some hundred thousand.
const MAX_FUNCTIONS: u64 = 1 << 20;
/// `funcFlag_TOPFRAME`.
const IS_TOP_FRAME: u8 = 1;
/// `funcFlag_SPWRITE`.
const WRITES_SP: u8 = 2;
/// Function that the first function of each goroutine returns to. It has no caller: the runtime puts its
/// address on the stack.
const GOEXIT: &[u8] = b"runtime.goexit";
/// Function that begins the process. In a program with C, it has callers: C's `main` and `_start`.
const RT0_GO: &[u8] = b"runtime.rt0_go";
/// Function through which C calls Go; it is in each program with C.
const CROSSCALL2: &[u8] = b"crosscall2";

/// Layouts of a function's record: the magic number of the table, and the offset of the flags.
const LAYOUTS: [(u32, u64); 2] = [(0xffff_fff0, 37), (0xffff_fff1, 41)];

/// Functions at which the runtime ends its walks: ascending and not overlapping.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    /// Functions that write the stack pointer.
    pub(crate) sp_writers: Vec<Range<Svma>>,
    /// Functions without a caller. Go's runtime marks two more functions in this way, which are not included,
    /// since they have a caller: `sigtramp`, above which is the code that a signal interrupted, and `mstart`,
    /// which is called by C's first function of a thread or by `clone`.
    pub(crate) outermost: Vec<Range<Svma>>,
}

/// Reads the table of a file. `None` if there is no table that can be read.
pub(crate) fn ends(view: &ElfView<'_>) -> Option<Ends> {
    candidates(view).find_map(|table| table.ends(view))
}

/// A table, from its header to the end of its section.
struct Table<'a> {
    bytes: Bytes<'a>,
    svma: Svma,
    /// Offset of the flags in a function's record.
    flags_at: u64,
}

/// Tables at the places where a header may be.
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
    /// Reads the ends from the table; `None` also if starts do not ascend, or functions lie outside the code.
    fn ends(&self, view: &ElfView<'_>) -> Option<Ends> {
        let functions = self.bytes.u64(8)?;
        let table = self.behind(self.bytes.u64(64)?)?;
        if functions == 0 || functions > MAX_FUNCTIONS {
            return None;
        }
        let text = self.text(view, table.u32(8 * functions)?)?;
        let names = self.bytes.u64(NAMES_IN_HEADER).and_then(|at| self.behind(at));
        let names = names.unwrap_or(Bytes(&[]));
        let (mut ends, mut first, mut has_c) = (Ends::default(), None, false);
        for function in 0..functions {
            let [start, record, end] = [0, 4, 8].map(|field| table.u32(8 * function + field));
            let (start, record, end) = (start?, u64::from(record?), end?);
            if start > end {
                return None;
            }
            let at = |offset| text.wrapping_add(u64::from(offset));
            let range = at(start)..at(end);
            let flags = table.u8(record + self.flags_at)?;
            let has_name = |name| {
                table
                    .u32(record + NAME_IN_RECORD)
                    .is_some_and(|at| is_at(names, at, name))
            };
            has_c = has_c || has_name(CROSSCALL2);
            if flags & WRITES_SP != 0 {
                ends.sp_writers.push(range.clone());
            }
            if flags & IS_TOP_FRAME != 0 && has_name(GOEXIT) {
                ends.outermost.push(range);
            } else if flags & IS_TOP_FRAME != 0 && has_name(RT0_GO) {
                first = Some(range);
            }
        }
        ends.outermost.extend(first.filter(|_| !has_c));
        ends.outermost.sort_by_key(|range| range.start);
        Some(ends)
    }

    /// The part of the table from an offset on.
    fn behind(&self, offset: u64) -> Option<Bytes<'_>> {
        self.bytes.at(offset, self.bytes.len().checked_sub(offset)?)
    }

    /// Start of the code, from which the table counts; `length` bytes from there must be in one executable
    /// segment.
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

/// Returns true if the string at an offset is exactly `name`.
fn is_at(names: Bytes<'_>, offset: u32, name: &[u8]) -> bool {
    let length = name.len() as u64;
    let found = names.at(offset.into(), length + 1);
    found.is_some_and(|found| found.0.strip_prefix(name) == Some(&[0]))
}
