//! ELF files written by hand, with contents that no linker would write.

/// A shared object of executable segments at the given addresses and an `.eh_frame` or `.debug_frame`
/// section.
#[derive(Debug, Default)]
pub(crate) struct HandMade {
    /// Address of each executable segment; each is `SEGMENT_BYTES` of the file.
    pub(crate) segments: Vec<u64>,
    /// Name of the section.
    pub(crate) section: &'static str,
    /// Contents of the section.
    pub(crate) contents: Vec<u8>,
    /// Flags of the section, such as `SHF_COMPRESSED`.
    pub(crate) flags: u64,
}

/// Bytes of each executable segment.
pub(crate) const SEGMENT_BYTES: u64 = 4096;
/// `SHF_COMPRESSED`
pub(crate) const COMPRESSED: u64 = 1 << 11;
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;

impl HandMade {
    /// The file's bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let names = format!("\0{}\0", self.section);
        let contents_at = (HEADER + PROGRAM_HEADER * self.segments.len())
            .next_multiple_of(8)
            .max(4096);
        let names_at = contents_at + self.contents.len();
        let sections_at = (names_at + names.len()).next_multiple_of(8);

        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        words(&mut file, &[3, 62], 2);
        words(&mut file, &[1], 4);
        words(&mut file, &[0, HEADER as u64, sections_at as u64], 8);
        words(&mut file, &[0], 4);
        words(&mut file, &[64, 56, self.segments.len() as u64, 64, 3, 2], 2);
        for &svma in &self.segments {
            words(&mut file, &[1, 5], 4);
            words(&mut file, &[0, svma, svma, SEGMENT_BYTES, SEGMENT_BYTES, 4096], 8);
        }
        file.resize(contents_at, 0);
        file.extend(&self.contents);
        file.extend(names.as_bytes());
        file.resize(sections_at, 0);
        section(&mut file, [0, 0, 0], [0, 0, 0]);
        section(
            &mut file,
            [1, 1, self.flags],
            [0, contents_at as u64, self.contents.len() as u64],
        );
        section(&mut file, [0, 3, 0], [0, names_at as u64, names.len() as u64]);
        file
    }
}

fn section(file: &mut Vec<u8>, [name, kind, flags]: [u64; 3], address_offset_size: [u64; 3]) {
    words(file, &[name, kind], 4);
    words(file, &[flags], 8);
    words(file, &address_offset_size, 8);
    words(file, &[0, 0], 4);
    words(file, &[1, 0], 8);
}

/// Appends little-endian numbers of `size` bytes.
pub(crate) fn words(file: &mut Vec<u8>, values: &[u64], size: usize) {
    for value in values {
        file.extend(&value.to_le_bytes()[..size]);
    }
}

/// An `.eh_frame` CIE: `cfa = rsp + 8`, `ra = *(cfa - 8)`, absolute addresses, and then `extra` instructions.
pub(crate) fn cie(extra: &[u8]) -> Vec<u8> {
    let mut body = vec![0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1];
    body.extend(extra);
    entry(&body)
}

/// An FDE that is `at` bytes behind the CIE at the start of the section.
pub(crate) fn fde(at: usize, start: u64, length: u64, instructions: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    words(&mut body, &[at as u64 + 4], 4);
    words(&mut body, &[start, length], 8);
    body.extend(instructions);
    entry(&body)
}

fn entry(body: &[u8]) -> Vec<u8> {
    let mut entry = Vec::new();
    words(&mut entry, &[body.len() as u64], 4);
    entry.extend(body);
    entry
}
