//! Claim: no file, however damaged, makes a compile panic, run long or ask for memory out of proportion.

use std::time::{Duration, Instant};

use crate::common::build::{cc, transform};
use crate::common::elf::{COMPRESSED, HandMade, cie, fde, words};
use unwind_tables::addr::Svma;
use unwind_tables::error::ImageError;
use unwind_tables::rule::UnwindRule;
use unwind_tables::{Compiled, ElfView, TableError, compile, verify};

/// Maximum time for files of a few ten kilobytes, whose compile takes less than a millisecond.
const TIME_LIMIT: Duration = Duration::from_secs(2);

/// Compiles and verifies a file, and checks time, memory, and that the image can be looked up at any address.
fn check(elf: &[u8]) -> Result<Compiled, TableError> {
    let start = Instant::now();
    let compiled = compile(elf);
    assert!(
        start.elapsed() < TIME_LIMIT,
        "{:?} for {} bytes",
        start.elapsed(),
        elf.len()
    );
    if let Ok(Compiled {
        image: Some(image),
        coverage,
    }) = &compiled
    {
        // Rows come from section bytes; the index from a span that is at most 16 MiB or 16 times the file.
        let limit = 4 * elf.len() + (1 << 20);
        assert!(
            image.byte_len() <= limit,
            "{} bytes of image from {}",
            image.byte_len(),
            elf.len()
        );
        assert!(u64::from(image.row_count()) <= coverage.raw_rows + 2 * u64::from(coverage.fdes) + 2);
        for address in [0, 0x1000, 0x1001, u64::MAX] {
            let _: UnwindRule = image.rule_at(Svma::new(address));
        }
    }
    let start = Instant::now();
    let image = compiled
        .as_ref()
        .ok()
        .and_then(|compiled| compiled.image.as_ref());
    let verified = verify::verify(elf, image);
    assert!(start.elapsed() < TIME_LIMIT, "compared in {:?}", start.elapsed());
    assert_eq!(verified.is_ok(), ElfView::parse(elf).is_ok());
    compiled
}

/// Small objects of every kind that is read: `.eh_frame`, `.debug_frame`, compressed, the vDSO, no sections.
fn objects() -> Vec<Vec<u8>> {
    let source = "
        #include <alloca.h>
        extern int other(void *, void *);
        int f(int n) { char big[70000]; return other(big, alloca(n)); }
        int g(int n) { return n ? f(n) + g(n - 1) : 0; }";
    let shared = ["-shared", "-nostdlib", "-O2", "-fPIC"];
    let eh_frame = cc("f.c", source, &shared);
    let debug = [&shared[..], &["-g1", "-fno-asynchronous-unwind-tables"]].concat();
    let debug_frame = cc("f.c", source, &debug);
    let compressed = ["--compress-debug-sections=zlib", "{in}", "{out}"];
    let compressed = transform(&debug_frame, "objcopy", &compressed);
    vec![
        crate::common::without_section_headers(eh_frame.clone()),
        eh_frame,
        debug_frame,
        compressed,
        crate::common::vdso(),
    ]
}

/// Files that are cut off at any place.
#[test]
fn truncated_files_are_survived() {
    for elf in objects() {
        for length in (0..elf.len()).step_by(13).chain(0..1024.min(elf.len())) {
            let _ = check(&elf[..length]);
        }
    }
}

/// Thousands of files with a few bytes changed, half of them in the headers or in the CFI.
#[test]
fn mutated_files_are_survived() {
    let mut random = Random(0x5eed);
    for elf in objects() {
        let targets = interesting_ranges(&elf);
        let mut compiled = 0;
        for _ in 0..2000 {
            let mut mutated = elf.clone();
            for _ in 0..=random.below(6) {
                let range = &targets[random.below(targets.len())];
                let at = range.start + random.below(range.len());
                mutated[at] = match random.below(3) {
                    0 => 0xff,
                    1 => 0,
                    _ => random.next().to_le_bytes()[0],
                };
            }
            compiled += usize::from(check(&mutated).is_ok());
        }
        // Mutations that all end at the first check would prove nothing.
        assert!(
            (200..2000).contains(&compiled),
            "{compiled} of 2000 mutations compiled"
        );
    }
}

/// Ranges to mutate: the headers, the CFI, and the whole file.
fn interesting_ranges(elf: &[u8]) -> Vec<std::ops::Range<usize>> {
    use object::{Object, ObjectSection};
    let file = object::File::parse(elf).expect("not mutated yet");
    let cfi = [".eh_frame", ".eh_frame_hdr", ".debug_frame"];
    let range = |name: &&str| file.section_by_name(name)?.file_range();
    let sections = cfi
        .iter()
        .filter_map(range)
        .map(|(start, size)| position(start)..position(start + size));
    sections
        .chain(headers(elf))
        .chain(std::iter::once(0..elf.len()))
        .filter(|range| !range.is_empty())
        .collect()
}

fn position(value: u64) -> usize {
    usize::try_from(value).expect("a position in memory")
}

/// Ranges of the file's own header, program headers and section headers.
fn headers(elf: &[u8]) -> [std::ops::Range<usize>; 3] {
    let word = |at: usize| position(u64::from_le_bytes(elf[at..at + 8].try_into().expect("8 bytes")));
    let half = |at: usize| usize::from(u16::from_le_bytes([elf[at], elf[at + 1]]));
    let table = |start, size, count| start..start + size * count;
    [
        0..64,
        table(word(32), 56, half(56)),
        table(word(40), 64, half(60)),
    ]
}

/// A xorshift generator: the same mutations in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        position(self.next() % limit as u64)
    }
}

fn eh_frame(segments: Vec<u64>, contents: Vec<u8>) -> Vec<u8> {
    HandMade {
        segments,
        section: ".eh_frame",
        contents,
        flags: 0,
    }
    .bytes()
}

/// The hand-made files are read at all: without this, the claims below would hold for the wrong reason.
#[test]
fn hand_made_file_is_read() {
    let mut contents = cie(&[]);
    contents.extend(fde(contents.len(), 0x1010, 0x10, &[0x44, 0x0e, 16]));
    let compiled = check(&eh_frame(vec![0x1000], contents)).expect("well-formed");
    assert_eq!(
        (
            compiled.coverage.fdes,
            compiled.coverage.malformed_fdes,
            compiled.coverage.raw_rows
        ),
        (1, 0, 2)
    );
}

/// A CIE of half a megabyte that 15,000 FDEs repeat: 8 G instructions without a budget.
#[test]
fn long_cie_is_not_repeated_for_ever() {
    let mut contents = cie(&vec![0; 500_000]);
    for number in 0..15_000 {
        contents.extend(fde(contents.len(), 0x1000 + number % 4000, 1, &[]));
    }
    let compiled = check(&eh_frame(vec![0x1000], contents)).expect("a readable file");
    assert!(
        compiled.coverage.malformed_fdes > 10_000,
        "{:?}",
        compiled.coverage
    );
}

/// CIEs that overlap, each with a name of 16 MB, and FDEs that refer to each of them.
#[test]
fn overlapping_cies_are_not_read_for_ever() {
    // Without a zero byte, so that names do not end: length, CIE id, version 1, "SSS".
    let length: u64 = 0x0101_0101;
    let mut contents = Vec::new();
    for _ in 0..10_000 {
        words(&mut contents, &[length, 0xffff_ffff], 4);
        contents.extend(b"\x01SSS");
    }
    contents.resize(position(length) + 4, b'S');
    for cie in 0..10_000 {
        words(&mut contents, &[20, 12 * cie], 4);
        words(&mut contents, &[0x1000, 1], 8);
    }
    let file = HandMade {
        segments: vec![0x1000],
        section: ".debug_frame",
        contents,
        flags: 0,
    };
    let compiled = check(&file.bytes()).expect("a readable file");
    assert_eq!(
        (compiled.coverage.fdes, compiled.coverage.malformed_fdes),
        (10_000, 10_000)
    );
}

/// One FDE of a byte per row over code that is not there: rows are limited to the segment's bytes.
#[test]
fn rows_end_with_the_segment() {
    let mut contents = cie(&[]);
    // Advance by 1; the CFA's offset becomes 16 or 24.
    let instructions = [0x41, 0x0e, 16, 0x41, 0x0e, 24].repeat(100_000);
    contents.extend(fde(contents.len(), 0x1000, 1 << 40, &instructions));
    contents.extend(fde(contents.len(), 0x900_0000, 0x1000, &[]));
    let compiled = check(&eh_frame(vec![0x1000], contents)).expect("a readable file");
    assert_eq!(compiled.coverage.raw_rows, 4096);
    assert_eq!(compiled.coverage.outside_fdes, 1);
}

/// Pages of code that are gigabytes apart, or at high addresses, are moved together in an image of little
/// more than their rows, which agrees with their CFI at each address.
#[test]
fn far_code_is_moved_closer() {
    for segments in [[0x1000, 0xf000_0000], [0x3000_0000_0000, 0x3000_1000_0000]] {
        let mut contents = cie(&[]);
        for &start in &segments {
            contents.extend(fde(contents.len(), start, 16, &[]));
        }
        let elf = eh_frame(segments.to_vec(), contents);
        let image = check(&elf).expect("well-formed").image.expect("it has CFI");
        assert!(image.byte_len() < 8192, "{} bytes", image.byte_len());
        let verified = verify::verify(&elf, Some(&image)).expect("well-formed");
        assert_eq!((verified.wrong, verified.rows), (0, 2), "{:?}", verified.examples);
        for &start in &segments {
            let rules = [start - 1, start, start + 15, start + 16].map(|at| image.rule_at(Svma::new(at)));
            let is_frame = rules.map(|rule| matches!(rule, UnwindRule::Frame(_)));
            assert_eq!(is_frame, [false, true, true, false], "{rules:?}");
        }
        // Addresses without code have no rule, wherever the image has the code.
        for at in (segments[0] + 16..segments[1]).step_by(0x8000) {
            assert_eq!(image.rule_at(Svma::new(at)), UnwindRule::Gap, "{at:#x}");
        }
        let parts = image.places().parts(&(Svma::new(0)..Svma::new(u64::MAX)));
        for part in &parts {
            assert_eq!(image.places().parts(part), std::slice::from_ref(part));
        }
        assert!(parts.len() > 1);
    }
}

/// A compressed section that claims terabytes is not allocated.
#[test]
fn compression_bombs_are_not_unpacked() {
    for (format, size) in [(1, 1 << 40), (1, u64::MAX), (2, 1 << 40), (3, 64)] {
        let mut contents = Vec::new();
        words(&mut contents, &[format, 0], 4);
        words(&mut contents, &[size, 1], 8);
        contents.resize(4096, 0x78);
        let file = HandMade {
            segments: vec![0x1000],
            section: ".debug_frame",
            contents,
            flags: COMPRESSED,
        };
        assert!(check(&file.bytes()).expect("a readable file").image.is_none());
    }
}

/// Notes of megabytes that sixty thousand segments and sections refer to: the first few are looked through.
#[test]
fn notes_are_not_read_for_ever() {
    let mut file = eh_frame(vec![0x1000; 60_000], vec![0; 4 << 20]);
    let notes_at = u64::try_from(file.len()).expect("a size") - (4 << 20) - 4096;
    for header in 1..60_000 {
        let at = 64 + 56 * header;
        file[at] = 4;
        file[at + 8..at + 16].copy_from_slice(&notes_at.to_le_bytes());
        file[at + 32..at + 40].copy_from_slice(&(4_u64 << 20).to_le_bytes());
    }
    assert!(check(&file).is_ok());
}

/// Code that is one signal trampoline after another is not described one by one.
#[test]
fn trampolines_are_not_found_for_ever() {
    let segments: Vec<u64> = (0..2000).map(|number| 0x1000 + 0x1000 * number).collect();
    let mut contents = cie(&[]);
    contents.extend(fde(contents.len(), 0x1000, 1, &[]));
    let mut file = eh_frame(segments, contents);
    let at = file.len();
    let code = [0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05].repeat(600);
    file.extend(&code[..4096]);
    for header in 0..2000 {
        let offset = 64 + 56 * header + 8;
        file[offset..offset + 8].copy_from_slice(&(at as u64).to_le_bytes());
    }
    let compiled = check(&file).expect("a readable file");
    assert!(compiled.coverage.rows < 5000, "{:?}", compiled.coverage);
}

/// Many segments and many functions: finding the segment of each is a search, not a scan.
#[test]
fn many_segments_are_searched() {
    let segments: Vec<u64> = (0..60_000).map(|number| 0x1000 + 0x10_0000 * number).collect();
    let mut contents = cie(&[]);
    for start in &segments {
        contents.extend(fde(contents.len(), *start, 16, &[]));
    }
    let error = check(&eh_frame(segments, contents)).map(drop);
    assert!(
        matches!(error, Err(TableError::Image(ImageError::TooSparse(_)))),
        "{error:?}"
    );
}
