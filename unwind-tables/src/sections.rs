//! The contents of one section: decompression with a size limit, and the header of `.eh_frame_hdr`.
//!
//! Finding sections is `elf`; what call frame information says is `cfi`.

use std::borrow::Cow;

use object::read::{CompressedData, CompressionFormat};

use crate::addr::Svma;
use crate::bytes::Bytes;
use crate::elf::Section;

const SHT_NOBITS: u32 = 8;
const SHF_COMPRESSED: u64 = 1 << 11;
const COMPRESSION_HEADER_BYTES: u64 = 24;
const COMPRESS_ZLIB: u32 = 1;
const COMPRESS_ZSTD: u32 = 2;
/// CFI packs 3 to 6 times smaller with zlib; what claims to grow beyond this is an attack.
const MAX_EXPANSION: u64 = 64;
/// Bytes of a section of call frame information that are read. A row takes five or six, so that a third of this has more
/// rows than an image can hold; a file with a hole in it can claim any size.
pub(crate) const MAX_CFI_BYTES: u64 = 256 << 20;

/// The contents of a section of call frame information; `None` when they lie outside the file, are damaged, or claim to
/// be enormous.
pub(crate) fn section_data<'a>(file: Bytes<'a>, section: &Section<'a>) -> Option<Cow<'a, [u8]>> {
    if section.kind == SHT_NOBITS {
        return None;
    }
    let bytes = file.at(section.offset, section.size)?;
    if bytes.len() > MAX_CFI_BYTES {
        return None;
    }
    if section.flags & SHF_COMPRESSED == 0 {
        return Some(Cow::Borrowed(bytes.0));
    }
    let format = match bytes.u32(0)? {
        COMPRESS_ZLIB => CompressionFormat::Zlib,
        COMPRESS_ZSTD => CompressionFormat::Zstandard,
        _ => return None,
    };
    let uncompressed_size = bytes.u64(8)?;
    let packed_size = bytes.len().checked_sub(COMPRESSION_HEADER_BYTES)?;
    if uncompressed_size > packed_size.saturating_mul(MAX_EXPANSION).min(MAX_CFI_BYTES) {
        return None;
    }
    let packed = CompressedData {
        format,
        data: bytes.at(COMPRESSION_HEADER_BYTES, packed_size)?.0,
        uncompressed_size,
    };
    packed.decompress().ok()
}

/// What `.eh_frame_hdr` says about `.eh_frame`.
pub(crate) struct EhFrameHeader {
    /// Where `.eh_frame` starts.
    pub(crate) svma: Svma,
    /// The FDE that lies last, if there is a search table in the usual encoding.
    pub(crate) last_fde: Option<Svma>,
}

/// Bytes before the encoded pointers.
const EH_FRAME_HDR_BYTES: u64 = 4;

/// Pointer encodings of `DW_EH_PE_*` (LSB 5.0, "DWARF Exception Header Encoding").
mod pointer {
    pub(super) const ABSOLUTE: u8 = 0x00;
    pub(super) const UDATA4: u8 = 0x03;
    pub(super) const UDATA8: u8 = 0x04;
    pub(super) const SDATA4: u8 = 0x0b;
    pub(super) const SDATA8: u8 = 0x0c;
    pub(super) const PC_RELATIVE: u8 = 0x10;
    pub(super) const DATA_RELATIVE: u8 = 0x30;
    pub(super) const OMIT: u8 = 0xff;
}

/// Reads the header of an `.eh_frame_hdr` at `svma`; `None` for an encoding that no linker writes.
pub(crate) fn eh_frame_from_header(bytes: Bytes<'_>, svma: Svma) -> Option<EhFrameHeader> {
    if bytes.u8(0)? != 1 {
        return None;
    }
    let (eh_frame, count_at) = encoded_pointer(bytes, svma, EH_FRAME_HDR_BYTES, bytes.u8(1)?)?;
    Some(EhFrameHeader {
        svma: eh_frame,
        last_fde: last_fde(bytes, svma, count_at),
    })
}

fn last_fde(bytes: Bytes<'_>, svma: Svma, count_at: u64) -> Option<Svma> {
    const TABLE_ENCODING: u8 = pointer::DATA_RELATIVE | pointer::SDATA4;
    if bytes.u8(2)? != pointer::UDATA4 || bytes.u8(3)? != TABLE_ENCODING {
        return None;
    }
    let count = u64::from(bytes.u32(count_at)?);
    // An entry stands for a CFI entry of twice its size at least.
    if count > MAX_CFI_BYTES / 16 {
        return None;
    }
    let table = bytes.at(count_at + 4, count * 8)?;
    let (entries, _) = table.0.as_chunks::<8>();
    let fde = |entry: &[u8; 8]| i32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
    let offset = entries.iter().map(fde).max()?;
    Some(svma.wrapping_add(i64::from(offset).cast_unsigned()))
}

/// The pointer at `at` of a header at `svma`, and where the bytes behind it start.
fn encoded_pointer(bytes: Bytes<'_>, svma: Svma, at: u64, encoding: u8) -> Option<(Svma, u64)> {
    if encoding == pointer::OMIT {
        return None;
    }
    let (value, size) = match encoding & 0x0f {
        pointer::ABSOLUTE | pointer::UDATA8 | pointer::SDATA8 => (bytes.u64(at)?, 8),
        pointer::UDATA4 => (bytes.u32(at)?.into(), 4),
        pointer::SDATA4 => (i64::from(bytes.u32(at)?.cast_signed()).cast_unsigned(), 4),
        _ => return None,
    };
    let base = match encoding & 0xf0 {
        pointer::ABSOLUTE => Svma::new(0),
        pointer::PC_RELATIVE => svma.wrapping_add(at),
        pointer::DATA_RELATIVE => svma,
        _ => return None,
    };
    Some((base.wrapping_add(value), at + size))
}
