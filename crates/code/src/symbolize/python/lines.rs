//! Tables of lines of code objects, in each of their three forms (CPython's `Objects/lnotab_notes.txt` and
//! `Objects/locations.md`, PEP 626).
//!
//! A table lists pieces of bytecode in ascending order, each with the difference from the line of the piece
//! before. Tables are untrusted: each lookup reads one from its start, once, and finds no line if the table
//! has none.

use memleak_process::python::LineFormat;

/// Maximum size of a table in bytes. A function of ten thousand lines has some 200 KiB.
pub(crate) const MAX_TABLE: usize = 1 << 20;

/// Lines of a code object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineTable {
    format: LineFormat,
    /// `co_firstlineno`, from which differences count.
    first_line: i32,
    table: Box<[u8]>,
}

/// A piece of bytecode, and its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    /// Length in bytes.
    length: u32,
    /// Difference from the line of the last piece that had one; `None` if it has no line.
    difference: Option<i32>,
}

/// Reads the first piece of a table; returns the rest too. `None` if there is no whole one.
type ReadPiece = fn(&[u8]) -> Option<(Piece, &[u8])>;

impl LineTable {
    /// Makes a table; `None` if it is too large.
    pub fn new(format: LineFormat, first_line: i32, table: &[u8]) -> Option<Self> {
        (table.len() <= MAX_TABLE).then(|| Self {
            format,
            first_line,
            table: table.into(),
        })
    }

    /// Line of the instruction that begins `instruction` bytes into the bytecode; `None` if it has none.
    pub fn line(&self, instruction: u32) -> Option<u32> {
        let line = match self.format {
            LineFormat::Starts => self.line_by_starts(instruction),
            LineFormat::Ranges => self.line_by_pieces(instruction, range),
            LineFormat::Locations => self.line_by_pieces(instruction, location),
        };
        // Instructions before a module's first line have line 0.
        line.and_then(|line| u32::try_from(line).ok())
            .filter(|&line| line > 0)
    }

    /// Reads pairs of a number of bytes and a difference of lines (-128 to 127). A line begins that number of
    /// bytes behind the start of the last one. The last line has no end.
    fn line_by_starts(&self, instruction: u32) -> Option<i32> {
        let (mut line, mut at) = (self.first_line, 0_u32);
        let (pairs, _) = self.table.as_chunks::<2>();
        for &[bytes, difference] in pairs {
            at = at.checked_add(bytes.into())?;
            if at > instruction {
                break;
            }
            line = line.checked_add(difference.cast_signed().into())?;
        }
        Some(line)
    }

    fn line_by_pieces(&self, instruction: u32, piece: ReadPiece) -> Option<i32> {
        let (mut line, mut end) = (self.first_line, 0_u32);
        let mut table = &self.table[..];
        while !table.is_empty() {
            let (Piece { length, difference }, rest) = piece(table)?;
            table = rest;
            line = line.checked_add(difference.unwrap_or(0))?;
            end = end.checked_add(length)?;
            if instruction < end {
                return difference.map(|_| line);
            }
        }
        None
    }
}

/// Reads a pair of a number of bytes and a difference of lines; -128 means no line.
fn range(table: &[u8]) -> Option<(Piece, &[u8])> {
    const NO_LINE: i8 = -128;
    let (&[length, difference], rest) = table.split_first_chunk()?;
    let difference = difference.cast_signed();
    let piece = Piece {
        length: length.into(),
        difference: (difference != NO_LINE).then_some(difference.into()),
    };
    Some((piece, rest))
}

/// Reads an entry. Only its first byte has bit 7 set; it has the kind of the entry, and a number of
/// instructions of two bytes.
fn location(table: &[u8]) -> Option<(Piece, &[u8])> {
    const START: u8 = 0x80;
    let (&start, rest) = table.split_first()?;
    if start & START == 0 {
        return None;
    }
    let end = rest
        .iter()
        .position(|byte| byte & START != 0)
        .unwrap_or(rest.len());
    let (entry, rest) = rest.split_at(end);
    let difference = match start >> 3 & 0xf {
        // Columns only, for a piece of the same line.
        0..=9 => Some(0),
        // Columns, in one of the next lines.
        kind @ 10..=12 => Some(i32::from(kind) - 10),
        // The line alone; the line, the last line, and columns.
        13 | 14 => Some(signed(entry)?),
        _ => None,
    };
    let length = 2 * (u32::from(start & 7) + 1);
    Some((Piece { length, difference }, rest))
}

/// Reads a number in pieces of six bits, the lowest first; bit 6 says that another piece follows. The
/// number's lowest bit is its sign.
fn signed(bytes: &[u8]) -> Option<i32> {
    const MORE: u8 = 0x40;
    let mut value = 0_u32;
    for (shift, &byte) in (0..u32::BITS).step_by(6).zip(bytes) {
        value |= u32::from(byte & 0x3f).checked_shl(shift)?;
        if byte & MORE == 0 {
            let magnitude = (value >> 1).cast_signed();
            return Some(if value & 1 == 0 { magnitude } else { -magnitude });
        }
    }
    None
}
