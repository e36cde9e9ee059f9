//! `.gnu_debugdata`: a symbol table that distributions leave in stripped files, as an ELF file compressed by xz.
//! It names the functions that other objects do not see; it has no lines.

use std::io::{self, Read};

use lzma_rust2::XzReader;
use object::{Object, ObjectSection};

/// The most bytes that are taken. Tables of the largest libraries have a tenth of it.
const MAX_BYTES: u64 = 256 << 20;
/// The most memory that the decoder may take, in KiB. The strongest settings of xz take 65 MiB.
const MAX_DECODER: u32 = 128 << 10;

/// The ELF file with the table, if `elf` has one.
///
/// # Errors
///
/// It is damaged, or too large.
pub(super) fn read<'a>(elf: &impl Object<'a>) -> io::Result<Option<Vec<u8>>> {
    let Some(section) = elf.section_by_name(".gnu_debugdata") else {
        return Ok(None);
    };
    let compressed = section.data().map_err(io::Error::other)?;
    decompress(compressed).map(Some)
}

fn decompress(compressed: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let reader = XzReader::new_mem_limit(compressed, true, MAX_DECODER);
    reader.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}
