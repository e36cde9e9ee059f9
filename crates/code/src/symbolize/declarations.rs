//! Declarations of variables, from DWARF: the entries of variables at given addresses.
//!
//! One pass over all units, since no index leads from a variable's address to its entry. It is only made for
//! variables that are shown. Entries in `.dwo` files are not read.

use std::collections::{HashMap, HashSet};

use gimli::{AttributeValue, DebuggingInformationEntry, Dwarf, Operation, Reader as _, Unit, UnitOffset};

use super::reader::Reader;
use super::variables::VariablePlace;

/// Maximum number of entries that are read: the largest browsers have half as many.
const MAX_ENTRIES: u64 = 1 << 28;
/// Maximum number of references from an entry to its declaration.
const MAX_REFERENCES: usize = 4;

/// Source file and line of a declaration.
pub type Declared = (String, u32);

/// Finds the declarations of the variables that begin at `places`.
pub(super) fn find(
    dwarf: &Dwarf<Reader>,
    places: &HashSet<VariablePlace>,
) -> HashMap<VariablePlace, Declared> {
    let mut found = HashMap::new();
    let mut left = MAX_ENTRIES;
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        let Ok(unit) = dwarf.unit(header) else {
            continue;
        };
        // A read error ends only its unit.
        _ = find_in(dwarf, &unit, places, &mut left, &mut found);
        if left == 0 || found.len() == places.len() {
            break;
        }
    }
    found
}

fn find_in(
    dwarf: &Dwarf<Reader>,
    unit: &Unit<Reader>,
    places: &HashSet<VariablePlace>,
    left: &mut u64,
    found: &mut HashMap<VariablePlace, Declared>,
) -> gimli::Result<()> {
    let mut entries = unit.entries_raw(None)?;
    while !entries.is_empty() && *left > 0 {
        *left -= 1;
        let offset = entries.next_offset();
        let Some(abbreviation) = entries.read_abbreviation()? else {
            continue;
        };
        if abbreviation.tag() != gimli::DW_TAG_variable {
            entries.skip_attributes(abbreviation.attributes())?;
            continue;
        }
        let mut place = None;
        for &attribute in abbreviation.attributes() {
            let attribute = entries.read_attribute(attribute)?;
            if attribute.name() == gimli::DW_AT_location {
                place = place_of(dwarf, unit, attribute.value());
            }
        }
        if let Some(place) = place.filter(|place| places.contains(place))
            && let Some(declared) = declaration(dwarf, unit, offset)
        {
            found.entry(place).or_insert(declared);
        }
    }
    Ok(())
}

/// Returns the place of a variable, if its location consists of nothing else.
fn place_of(
    dwarf: &Dwarf<Reader>,
    unit: &Unit<Reader>,
    location: AttributeValue<Reader>,
) -> Option<VariablePlace> {
    let AttributeValue::Exprloc(expression) = location else {
        return None;
    };
    let mut operations = expression.operations(unit.encoding());
    let (first, second) = (operations.next().ok()??, operations.next().ok()?);
    let constant = if let Operation::Address { address } = first {
        address
    } else if let Operation::UnsignedConstant { value } = first {
        value
    } else if let Operation::AddressIndex { index } | Operation::ConstantIndex { index } = first {
        dwarf.address(unit, index).ok()?
    } else {
        return None;
    };
    match second {
        None => Some(VariablePlace::Memory(constant)),
        Some(Operation::TLS) => Some(VariablePlace::ThreadLocal(constant)),
        Some(_) => None,
    }
}

/// File and line of an entry, or of the one that it completes.
fn declaration(dwarf: &Dwarf<Reader>, unit: &Unit<Reader>, at: UnitOffset<usize>) -> Option<Declared> {
    let mut entry = unit.entry(at).ok()?;
    for _ in 0..MAX_REFERENCES {
        if let Some(declared) = own_declaration(dwarf, unit, &entry) {
            return Some(declared);
        }
        let refers = |name| entry.attr_value(name);
        let next = refers(gimli::DW_AT_specification).or_else(|| refers(gimli::DW_AT_abstract_origin))?;
        let AttributeValue::UnitRef(next) = next else {
            return None;
        };
        entry = unit.entry(next).ok()?;
    }
    None
}

fn own_declaration(
    dwarf: &Dwarf<Reader>,
    unit: &Unit<Reader>,
    entry: &DebuggingInformationEntry<Reader>,
) -> Option<Declared> {
    let line = entry.attr_value(gimli::DW_AT_decl_line)?.udata_value()?;
    let AttributeValue::FileIndex(file) = entry.attr_value(gimli::DW_AT_decl_file)? else {
        return None;
    };
    let header = unit.line_program.as_ref()?.header();
    let file = header.file(file)?;
    let text = |value| {
        let text = dwarf.attr_string(unit, value).ok()?;
        Some(text.to_string_lossy().ok()?.into_owned())
    };
    let mut path = match &unit.comp_dir {
        Some(directory) => directory.to_string_lossy().ok()?.into_owned(),
        None => String::new(),
    };
    let directory = file.directory(header).filter(|_| file.directory_index() != 0);
    for part in [directory.and_then(text), text(file.path_name())]
        .into_iter()
        .flatten()
    {
        if part.starts_with('/') || path.is_empty() {
            path = part;
        } else {
            path.push('/');
            path.push_str(&part);
        }
    }
    Some((path, u32::try_from(line).ok()?))
}
