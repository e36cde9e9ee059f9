//! Reads an ELF file from the memory of a process that has loaded it: for files that only the user of that
//! process may open.
//!
//! A FUSE mount without `allow_root` or `allow_other` denies its files to root, too; an AppImage mounts
//! itself that way. The loaded parts have what unwinding needs: headers, `.eh_frame`, the dynamic segment and
//! its symbols. Sections, and parts that are not loaded, such as `.symtab` and debug information, are absent.
//! Untrusted, as the file would be.

use std::io;

use object::LittleEndian;
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use unwind_tables::addr::Avma;

use super::maps::MapsEntry;
use super::process_memory::ProcessMemory;
use memleak_base::untrusted::Untrusted;

/// Maximum number of bytes copied. Larger libraries can be read only by a user who may open them.
const MAX_BYTES: u64 = 256 << 20;

/// Fields of the ELF header about sections: `e_shoff`; `e_shnum` and `e_shstrndx`.
const SECTIONS_AT: std::ops::Range<usize> = 0x28..0x30;
const SECTIONS: std::ops::Range<usize> = 0x3c..0x40;

/// Entries of the dynamic segment to which glibc's loader adds the address at which it has loaded the file.
const ADDRESSES: [elf::DynamicTag; 8] = [
    elf::DT_HASH,
    elf::DT_PLTGOT,
    elf::DT_STRTAB,
    elf::DT_SYMTAB,
    elf::DT_RELA,
    elf::DT_JMPREL,
    elf::DT_VERSYM,
    elf::DT_GNU_HASH,
];

/// Reads the file that `entry` maps out of the memory of a process with the mappings `all`.
///
/// # Errors
///
/// The file is too large, its first bytes are not mapped, or the memory cannot be read.
pub(super) fn read(memory: &ProcessMemory, all: &[MapsEntry], entry: &MapsEntry) -> io::Result<Vec<u8>> {
    let is_of_file = |other: &&MapsEntry| {
        (other.device, other.inode, &other.name) == (entry.device, entry.inode, &entry.name)
    };
    let mut parts: Vec<&MapsEntry> = Vec::new();
    for part in all.iter().filter(is_of_file).filter(|part| part.readable) {
        // A file that is loaded twice has each part twice.
        if parts.iter().all(|known| known.offset != part.offset) {
            parts.push(part);
        }
    }
    let length = |part: &MapsEntry| part.range.end.offset_from(part.range.start);
    let end = |part: &&MapsEntry| part.offset.get().saturating_add(length(part));
    let size = parts.iter().map(end).max().unwrap_or(0);
    if size > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let start = parts.iter().find(|part| part.offset.get() == 0);
    let start = start.ok_or(io::ErrorKind::NotFound)?.range.start;
    let place = |number: u64| usize::try_from(number).map_err(io::Error::other);
    let mut bytes = vec![0; place(size)?];
    for part in parts {
        let from = place(part.offset.get())?;
        let to = from + place(length(part))?;
        let into = bytes.get_mut(from..to).ok_or(io::ErrorKind::UnexpectedEof)?;
        memory.read_exact_at(into, part.range.start)?;
    }
    forget_sections(&mut bytes);
    unload(&mut bytes, start);
    Ok(bytes)
}

/// Clears the fields of the header about sections, which are not loaded.
fn forget_sections(bytes: &mut [u8]) {
    for place in [SECTIONS_AT, SECTIONS] {
        if let Some(field) = bytes.get_mut(place) {
            field.fill(0);
        }
    }
}

/// Restores the addresses in the dynamic segment of a file that is loaded at `start` to those in the file.
fn unload(bytes: &mut [u8], start: Avma) {
    let Some((at, length, bias)) = dynamic(bytes, start) else {
        return;
    };
    let Some(dynamic) = bytes.get_mut(at..at.saturating_add(length)) else {
        return;
    };
    for entry in dynamic.chunks_exact_mut(2 * size_of::<u64>()) {
        let (tag, value) = entry.split_at_mut(size_of::<u64>());
        let (Some(&tag), Some(value)) = (tag.first_chunk(), value.first_chunk_mut()) else {
            return;
        };
        let is_address = ADDRESSES.iter().any(|known| known.0.to_le_bytes() == tag);
        let address = u64::from_le_bytes(*value);
        // Not every loader adds the bias, and none does where the segment is not writable.
        if is_address && address >= bias {
            *value = (address - bias).to_le_bytes();
        }
    }
}

/// Offset and length of the dynamic segment, and the bias that was added to the file's addresses.
fn dynamic(bytes: &[u8], start: Avma) -> Option<(usize, usize, u64)> {
    let file = Untrusted::mapped(bytes);
    let header = FileHeader64::<LittleEndian>::parse(file).ok()?;
    let segments = header.program_headers(LittleEndian, file).ok()?;
    let of_kind = |kind| {
        segments
            .iter()
            .find(move |segment| segment.p_type(LittleEndian) == kind)
    };
    let first = of_kind(elf::PT_LOAD)?;
    let address = first
        .p_vaddr(LittleEndian)
        .wrapping_sub(first.p_offset(LittleEndian));
    let found = of_kind(elf::PT_DYNAMIC)?;
    let place = |number: u64| usize::try_from(number).ok();
    let at = place(found.p_offset(LittleEndian))?;
    let length = place(found.p_filesz(LittleEndian))?;
    Some((at, length, start.get().wrapping_sub(address)))
}
