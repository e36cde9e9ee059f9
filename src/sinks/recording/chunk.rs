//! The framing of a recording: a header of a fixed layout, and chunks, each written whole, with a checksum,
//! compressed separately. Their content is in `chunks`.
//!
//! All numbers are little-endian.
//!
//! ```text
//! header (32 bytes)   89 'memleak', u32 format, u32 0, 16 bytes: version of the writer, padded with zeros
//! chunk  (16 bytes)   4 letters: its kind, u32 bytes of CBOR, u32 bytes stored, u32 CRC-32 of these
//!                     12 bytes and the stored bytes
//!                     followed by the stored bytes: the CBOR, compressed by zlib (RFC 1950)
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Format number that is written, and the only one that is read.
pub(super) const FORMAT: u32 = 2;
/// The first byte is not ASCII, so that no tool takes the file for text and converts its line ends.
const MAGIC: [u8; 8] = *b"\x89memleak";
pub(super) const HEADER_BYTES: usize = 32;
const WRITER_AT: usize = 16;
const FRAME_BYTES: usize = 16;
/// Maximum number of bytes of one chunk's CBOR. Writers split larger content.
const MAX_BYTES: u32 = 8 << 20;
/// zlib level 2: 60 MB of chunks from a trace of clang become 4.1 MB in 0.35 s. Higher levels take up to four
/// times as long for 2 % less; zstd in pure Rust gives 7.5 MB.
const EFFORT: Compression = Compression::new(2);
/// Maximum nesting of a chunk's CBOR; memleak writes 5.
const MAX_NESTING: usize = 16;

/// Kind of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Origin of the recording; the first chunk.
    Head,
    /// Entries that other chunks refer to by number.
    Definitions,
    /// Stacks of the report that follows.
    Stacks,
    /// Single blocks of preceding stacks; part of the report that follows.
    Blocks,
    /// A report; its stacks precede it.
    Report,
    /// Totals at the end; missing if memleak was killed.
    Done,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Head,
        Self::Definitions,
        Self::Stacks,
        Self::Blocks,
        Self::Report,
        Self::Done,
    ];

    pub(super) const fn letters(self) -> [u8; 4] {
        match self {
            Self::Head => *b"head",
            Self::Definitions => *b"defs",
            Self::Stacks => *b"stks",
            Self::Blocks => *b"blks",
            Self::Report => *b"rept",
            Self::Done => *b"done",
        }
    }
}

/// A bound of the format is exceeded.
#[derive(Debug)]
pub(super) struct TooLarge;

/// The header that this version writes.
pub(super) fn header() -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..MAGIC.len()].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    let version = env!("CARGO_PKG_VERSION").bytes();
    for (place, byte) in header[WRITER_AT..].iter_mut().zip(version) {
        *place = byte;
    }
    header
}

/// Parses a header into the format number and the version that wrote it. `None` without the magic bytes.
pub(super) fn read_header(header: &[u8; HEADER_BYTES]) -> Option<(u32, String)> {
    let rest = header.strip_prefix(&MAGIC)?;
    let format = u32::from_le_bytes(*rest.first_chunk()?);
    let writer = header[WRITER_AT..]
        .iter()
        .take_while(|byte| byte.is_ascii_graphic());
    Some((format, writer.map(|&byte| char::from(byte)).collect()))
}

/// Encodes, compresses and frames a chunk.
pub(super) fn encode(kind: Kind, payload: &impl Serialize) -> Result<Vec<u8>, TooLarge> {
    let mut bytes = Vec::new();
    // Writing to memory cannot fail, and every type here has a CBOR form.
    ciborium::into_writer(payload, &mut bytes).map_err(|_| TooLarge)?;
    seal(kind.letters(), &bytes)
}

/// Compresses and frames a chunk with these bytes of CBOR.
pub(super) fn seal(kind: [u8; 4], bytes: &[u8]) -> Result<Vec<u8>, TooLarge> {
    let length = u32::try_from(bytes.len())
        .ok()
        .filter(|&length| length <= MAX_BYTES);
    let length = length.ok_or(TooLarge)?;
    let mut compressed = ZlibEncoder::new(vec![0; FRAME_BYTES], EFFORT);
    let compressed = compressed.write_all(bytes).and_then(|()| compressed.finish());
    let mut chunk = compressed.map_err(|_| TooLarge)?;
    let stored = u32::try_from(chunk.len() - FRAME_BYTES).map_err(|_| TooLarge)?;
    chunk[..4].copy_from_slice(&kind);
    chunk[4..8].copy_from_slice(&length.to_le_bytes());
    chunk[8..12].copy_from_slice(&stored.to_le_bytes());
    let sum = checksum(&chunk[..12], &chunk[FRAME_BYTES..]);
    chunk[12..FRAME_BYTES].copy_from_slice(&sum.to_le_bytes());
    Ok(chunk)
}

/// A file of chunks from their CBOR, for tests and fuzzers that change it.
#[cfg(any(test, fuzzing))]
pub(crate) fn sealed(chunks: &[([u8; 4], Vec<u8>)]) -> Vec<u8> {
    let sealed = chunks.iter().filter_map(|(kind, bytes)| seal(*kind, bytes).ok());
    std::iter::once(header().to_vec())
        .chain(sealed)
        .flatten()
        .collect()
}

fn checksum(frame: &[u8], stored: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(frame);
    sum.update(stored);
    sum.finalize()
}

/// A chunk in a file, with a valid checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// `None` for an unknown kind.
    pub(super) kind: Option<Kind>,
    /// File offset of the chunk.
    pub(super) at: u64,
    /// Bytes of CBOR.
    length: u32,
    stored: u32,
}

/// Result of reading a chunk's frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadFrame {
    Chunk(Chunk),
    /// End of the file.
    End,
    /// The file ends within a chunk.
    Cut,
    /// Wrong checksum or impossible size.
    Damaged,
}

impl Chunk {
    /// File offset of the next chunk.
    pub(super) fn end(&self) -> u64 {
        self.at + FRAME_BYTES as u64 + u64::from(self.stored)
    }

    /// Decodes the content, whose checksum [`next`] has verified. `None` if it is not a valid `T`.
    pub(super) fn read<T: DeserializeOwned>(&self, file: &File) -> io::Result<Option<T>> {
        let mut stored = vec![0; self.stored as usize];
        file.read_exact_at(&mut stored, self.at + FRAME_BYTES as u64)?;
        let mut bytes = Vec::new();
        let mut limited = ZlibDecoder::new(&stored[..]).take(u64::from(self.length) + 1);
        let read = limited.read_to_end(&mut bytes);
        if read.is_err() || bytes.len() != self.length as usize {
            return Ok(None);
        }
        Ok(ciborium::de::from_reader_with_recursion_limit(&bytes[..], MAX_NESTING).ok())
    }
}

/// Reads the frame at offset `at` of a file of `end` bytes.
pub(super) fn next(file: &File, at: u64, end: u64) -> io::Result<ReadFrame> {
    let left = end.saturating_sub(at);
    if left == 0 {
        return Ok(ReadFrame::End);
    }
    if left < FRAME_BYTES as u64 {
        return Ok(ReadFrame::Cut);
    }
    let mut frame = [0; FRAME_BYTES];
    file.read_exact_at(&mut frame, at)?;
    let number = |from: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| frame[from + byte]));
    let (length, stored, sum) = (number(4), number(8), number(12));
    // zlib enlarges incompressible data by a few bytes per 16 KiB.
    if length > MAX_BYTES || stored > MAX_BYTES + MAX_BYTES / 1024 {
        return Ok(ReadFrame::Damaged);
    }
    if u64::from(stored) > left - FRAME_BYTES as u64 {
        return Ok(ReadFrame::Cut);
    }
    let mut bytes = vec![0; stored as usize];
    file.read_exact_at(&mut bytes, at + FRAME_BYTES as u64)?;
    if checksum(&frame[..12], &bytes) != sum {
        return Ok(ReadFrame::Damaged);
    }
    let kind = Kind::ALL.into_iter().find(|kind| kind.letters() == frame[..4]);
    Ok(ReadFrame::Chunk(Chunk {
        kind,
        at,
        length,
        stored,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> (File, u64) {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        (file, bytes.len() as u64)
    }

    /// A chunk is read as it was written; truncated anywhere it is cut, and with any bit changed it is not
    /// accepted.
    #[test]
    fn damaged_chunks_are_refused() {
        let payload: Vec<u64> = (0..100).map(|number| number * number).collect();
        let chunk = encode(Kind::Stacks, &payload).expect("small");
        let (whole, end) = file(&chunk);
        let Ok(ReadFrame::Chunk(found)) = next(&whole, 0, end) else {
            panic!("no chunk")
        };
        assert_eq!((found.kind, found.end()), (Some(Kind::Stacks), end));
        assert_eq!(found.read(&whole).expect("readable"), Some(payload));
        assert_eq!(next(&whole, end, end).expect("readable"), ReadFrame::End);
        for length in 1..end {
            assert_eq!(
                next(&whole, 0, length).expect("readable"),
                ReadFrame::Cut,
                "{length}"
            );
        }
        for bit in 0..chunk.len() * 8 {
            let mut changed = chunk.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let (changed, end) = file(&changed);
            let found = next(&changed, 0, end).expect("readable");
            assert!(
                matches!(found, ReadFrame::Cut | ReadFrame::Damaged),
                "bit {bit}: {found:?}"
            );
        }
    }

    /// A valid checksum does not make the lengths valid: no more is decompressed than was announced.
    #[test]
    fn wrong_lengths_are_refused() {
        let chunk = encode(Kind::Head, &"x".repeat(1 << 20)).expect("small");
        for announced in [0_u32, 1, 1000, 1 << 20, (1 << 20) + 6, MAX_BYTES] {
            let mut chunk = chunk.clone();
            chunk[4..8].copy_from_slice(&announced.to_le_bytes());
            let sum = checksum(&chunk[..12], &chunk[FRAME_BYTES..]);
            chunk[12..16].copy_from_slice(&sum.to_le_bytes());
            let (file, end) = file(&chunk);
            let Ok(ReadFrame::Chunk(found)) = next(&file, 0, end) else {
                panic!("no chunk")
            };
            assert_eq!(
                found.read::<String>(&file).expect("readable"),
                None,
                "{announced}"
            );
        }
        let mut large = chunk;
        large[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let (file, end) = file(&large);
        assert_eq!(next(&file, 0, end).expect("readable"), ReadFrame::Damaged);
    }

    /// A header has the format number and the writer's version; other magic bytes are refused.
    #[test]
    fn headers() {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        assert_eq!(read_header(&header()), Some((FORMAT, version)));
        let mut other = header();
        other[0] = b'{';
        assert_eq!(read_header(&other), None);
    }
}
