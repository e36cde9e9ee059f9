//! Reads call frame information (`.eh_frame`, `.debug_frame`) into functions and their rows.
//!
//! `plain` reads nearly all FDEs, gimli the others. `translate` interprets rows; `build` resolves overlaps of
//! functions. Sections are untrusted: entries are found by their lengths, so a bad entry does not affect
//! others; a function with malformed instructions keeps the rows before the fault. Time is bounded by the
//! section's size: FDEs do not overlap in the section, and the instructions of CIEs, which gimli repeats for
//! each FDE, have a budget.

use std::collections::HashMap;
use std::ops::Range;

use gimli::{BaseAddresses, CommonInformationEntry, DebugFrame, EhFrame, EndianSlice, FrameDescriptionEntry};
use gimli::{Encoding, Format, LittleEndian, UnwindContext, UnwindSection};

use crate::addr::Svma;
use crate::architecture::Architecture;
use crate::bytes::Bytes;
use crate::elf::CfiSection;
use crate::error::ImageError;
use crate::image::MAX_ROWS;
use crate::packed::PackedRule;
use crate::plain::{PlainCie, PlainFde, PlainRow};
use crate::program::Programs;
use crate::ranges;
use crate::rule::Reason;
use crate::saves::{self, LongSaves, SavesRule};
use crate::table::{Row, RowRule};
use crate::translate::{self, RowContext, Slice};

/// Layout of a CFI section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `.eh_frame`: CIE references are relative to themselves, backwards; a length of 0 ends the section.
    EhFrame,
    /// `.debug_frame`: CIE references are relative to the start of the section.
    DebugFrame,
}

/// Code range of one FDE, and the indexes of its rows in [`Cfi::rows`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) range: Range<Svma>,
    /// Indexes of its rows; the first starts where the code starts.
    pub(crate) rows: Range<usize>,
}

/// Content of a CFI section.
#[derive(Clone, Debug)]
pub(crate) struct Cfi<R = PackedRule> {
    /// Functions in the order of the section.
    pub(crate) functions: Vec<Function>,
    /// Rows of all functions, ascending within each.
    pub(crate) rows: Vec<Row<R>>,
    /// Number of FDEs.
    pub(crate) fdes: u32,
    /// Number of entries that could not be read completely.
    pub(crate) malformed: u32,
    /// Number of FDEs whose code is outside of all executable segments.
    pub(crate) outside: u32,
}

impl<R> Default for Cfi<R> {
    fn default() -> Self {
        Self {
            functions: Vec::new(),
            rows: Vec::new(),
            fdes: 0,
            malformed: 0,
            outside: 0,
        }
    }
}

/// Conversion of rows of CFI to rules of a table.
pub(crate) trait Translate {
    /// Rule that a row is converted to.
    type Rule: RowRule;
    /// Rule for code whose CFI instructions are malformed.
    const MALFORMED: Self::Rule;

    /// Converts a row that gimli evaluated.
    fn translate<'a, S: UnwindSection<Slice<'a>>>(
        &mut self,
        section: &S,
        context: RowContext,
        row: &gimli::UnwindTableRow<usize>,
    ) -> Self::Rule;

    /// Converts a plain row; `None` if the entry must go through [`Self::translate`].
    fn translate_plain(&mut self, row: &PlainRow) -> Option<Self::Rule>;
}

impl Translate for Programs {
    type Rule = PackedRule;
    const MALFORMED: PackedRule = PackedRule::unsupported(Reason::Malformed);

    fn translate<'a, S: UnwindSection<Slice<'a>>>(
        &mut self,
        section: &S,
        context: RowContext,
        row: &gimli::UnwindTableRow<usize>,
    ) -> PackedRule {
        translate::translate(section, context, row, self)
    }

    fn translate_plain(&mut self, row: &PlainRow) -> Option<PackedRule> {
        translate::translate_plain(row, self)
    }
}

impl Translate for LongSaves {
    type Rule = SavesRule;
    const MALFORMED: SavesRule = SavesRule::GAP;

    fn translate<'a, S: UnwindSection<Slice<'a>>>(
        &mut self,
        section: &S,
        context: RowContext,
        row: &gimli::UnwindTableRow<usize>,
    ) -> SavesRule {
        saves::translate(section, context, row, self)
    }

    fn translate_plain(&mut self, row: &PlainRow) -> Option<SavesRule> {
        saves::translate_plain(row, self)
    }
}

/// Maximum number of CIE bytes processed per byte of the section: linkers share one CIE of 24 bytes among
/// FDEs of about 40, so 1 is usual.
const CIE_BUDGET_PER_BYTE: u64 = 8;
const CIE_BUDGET_FLOOR: u64 = 1 << 16;
/// Bytes of section per row, measured: 5.2 (libLLVM) to 6.5 (libstdc++).
const BYTES_PER_ROW: usize = 5;
const MAX_RESERVED_ROWS: usize = 1 << 20;

/// Reads a section. `code` is the merged ranges that can hold code: rows of other addresses are dropped.
///
/// # Errors
///
/// [`ImageError::TooManyRows`].
pub(crate) fn read<T: Translate>(
    section: &CfiSection<'_>,
    layout: Layout,
    architecture: Architecture,
    code: &[Range<Svma>],
    rules: &mut T,
) -> Result<Cfi<T::Rule>, ImageError> {
    let data = EndianSlice::new(&section.data, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(section.svma.get());
    let about = About {
        source: section,
        layout,
        architecture,
        code,
        bases: &bases,
    };
    match layout {
        Layout::EhFrame => {
            let mut section = EhFrame::from(data);
            section.set_vendor(architecture.vendor());
            Reader::new(section, about, rules).read()
        }
        Layout::DebugFrame => {
            let mut section = DebugFrame::from(data);
            section.set_vendor(architecture.vendor());
            Reader::new(section, about, rules).read()
        }
    }
}

type Cie<'a> = CommonInformationEntry<Slice<'a>>;
type Fde<'a> = FrameDescriptionEntry<Slice<'a>>;

/// Properties of a section besides its bytes.
struct About<'a> {
    source: &'a CfiSection<'a>,
    layout: Layout,
    architecture: Architecture,
    code: &'a [Range<Svma>],
    bases: &'a BaseAddresses,
}

struct Reader<'a, S, T: Translate> {
    section: S,
    rules: &'a mut T,
    bases: &'a BaseAddresses,
    bytes: Bytes<'a>,
    svma: Svma,
    /// True if a zero length ends the section, not only the part of it from one object file.
    zero_ends: bool,
    layout: Layout,
    architecture: Architecture,
    code: &'a [Range<Svma>],
    /// CIEs by offset; `None` for a malformed one.
    cies: HashMap<usize, Option<Cie<'a>>>,
    /// Offset of the last CIE, and its plain form if it has one: many consecutive FDEs share a CIE.
    plain_cie: Option<(usize, Option<PlainCie>)>,
    cie_budget: u64,
    context: UnwindContext<usize>,
    cfi: Cfi<T::Rule>,
}

impl<'a, S: UnwindSection<Slice<'a>>, T: Translate> Reader<'a, S, T> {
    fn new(section: S, about: About<'a>, rules: &'a mut T) -> Self {
        let About {
            source,
            layout,
            architecture,
            code,
            bases,
        } = about;
        let bytes = Bytes(&source.data);
        let rows = Vec::with_capacity((source.data.len() / BYTES_PER_ROW).min(MAX_RESERVED_ROWS));
        Self {
            section,
            rules,
            bases,
            bytes,
            svma: source.svma,
            zero_ends: !source.exact,
            layout,
            architecture,
            code,
            cies: HashMap::new(),
            plain_cie: None,
            cie_budget: bytes
                .len()
                .saturating_mul(CIE_BUDGET_PER_BYTE)
                .max(CIE_BUDGET_FLOOR),
            context: UnwindContext::new(),
            cfi: Cfi {
                rows,
                ..Cfi::default()
            },
        }
    }

    fn read(mut self) -> Result<Cfi<T::Rule>, ImageError> {
        let mut at = 0;
        while let Some(length) = self.bytes.u32(at) {
            let end = match length {
                0 if self.zero_ends => break,
                0 => Some(at + 4),
                u32::MAX => self
                    .bytes
                    .u64(at + 4)
                    .and_then(|length| (at + 12).checked_add(length)),
                length => Some(at + 4 + u64::from(length)),
            };
            let Some(end) = end.filter(|&end| end <= self.bytes.len()) else {
                self.cfi.malformed += 1;
                break;
            };
            if length != 0 {
                self.read_entry(at);
            }
            if self.cfi.rows.len() >= MAX_ROWS as usize {
                return Err(ImageError::TooManyRows(self.cfi.rows.len()));
            }
            at = end;
        }
        Ok(self.cfi)
    }

    fn read_entry(&mut self, at: u64) {
        if self.layout == Layout::EhFrame && self.read_plain(at).is_some() {
            return;
        }
        let Ok(at) = usize::try_from(at) else { return };
        let section = self.section.clone();
        let partial = match section.partial_fde_from_offset(self.bases, at.into()) {
            Ok(partial) => partial,
            // A CIE: it is read when an FDE refers to it.
            Err(gimli::Error::NotCiePointer(_)) => return,
            Err(_) => {
                self.cfi.malformed += 1;
                return;
            }
        };
        self.cfi.fdes += 1;
        let fde = partial.parse(|_, _, offset| self.cie(offset));
        match fde {
            Ok(fde) => self.read_fde(&fde),
            Err(_) => self.cfi.malformed += 1,
        }
    }

    /// Reads the entry at `at` if it is a plain FDE; else returns `None` and keeps nothing of it.
    fn read_plain(&mut self, at: u64) -> Option<()> {
        let back = self.bytes.u32(at + 4).filter(|&back| back != 0)?;
        let cie = usize::try_from((at + 4).checked_sub(back.into())?).ok()?;
        let cie = match self.plain_cie {
            Some((known, plain)) if known == cie => plain,
            _ => {
                let plain = self.read_plain_cie(cie);
                self.plain_cie = Some((cie, plain));
                plain
            }
        }?;
        let fde = cie.fde(self.bytes, self.svma, at)?;
        let segment = ranges::find(self.code, fde.start)?;
        let range = fde.start..fde.end.min(segment.end);
        let first_row = self.cfi.rows.len();
        if self.push_plain_rows(&cie, &fde, range.end).is_none() {
            self.cfi.rows.truncate(first_row);
            return None;
        }
        self.cfi.fdes += 1;
        let rows = first_row..self.cfi.rows.len();
        self.cfi.functions.push(Function { range, rows });
        Some(())
    }

    fn read_plain_cie(&mut self, offset: usize) -> Option<PlainCie> {
        let cie = self.cie(offset.into()).ok()?;
        let mut instructions = cie.instructions(&self.section, self.bases);
        PlainCie::of(
            &cie,
            self.architecture,
            std::iter::from_fn(|| instructions.next().transpose()),
        )
    }

    fn push_plain_rows(&mut self, cie: &PlainCie, fde: &PlainFde<'_>, limit: Svma) -> Option<()> {
        let (rows, rules) = (&mut self.cfi.rows, &mut *self.rules);
        cie.rows(fde, |start, end, row| {
            // Where a limit is exceeded, the general path decides what to keep.
            if start < end && start < limit {
                let rule = rules
                    .translate_plain(row)
                    .filter(|_| rows.len() < MAX_ROWS as usize)?;
                rows.push(Row { start, rule });
            }
            Some(())
        })
    }

    fn cie(&mut self, offset: S::Offset) -> gimli::Result<Cie<'a>> {
        let number = gimli::UnwindOffset::into(offset);
        if let Some(cie) = self.cies.get(&number) {
            return cie.clone().ok_or(gimli::Error::NotCieId(0));
        }
        self.spend(self.entry_length(number))?;
        let cie = self.section.cie_from_offset(self.bases, offset);
        let usable = cie.ok().filter(|cie| cie.address_size() == 8);
        self.cies.insert(number, usable.clone());
        usable.ok_or(gimli::Error::NotCieId(0))
    }

    /// Returns the length of the entry at `offset`, for the time budget.
    fn entry_length(&self, offset: usize) -> u64 {
        match self.bytes.u32(offset as u64) {
            Some(u32::MAX) | None => self.bytes.len(),
            Some(length) => u64::from(length).min(self.bytes.len()),
        }
    }

    fn spend(&mut self, bytes: u64) -> gimli::Result<()> {
        self.cie_budget = self
            .cie_budget
            .checked_sub(bytes)
            .ok_or(gimli::Error::TooManyIterations)?;
        Ok(())
    }

    fn read_fde(&mut self, fde: &Fde<'a>) {
        let (start, end) = (Svma::new(fde.initial_address()), Svma::new(fde.end_address()));
        if fde.len() == 0 || self.is_discarded(start) {
            return;
        }
        if end <= start {
            self.cfi.malformed += 1;
            return;
        }
        let Some(segment) = ranges::find(self.code, start) else {
            self.cfi.outside += 1;
            return;
        };
        let range = start..end.min(segment.end);
        let first_row = self.cfi.rows.len();
        if self.read_rows(fde, &range).is_err() {
            self.cfi.malformed += 1;
        }
        let rows = first_row..self.cfi.rows.len();
        self.cfi.functions.push(Function { range, rows });
    }

    /// Returns whether the linker discarded the function: in sections that are not loaded, it sets its
    /// address to 0.
    fn is_discarded(&self, start: Svma) -> bool {
        self.layout == Layout::DebugFrame && start == Svma::new(0)
    }

    /// Pushes the rows of a function. After malformed instructions, the rest of its code gets `MALFORMED`.
    fn read_rows(&mut self, fde: &Fde<'a>, range: &Range<Svma>) -> gimli::Result<()> {
        let mut next = range.start;
        let result = self.push_rows(fde, range, &mut next);
        if result.is_err() && next < range.end {
            let rule = T::MALFORMED;
            self.cfi.rows.push(Row { start: next, rule });
        }
        result
    }

    fn push_rows(&mut self, fde: &Fde<'a>, range: &Range<Svma>, next: &mut Svma) -> gimli::Result<()> {
        self.spend(fde.cie().entry_len() as u64)?;
        let context = row_context(fde.cie(), self.architecture);
        let mut rows = fde.rows(&self.section, self.bases, &mut self.context)?;
        while let Some(row) = rows.next_row()? {
            let (start, end) = (Svma::new(row.start_address()), Svma::new(row.end_address()));
            if start >= range.end {
                break;
            }
            *next = end;
            if self.cfi.rows.len() >= MAX_ROWS as usize {
                return Err(gimli::Error::TooManyIterations);
            }
            if start < end {
                let rule = self.rules.translate(&self.section, context, row);
                self.cfi.rows.push(Row { start, rule });
            }
        }
        Ok(())
    }
}

fn row_context(cie: &Cie<'_>, architecture: Architecture) -> RowContext {
    RowContext {
        return_address: cie.return_address_register(),
        signal_frame: cie.is_signal_trampoline(),
        encoding: Encoding {
            address_size: 8,
            format: Format::Dwarf32,
            version: cie.version().into(),
        },
        architecture,
    }
}
