//! Addresses in debug information that are those of code in the file.
//!
//! Linkers keep the debug information of functions that they remove (`--gc-sections`, COMDAT groups), and put
//! 0, 1, -1 or -2 in place of the function's address; some add the offset in the removed code. A range from
//! there runs into unrelated code. So debug information that begins outside of all code is not used, nor is a
//! unit that begins there.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use gimli::{
    AttributeValue, Dwarf, DwoId, EntriesRaw, RangeListsOffset, RawRngListEntry, ReaderOffsetId, SectionId,
    UnitHeader,
};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{LittleEndian, Object, ObjectSection, ReadRef, SectionFlags, elf};

use super::elf::Elf;
use super::reader::Reader;

/// Maximum nesting of DWARF entries. The reader recurses once per level; compilers nest a level per scope and
/// inlined call, a few dozen.
const MAX_NESTING: isize = 1024;
/// Address of removed code in DWARF 6.
const REMOVED: u64 = u64::MAX;
/// Both ends of a removed range, as most linkers write it: it is empty then.
const EMPTY: u64 = 1;

/// The code of a file, and facts about its units.
#[derive(Debug, Default)]
pub(super) struct LiveCode {
    /// Ascending and apart, as SVMAs.
    ranges: Vec<Range<u64>>,
    units: OnceLock<Survey>,
}

/// Facts about all units that must be known before any of them is used.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Places of the units' first entries in their section, ascending.
    roots: Vec<Range<usize>>,
    /// Places of units of removed code in their section, ascending.
    removed: Vec<Range<usize>>,
    /// Places in `.debug_ranges` of the numbers of removed functions' ranges, ascending.
    empty: Vec<usize>,
    /// Parts in this file of units that are in other files, by the unit's ID, as far as they matter.
    parts_here: HashMap<u64, PartHere>,
}

/// A unit's part in the file with the code.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PartHere {
    /// Set if the unit is of removed code.
    is_removed: bool,
    /// Start of its lists of ranges in `.debug_ranges`, if they contain absolute addresses.
    lists: Option<usize>,
}

impl LiveCode {
    /// Finds the code of a file: its executable sections, or segments where it has no table of sections.
    pub(super) fn of<'a, R: ReadRef<'a>>(elf: &Elf<'a, R>) -> Arc<Self> {
        let mut ranges = sections(elf);
        if ranges.is_empty() {
            ranges = segments(elf);
        }
        Arc::new(Self::new(ranges))
    }

    fn new(mut ranges: Vec<Range<u64>>) -> Self {
        ranges.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match merged.last_mut().filter(|last| range.start <= last.end) {
                Some(last) => last.end = last.end.max(range.end),
                None => merged.push(range),
            }
        }
        Self {
            ranges: merged,
            units: OnceLock::new(),
        }
    }

    /// Sets the facts about the units. Before that, addresses in entries and in `.debug_ranges` are kept.
    pub(super) fn know(&self, units: Survey) {
        _ = self.units.set(units);
    }

    /// The part in this file of a unit that is in another file.
    pub(super) fn part_here(&self, id: DwoId) -> PartHere {
        let units = self.units.get();
        let known = units.and_then(|units| units.parts_here.get(&id.0));
        known.copied().unwrap_or_default()
    }

    /// Returns the same code for a unit in another file, with the facts `units` about that file.
    pub(super) fn with(&self, units: Survey) -> Arc<Self> {
        Arc::new(Self {
            ranges: self.ranges.clone(),
            units: OnceLock::from(units),
        })
    }

    /// True if code is at `address`, or ends there.
    fn has(&self, address: u64) -> bool {
        let after = self.ranges.partition_point(|range| range.start <= address);
        let before = after.checked_sub(1).and_then(|at| self.ranges.get(at));
        before.is_some_and(|range| address <= range.end)
    }

    /// The address to use for the number `address` at `offset` of a section.
    pub(super) fn address(&self, section: SectionId, offset: usize, address: u64) -> u64 {
        match (section, self.units.get()) {
            (SectionId::DebugInfo, Some(units)) => units.in_entries(offset, address, || self.has(address)),
            (SectionId::DebugRanges, Some(units)) if units.empty.binary_search(&offset).is_ok() => EMPTY,
            (SectionId::DebugAddr | SectionId::DebugLine | SectionId::DebugRngLists, _)
                if !self.has(address) =>
            {
                REMOVED
            }
            _ => address,
        }
    }
}

impl PartHere {
    pub(super) fn is_removed(self) -> bool {
        self.is_removed
    }

    /// True if the ranges of functions in the unit must be checked.
    pub(super) fn has_lists(self) -> bool {
        self.lists.is_some()
    }
}

impl Survey {
    /// Looks at all units of a file.
    ///
    /// # Errors
    ///
    /// Entries are nested so deep that reading them could overflow the stack, or a unit's header cannot be
    /// read.
    pub(super) fn of(dwarf: &Dwarf<Reader>, code: &LiveCode) -> Result<Self, gimli::Error> {
        Self::of_units(dwarf, code, None)
    }

    /// Looks at the units of a file with split units, where `part_here` is in the file with the code.
    ///
    /// # Errors
    ///
    /// The errors of [`Survey::of`].
    pub(super) fn of_split(
        dwarf: &Dwarf<Reader>,
        code: &LiveCode,
        part_here: PartHere,
    ) -> Result<Self, gimli::Error> {
        Self::of_units(dwarf, code, Some(part_here))
    }

    fn of_units(
        dwarf: &Dwarf<Reader>,
        code: &LiveCode,
        part_here: Option<PartHere>,
    ) -> Result<Self, gimli::Error> {
        let mut survey = Self::default();
        let mut headers = dwarf.units();
        while let Some(header) = headers.next()? {
            // Lookups skip units that cannot be read, too.
            let Ok(abbreviations) = dwarf.abbreviations(&header) else {
                continue;
            };
            let Ok(mut entries) = header.entries_raw(&abbreviations, None) else {
                continue;
            };
            let root = Root::read(dwarf, &header, &mut entries).unwrap_or_default();
            let part_here = part_here.unwrap_or_else(|| survey.add(&header, &root, code));
            let lists = part_here.lists.filter(|_| header.version() < 5);
            let mut lists = lists.map(|at| Lists {
                dwarf,
                code,
                at,
                encoding: header.encoding(),
                empty: &mut survey.empty,
            });
            look_through(&mut entries, lists.as_mut())?;
        }
        survey.empty.sort_unstable();
        survey.empty.dedup();
        Ok(survey)
    }

    /// Adds the facts in the first entry of a unit.
    fn add(&mut self, header: &UnitHeader<Reader>, root: &Root, code: &LiveCode) -> PartHere {
        // A unit's ranges are relative to its address, which is 0 if they contain absolute addresses.
        let is_removed = !root.has_ranges && root.address.is_some_and(|address| !code.has(address));
        let is_absolute = root.has_ranges && matches!(root.address, None | Some(0));
        let part_here = PartHere {
            is_removed,
            lists: is_absolute.then_some(root.lists),
        };
        if let Some(id) = root.dwo.filter(|_| is_removed || is_absolute) {
            self.parts_here.insert(id, part_here);
        }
        if let Some(start) = header.debug_info_offset() {
            self.roots.push(start.0..start.0.saturating_add(root.end));
            let end = start.0.saturating_add(header.length_including_self());
            self.removed.extend(is_removed.then_some(start.0..end));
        }
        part_here
    }

    /// The address to use for `address` at `offset` in an entry.
    fn in_entries(&self, offset: usize, address: u64, is_code: impl Fn() -> bool) -> u64 {
        let is_in = |ranges: &[Range<usize>]| {
            let after = ranges.partition_point(|range| range.start <= offset);
            let before = after.checked_sub(1).and_then(|at| ranges.get(at));
            before.is_some_and(|range| offset < range.end)
        };
        // A unit's own address is kept: its ranges may be relative to it, and nothing is named by it alone.
        let is_used = is_code() && !is_in(&self.removed) || is_in(&self.roots);
        if is_used { address } else { REMOVED }
    }
}

/// The first entry of a unit.
#[derive(Debug, Default)]
struct Root {
    /// End of the entry, from the unit's start.
    end: usize,
    address: Option<u64>,
    has_ranges: bool,
    /// Start of the unit's lists in `.debug_ranges`, if the rest of the unit is in another file.
    lists: usize,
    /// Set if the rest of the unit is in another file.
    dwo: Option<u64>,
}

impl Root {
    fn read(
        dwarf: &Dwarf<Reader>,
        header: &UnitHeader<Reader>,
        entries: &mut EntriesRaw<'_, Reader>,
    ) -> gimli::Result<Self> {
        let mut root = Self::default();
        let Some(abbreviation) = entries.read_abbreviation()? else {
            return Ok(root);
        };
        for &attribute in abbreviation.attributes() {
            let attribute = entries.read_attribute(attribute)?;
            match (attribute.name(), attribute.value()) {
                (gimli::DW_AT_low_pc, AttributeValue::Addr(address)) => root.address = Some(address),
                (gimli::DW_AT_low_pc, AttributeValue::DebugAddrIndex(_)) => {
                    root.address = Some(dwarf.unit(header.clone())?.low_pc);
                }
                (gimli::DW_AT_ranges, _) => root.has_ranges = true,
                (gimli::DW_AT_GNU_dwo_id, value) => root.dwo = value.udata_value(),
                // The ID is in the unit's header.
                (gimli::DW_AT_dwo_name, _) => root.dwo = dwarf.unit(header.clone())?.dwo_id.map(|id| id.0),
                (gimli::DW_AT_GNU_ranges_base, AttributeValue::DebugRngListsBase(base)) => {
                    root.lists = base.0
                }
                _ => {}
            }
        }
        root.end = entries.next_offset().0;
        Ok(root)
    }
}

/// Reads all entries of a unit, and the ranges of its functions if there are `lists` to check. Stops at an
/// entry that cannot be read.
fn look_through(
    entries: &mut EntriesRaw<'_, Reader>,
    mut lists: Option<&mut Lists<'_>>,
) -> gimli::Result<()> {
    while !entries.is_empty() {
        if entries.next_depth() > MAX_NESTING {
            return Err(gimli::Error::UnexpectedEof(ReaderOffsetId(0)));
        }
        let Ok(abbreviation) = entries.read_abbreviation() else {
            break;
        };
        let Some(abbreviation) = abbreviation else {
            continue;
        };
        let is_read = match &mut lists {
            Some(lists) if abbreviation.tag() == gimli::DW_TAG_subprogram => {
                lists.read_function(entries, abbreviation)
            }
            _ => entries.skip_attributes(abbreviation.attributes()),
        };
        if is_read.is_err() {
            break;
        }
    }
    Ok(())
}

/// The lists in `.debug_ranges` of a unit whose lists contain absolute addresses.
struct Lists<'a> {
    dwarf: &'a Dwarf<Reader>,
    code: &'a LiveCode,
    /// Offset of the unit's lists, to which the offsets in its entries are relative.
    at: usize,
    encoding: gimli::Encoding,
    empty: &'a mut Vec<usize>,
}

impl Lists<'_> {
    fn read_function(
        &mut self,
        entries: &mut EntriesRaw<'_, Reader>,
        abbreviation: &gimli::Abbreviation,
    ) -> gimli::Result<()> {
        for &attribute in abbreviation.attributes() {
            let attribute = entries.read_attribute(attribute)?;
            if attribute.name() == gimli::DW_AT_ranges
                && let AttributeValue::RangeListsRef(list) = attribute.value()
            {
                // A list that cannot be read has no ranges for other readers either.
                _ = self.read(self.at.saturating_add(list.0));
            }
        }
        Ok(())
    }

    /// Notes the ranges that begin outside of all code.
    fn read(&mut self, list: usize) -> gimli::Result<()> {
        let mut ranges = self
            .dwarf
            .ranges
            .raw_ranges(RangeListsOffset(list), self.encoding)?;
        let number = usize::from(self.encoding.address_size);
        let (mut at, mut base) = (list, 0_u64);
        while let Some(range) = ranges.next()? {
            if let RawRngListEntry::BaseAddress { addr } = range {
                base = addr;
            } else if let RawRngListEntry::AddressOrOffsetPair { begin, .. } = range
                && !self.code.has(base.wrapping_add(begin))
            {
                self.empty.extend([at, at + number]);
            }
            at += 2 * number;
        }
        Ok(())
    }
}

/// Address ranges of executable sections.
fn sections<'a, R: ReadRef<'a>>(elf: &Elf<'a, R>) -> Vec<Range<u64>> {
    let is_code = |flags| matches!(flags, SectionFlags::Elf { sh_flags, .. } if sh_flags.contains(elf::SHF_ALLOC | elf::SHF_EXECINSTR));
    let sections = elf.sections().filter(|section| is_code(section.flags()));
    let ranges = sections.map(|section| section.address()..section.address().saturating_add(section.size()));
    ranges.filter(|range| !range.is_empty()).collect()
}

/// Address ranges of executable segments, without the file's headers, where no function is.
fn segments<'a, R: ReadRef<'a>>(elf: &Elf<'a, R>) -> Vec<Range<u64>> {
    let header = elf.elf_header();
    let headers = u64::from(header.e_phnum(LittleEndian)) * u64::from(header.e_phentsize(LittleEndian));
    let headers_end = header.e_phoff(LittleEndian).saturating_add(headers);
    let segments = elf.elf_program_headers().iter();
    let code = segments.filter(|segment| {
        segment.p_type(LittleEndian) == elf::PT_LOAD && segment.p_flags(LittleEndian).contains(elf::PF_X)
    });
    let ranges = code.map(|segment| {
        let (start, offset) = (segment.p_vaddr(LittleEndian), segment.p_offset(LittleEndian));
        let end = start.saturating_add(segment.p_memsz(LittleEndian));
        start.saturating_add(headers_end.saturating_sub(offset))..end
    });
    ranges.filter(|range| !range.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges that touch are joined; addresses of code are those from the first byte of a range up to its
    /// end, inclusive.
    #[test]
    fn where_code_is() {
        let code = LiveCode::new(vec![
            0x2000..0x3000,
            0x1000..0x1800,
            0x1800..0x1900,
            0x1100..0x1200,
        ]);
        assert_eq!(code.ranges, [0x1000..0x1900, 0x2000..0x3000]);
        for (address, expected) in [
            (0, false),
            (1, false),
            (0xfff, false),
            (0x1000, true),
            (0x1900, true),
            (0x1901, false),
            (0x2fff, true),
            (u64::MAX - 1, false),
            (u64::MAX, false),
        ] {
            assert_eq!(code.has(address), expected, "{address:#x}");
        }
    }

    /// Each section has its own mark for removed code, and its own numbers that are no addresses of code.
    #[test]
    fn addresses_by_section() {
        let code = LiveCode::new(vec![0x1000..0x1800, 0x1800..0x2000]);
        let entries = |offset, address| code.address(SectionId::DebugInfo, offset, address);
        assert_eq!(entries(0x50, 0), 0, "nothing is known of units");
        code.know(Survey {
            roots: vec![0..0x40, 0x100..0x140],
            removed: vec![0x100..0x200, 0x300..0x400],
            empty: vec![0x30, 0x38],
            parts_here: HashMap::new(),
        });
        for (offset, address, expected) in [
            (0x20, 0, 0),
            (0x50, 0, REMOVED),
            (0x50, 0x1000, 0x1000),
            (0x120, 0, 0),
            (0x150, 0x1000, REMOVED),
            (0x250, 0x1000, 0x1000),
        ] {
            assert_eq!(entries(offset, address), expected, "{offset:#x}: {address:#x}");
        }
        for (section, offset, address, expected) in [
            (SectionId::DebugRanges, 0x20, 0, 0),
            (SectionId::DebugRanges, 0x30, 0, EMPTY),
            (SectionId::DebugRanges, 0x38, 0x1234, EMPTY),
            (SectionId::DebugLine, 0, 0, REMOVED),
            (SectionId::DebugLine, 0, 0x1234, 0x1234),
            (SectionId::DebugAddr, 0, 0x3000, REMOVED),
            (SectionId::DebugRngLists, 0, u64::MAX - 1, REMOVED),
            (SectionId::DebugAranges, 0, 0, 0),
        ] {
            assert_eq!(
                code.address(section, offset, address),
                expected,
                "{section:?} {offset:#x}"
            );
        }
    }
}
