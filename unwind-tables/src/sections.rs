//! The contents of one section: decompression with a size limit, and the header of `.eh_frame_hdr`.
//!
//! `elf` finds sections, and `cfi` reads call frame information.

use std::borrow::Cow;

use gimli::{BaseAddresses, EhFrameHdr, EndianSlice, LittleEndian, ParsedEhFrameHdr};
use object::elf;
use object::read::elf::{CompressionHeader as _, SectionHeader as _};
use object::read::{CompressedData, CompressionFormat};

use crate::addr::Svma;
use crate::bytes::Bytes;
use crate::elf::{ENDIAN, SectionHeader};

/// Maximum ratio of decompressed to compressed size. CFI becomes 3 to 6 times smaller with zlib; a section
/// that claims more than this limit is an attack.
const MAX_EXPANSION: u64 = 64;
/// Maximum number of bytes of a section of call frame information that are read. A row takes five or six, so
/// that a third of this has more rows than an image can contain; a file with a hole in it can claim any size.
pub const MAX_CFI_BYTES: u64 = 256 << 20;

/// The contents of a section of call frame information; `None` when they lie outside the file, are damaged,
/// or claim to be enormous.
pub(crate) fn section_data<'a>(file: Bytes<'a>, section: &SectionHeader) -> Option<Cow<'a, [u8]>> {
    let (start, size) = section.file_range(ENDIAN)?;
    let bytes = file.at(start, size)?;
    if size > MAX_CFI_BYTES {
        return None;
    }
    let Some((header, packed_at, packed_size)) = section.compression(ENDIAN, file.0).ok()? else {
        return Some(Cow::Borrowed(bytes.0));
    };
    let format = match header.ch_type(ENDIAN) {
        elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
        elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
        _ => return None,
    };
    unpack(format, file.at(packed_at, packed_size)?, header.ch_size(ENDIAN))
}

/// The contents of a section whose name begins with `.zdebug_`, as binutils wrote them before 2.26: `ZLIB`,
/// the size as 8 big-endian bytes, and the compressed data.
pub(crate) fn old_section_data<'a>(file: Bytes<'a>, section: &SectionHeader) -> Option<Cow<'a, [u8]>> {
    let (start, size) = section.file_range(ENDIAN)?;
    let (magic, rest) = file.at(start, size)?.0.split_first_chunk::<4>()?;
    let (uncompressed_size, packed) = rest.split_first_chunk::<8>()?;
    if magic != b"ZLIB" {
        return None;
    }
    unpack(
        CompressionFormat::Zlib,
        Bytes(packed),
        u64::from_be_bytes(*uncompressed_size),
    )
}

fn unpack(format: CompressionFormat, packed: Bytes<'_>, uncompressed_size: u64) -> Option<Cow<'_, [u8]>> {
    if uncompressed_size > packed.len().saturating_mul(MAX_EXPANSION).min(MAX_CFI_BYTES) {
        return None;
    }
    let packed = CompressedData {
        format,
        data: packed.0,
        uncompressed_size,
    };
    packed.decompress().ok()
}

/// Maximum number of functions of a search table that are read. The largest browsers have some million; a
/// file with a hole in it can claim any number.
const MAX_FUNCTIONS: usize = 1 << 23;

/// `.eh_frame_hdr`: the start of `.eh_frame`, and a table of functions and their FDEs (LSB 5.0, 10.6.2).
pub(crate) struct EhFrameHeader<'a> {
    header: ParsedEhFrameHdr<EndianSlice<'a, LittleEndian>>,
    bases: BaseAddresses,
}

impl<'a> EhFrameHeader<'a> {
    /// Reads the header of the `.eh_frame_hdr` at `svma`, which ends somewhere in `bytes`.
    pub(crate) fn parse(bytes: Bytes<'a>, svma: Svma) -> Option<Self> {
        const ADDRESS_BYTES: u8 = 8;
        let bases = BaseAddresses::default().set_eh_frame_hdr(svma.get());
        let header = EhFrameHdr::new(bytes.0, LittleEndian).parse(&bases, ADDRESS_BYTES);
        Some(Self {
            header: header.ok()?,
            bases,
        })
    }

    /// Start of `.eh_frame`.
    pub(crate) fn eh_frame(&self) -> Option<Svma> {
        self.header.eh_frame_ptr().direct().ok().map(Svma::new)
    }

    /// The FDE with the highest address; `None` where the table is cut off or too long.
    pub(crate) fn last_fde(&self) -> Option<Svma> {
        let table = self.header.table()?;
        let entries = table.iter(&self.bases);
        if entries.size_hint().0 > MAX_FUNCTIONS {
            return None;
        }
        let mut last = None;
        for entry in entries {
            last = last.max(Some(entry.ok()?.1.direct().ok()?));
        }
        last.map(Svma::new)
    }

    /// Starts of functions, up to the first entry that cannot be read.
    pub(crate) fn function_starts(&self) -> Vec<Svma> {
        let Some(table) = self.header.table() else {
            return Vec::new();
        };
        let entries = table.iter(&self.bases).take(MAX_FUNCTIONS);
        let starts = entries.map_while(|entry| entry.ok()?.0.direct().ok());
        starts.map(Svma::new).collect()
    }

    /// Start of the next function after an address, if starts ascend; entries that cannot be read are treated
    /// as behind it.
    pub(crate) fn function_start_after(&self, address: Svma) -> Option<Svma> {
        let table = self.header.table()?;
        let start = |at| {
            let entry = table.iter(&self.bases).nth(at).ok()??;
            entry.0.direct().ok().map(Svma::new)
        };
        let (mut low, mut high) = (0, table.iter(&self.bases).size_hint().0.min(MAX_FUNCTIONS));
        let mut after = None;
        while low < high {
            let middle = low.midpoint(high);
            match start(middle) {
                Some(start) if start <= address => low = middle + 1,
                start => (high, after) = (middle, start),
            }
        }
        after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::ElfView;

    /// The search for the next function finds the same as reading the whole table.
    #[test]
    fn functions_start_after_addresses() {
        let own = std::fs::read(std::env::current_exe().expect("a file")).expect("our own file");
        let view = ElfView::parse_any(&own).expect("an ELF file");
        let starts = view.function_starts();
        assert!(starts.len() > 1000 && starts.is_sorted());
        for (&start, next) in starts.iter().zip(starts.iter().skip(1).map(Some).chain([None])) {
            assert_eq!(view.function_start_after(start), next.copied());
        }
        assert_eq!(view.function_start_after(Svma::new(0)), starts.first().copied());
    }
}
