//! Limits for debug information whose parsed form can be far larger than the file.
//!
//! The reader keeps the abbreviations and the file lists of all units, and, of units in which an address was
//! looked up, the line rows. Units can share these, at the cost of a few bytes each, but the reader keeps a
//! copy per unit. So their sizes are measured before, and tables that overlap others in their section are not
//! read. Names come from symbols then.

use std::collections::{BTreeMap, BTreeSet};

use gimli::{AttributeValue, DebugAbbrevOffset, Dwarf, Format, Reader as _, Section as _, UnitHeader};

use super::elf::malformed;
use super::reader::Reader;
use leak_report::model::Gap;

/// Maximum number of units of one file; the largest browsers have some fifty thousand.
const MAX_UNITS: usize = 1 << 19;
/// Maximum size of abbreviations in bytes. Each takes at least five, and a hundred when parsed.
const MAX_ABBREVIATIONS: usize = 16 << 20;
/// Maximum size of one unit's line rows in bytes. Each row takes thirty when parsed; the largest units have a
/// few megabytes.
const MAX_ROWS: u64 = 32 << 20;
/// Maximum size of one unit's file list in bytes. Each entry takes at least three, and a hundred when parsed.
const MAX_FILES: u64 = 4 << 20;
/// Maximum size of all units' file lists in bytes.
const MAX_FILES_OF_ALL: u64 = 64 << 20;

/// Checks the number of units, and that their abbreviation tables do not overlap and are not too large. To be
/// called before any is read.
///
/// # Errors
///
/// [`Gap::TooLarge`]; [`Gap::Malformed`] if tables overlap or a unit's header cannot be read.
pub(super) fn check_units(dwarf: &Dwarf<Reader>) -> Result<(), Gap> {
    let section = dwarf.debug_abbrev.reader();
    if section.len() > MAX_ABBREVIATIONS {
        return Err(Gap::TooLarge);
    }
    let (mut units, mut offsets) = (0, BTreeSet::new());
    let mut headers = dwarf.units();
    while let Some(header) = headers.next().map_err(malformed)? {
        units += 1;
        if units > MAX_UNITS {
            return Err(Gap::TooLarge);
        }
        offsets.insert(header.debug_abbrev_offset().0);
    }
    let mut free_from = 0;
    for offset in offsets {
        if offset < free_from {
            return Err(Gap::Malformed);
        }
        free_from = offset + abbreviations_length(section, DebugAbbrevOffset(offset));
    }
    Ok(())
}

/// Length of an abbreviation table in bytes, up to where it is damaged.
fn abbreviations_length(section: &Reader, offset: DebugAbbrevOffset) -> usize {
    let mut table = section.clone();
    if table.skip(offset.0).is_err() {
        return 0;
    }
    let whole = table.len();
    let mut skip = || -> gimli::Result<()> {
        while table.read_uleb128()? != 0 {
            table.read_uleb128()?;
            table.read_u8()?;
            loop {
                let (name, form) = (table.read_uleb128()?, table.read_uleb128()?);
                if form == u64::from(gimli::DW_FORM_implicit_const.0) {
                    table.read_sleb128()?;
                }
                if (name, form) == (0, 0) {
                    break;
                }
            }
        }
        Ok(())
    };
    // The reader stops at the damage, too.
    _ = skip();
    whole - table.len()
}

/// Checks that line rows do not overlap, and that neither they nor file lists are too large. To be called
/// before any is read, and after shared abbreviations have been.
///
/// # Errors
///
/// [`Gap::TooLarge`]; [`Gap::Malformed`] if rows overlap or a unit's header cannot be read.
pub(super) fn check_lines(dwarf: &Dwarf<Reader>) -> Result<(), Gap> {
    let section = dwarf.debug_line.reader();
    let (mut known, mut files_of_all, mut rows_of_all) = (BTreeMap::new(), 0, 0);
    let mut headers = dwarf.units();
    while let Some(header) = headers.next().map_err(malformed)? {
        let Some(Lines { offset, has_code }) = lines_of(dwarf, &header) else {
            continue;
        };
        let Some((rows, files)) = lengths(section, offset) else {
            continue;
        };
        known.insert(offset as u64, rows);
        files_of_all += files;
        // Rows that are shared with units without code, as by dwz, are only read for the unit with code.
        rows_of_all += if has_code { rows } else { 0 };
        if rows > MAX_ROWS || files > MAX_FILES || files_of_all > MAX_FILES_OF_ALL {
            return Err(Gap::TooLarge);
        }
    }
    let ends = known.iter().map(|(&offset, &rows)| offset.saturating_add(rows));
    let are_apart = ends.zip(known.keys().skip(1)).all(|(end, &next)| end <= next);
    match are_apart && rows_of_all <= 2 * section.len() as u64 {
        true => Ok(()),
        false => Err(Gap::Malformed),
    }
}

/// Position of a unit's line rows.
struct Lines {
    offset: usize,
    has_code: bool,
}

fn lines_of(dwarf: &Dwarf<Reader>, unit: &UnitHeader<Reader>) -> Option<Lines> {
    let abbreviations = dwarf.abbreviations(unit).ok()?;
    let mut entries = unit.entries_raw(&abbreviations, None).ok()?;
    let abbreviation = entries.read_abbreviation().ok()??;
    let (mut found, mut has_code) = (None, false);
    for &attribute in abbreviation.attributes() {
        let attribute = entries.read_attribute(attribute).ok()?;
        match (attribute.name(), attribute.value()) {
            (gimli::DW_AT_stmt_list, AttributeValue::DebugLineRef(offset)) => found = Some(offset.0),
            (gimli::DW_AT_low_pc | gimli::DW_AT_ranges, _) => has_code = true,
            _ => {}
        }
    }
    found.map(|offset| Lines { offset, has_code })
}

/// Sizes in bytes of a unit's line table, and of the file list in its header.
fn lengths(section: &Reader, offset: usize) -> Option<(u64, u64)> {
    let mut lines = section.clone();
    lines.skip(offset).ok()?;
    let (length, format) = lines.read_initial_length().ok()?;
    let version = lines.read_u16().ok()?;
    if version >= 5 {
        // Skips the sizes of addresses and of segment selectors.
        lines.skip(2).ok()?;
    }
    let files = match format {
        Format::Dwarf32 => u64::from(lines.read_u32().ok()?),
        Format::Dwarf64 => lines.read_u64().ok()?,
    };
    Some((length as u64, files.min(length as u64)))
}
