//! `.gnu_debugdata`: a symbol table that distributions leave in stripped files, as an xz-compressed ELF file.
//! It has names of local functions, but no lines.

use std::io::{self, Read};

use lzma_rust2::XzReader;
use object::{Object, ObjectSection};

/// Maximum uncompressed size in bytes. Tables of the largest libraries have a tenth of it.
const MAX_BYTES: u64 = 256 << 20;
/// Maximum memory of the decoder in KiB. The strongest settings of xz take 65 MiB.
const MAX_DECODER: u32 = 128 << 10;

/// Decompresses the ELF file with the table; `None` if `elf` has none.
///
/// # Errors
///
/// The section is damaged, or too large.
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
