//! ELF files that no linker makes: they claim more contents than they have.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const GIB: u64 = 1 << 30;
/// Offset of the code in every file; it is a page long.
const CODE_AT: u64 = 4096;
/// `push %rbp; mov %rsp, %rbp; call *%rdi; pop %rbp; ret`
const CODE: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3];
/// Two more functions, `push %rbp; pop %rbp; ret`.
const OTHERS: [(u64, [u8; 3]); 2] = [(0x1080, [0x55, 0x5d, 0xc3]), (0x10c0, [0x55, 0x5d, 0xc3])];
/// Offset of the contents that a test is about.
const CONTENTS_AT: u64 = 16 << 20;
/// Offset of the section headers: above all bytes that are written, though holes go on beyond.
const HEADERS_AT: u64 = 64 << 20;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_NOTE: u64 = 4;
const PT_GNU_EH_FRAME: u64 = 0x6474_e550;
const SHT_PROGBITS: u64 = 1;
const SHT_SYMTAB: u64 = 2;
const SHT_STRTAB: u64 = 3;
const SHT_NOTE: u64 = 7;

/// A program header: type, flags, offset and address, size.
type Segment = [u64; 4];
/// A section header: name, type, flags, offset and address, size, link.
type Section = (&'static str, [u64; 5]);

/// A file that is being made.
#[derive(Default)]
struct Crafted {
    segments: Vec<Segment>,
    sections: Vec<Section>,
    /// Number of sections by the first section header, for a file that has fewer.
    section_count: Option<u64>,
    contents: Vec<(u64, Vec<u8>)>,
    length: u64,
}

fn words(values: &[u64], size: usize) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes()[..size].to_vec())
        .collect()
}

impl Crafted {
    /// Begins a file of `length` bytes with code; everything that is not written is a hole.
    fn new(length: u64) -> Self {
        Self {
            segments: vec![[PT_LOAD, 5, CODE_AT, 4096]],
            length,
            ..Self::default()
        }
    }

    fn segment(mut self, segment: Segment) -> Self {
        self.segments.push(segment);
        self
    }

    fn section(mut self, name: &'static str, section: [u64; 5]) -> Self {
        self.sections.push((name, section));
        self
    }

    fn content(mut self, at: u64, bytes: Vec<u8>) -> Self {
        self.contents.push((at, bytes));
        self
    }

    /// Loads the whole file, with `entries` in its dynamic section.
    fn dynamic(self, entries: &[[u64; 2]]) -> Self {
        let length = self.length;
        let bytes = words(entries.concat().as_slice(), 8);
        let size = bytes.len() as u64;
        self.segment([PT_LOAD, 4, 0, length])
            .segment([PT_DYNAMIC, 6, CONTENTS_AT, size])
            .content(CONTENTS_AT, bytes)
    }

    fn save(&self, path: &Path) {
        let file = File::create(path).expect("our own directory");
        let put = |at, bytes: &[u8]| file.write_all_at(bytes, at).expect("room on the disk");
        let sections = match self.sections.is_empty() && self.section_count.is_none() {
            true => 0,
            false => self.sections.len() as u64 + 2,
        };
        let names: String = self
            .sections
            .iter()
            .map(|(name, _)| format!("{name}\0"))
            .collect();
        let names_at = HEADERS_AT - (1 << 20);
        let mut header = b"\x7fELF\x02\x01\x01".to_vec();
        header.resize(16, 0);
        header.extend(words(&[3, 62], 2));
        header.extend(words(&[1], 4));
        header.extend(words(
            &[0, 1 << 20, if sections == 0 { 0 } else { HEADERS_AT }],
            8,
        ));
        header.extend(words(&[0], 4));
        let count = if self.section_count.is_some() { 0 } else { sections };
        header.extend(words(
            &[
                64,
                56,
                self.segments.len() as u64,
                64,
                count,
                u64::from(sections > 0),
            ],
            2,
        ));
        put(0, &header);
        put(CODE_AT, &CODE);
        for (at, code) in OTHERS {
            put(at, &code);
        }
        let segments = self.segments.iter().flat_map(|&[kind, flags, at, size]| {
            let head = words(&[kind, flags], 4);
            [head, words(&[at, at, at, size, size, 4096], 8)].concat()
        });
        put(1 << 20, &segments.collect::<Vec<_>>());
        let mut headers = section(0, [0, 0, 0, self.section_count.unwrap_or(0), 1]);
        headers.extend(section(0, [SHT_STRTAB, 0, names_at, names.len() as u64, 0]));
        let mut name = 0;
        for (text, fields) in &self.sections {
            headers.extend(section(name, *fields));
            name += text.len() as u64 + 1;
        }
        if sections > 0 {
            put(names_at, names.as_bytes());
            put(HEADERS_AT, &headers);
        }
        for (at, bytes) in &self.contents {
            put(*at, bytes);
        }
        file.set_len(self.length).expect("a hole takes no room");
    }
}

fn section(name: u64, [kind, flags, at, size, link]: [u64; 5]) -> Vec<u8> {
    let entry = if kind == SHT_SYMTAB { 24 } else { 0 };
    let parts = [
        words(&[name, kind], 4),
        words(&[flags, at, at, size], 8),
        words(&[link, 0], 4),
        words(&[1, entry], 8),
    ];
    parts.concat()
}

/// Makes a symbol of a function whose name is at offset `name` of the names.
fn function(name: u64, at: u64) -> Vec<u8> {
    // A global function in the file's first real section.
    [words(&[name], 4), vec![0x12, 0, 2, 0], words(&[at, 0], 8)].concat()
}

/// Adds symbols of `malloc` and `free`, as an allocator has them: some readers look further only then.
fn allocator(file: Crafted) -> Crafted {
    let symbols = [function(0, 0), function(1, 0x1080), function(8, 0x10c0)].concat();
    file.section(".text", [SHT_PROGBITS, 6, CODE_AT, 4096, 0])
        .section(".symtab", [SHT_SYMTAB, 0, 48 << 20, symbols.len() as u64, 4])
        .section(".strtab", [SHT_STRTAB, 0, 47 << 20, 13, 0])
        .content(48 << 20, symbols)
        .content(47 << 20, b"\0malloc\0free\0".to_vec())
}

/// Sizes of holes: above all limits, and within some.
const HOLES: [u64; 3] = [16 * GIB, 900 << 20, 250 << 20];

/// Entries of tables that lie before a hole.
const ENTRIES: u64 = 200_000;

fn holes(hole: u64) -> Vec<(&'static str, Crafted)> {
    let all = |kind, flags| [kind, flags, CONTENTS_AT, hole];
    let new = || Crafted::new(CONTENTS_AT + hole);
    let mut notes = new();
    notes.segments.extend(vec![all(PT_NOTE, 4); 60_000]);
    let mut note_sections = new();
    let note = [SHT_NOTE, 2, CONTENTS_AT, hole, 0];
    note_sections.sections.extend(vec![(".note", note); 60_000]);
    let mut sections = new();
    // Numbers of sections that do not fit in the ELF header are in the first section header.
    sections.section_count = Some(hole / 128);
    let progbits = |flags| [SHT_PROGBITS, flags, CONTENTS_AT, hole, 0];
    let search_table = words(&[0x3b03_1b01, 0, u64::from(u32::MAX)], 4);
    let relocations = [
        [5, 47 << 20],
        [6, 48 << 20],
        [23, 80 << 20],
        [2, hole - (81 << 20)],
        [0, 0],
    ];
    // Each pointer in the data has a relocation that states its value.
    let relative = [[7, 17 << 20], [8, 24 * ENTRIES], [9, 24], [0, 0]];
    let entries = (0..ENTRIES).flat_map(|at| [HEADERS_AT + (1 << 20) + 8 * at, 8, CODE_AT]);
    let entries = words(&entries.collect::<Vec<_>>(), 8);
    let data = [SHT_PROGBITS, 3, HEADERS_AT + (1 << 20), hole - HEADERS_AT, 0];
    vec![
        ("notes", notes),
        ("sections of notes", note_sections),
        ("sections", sections),
        ("eh_frame", new().section(".eh_frame", progbits(2))),
        ("debug_frame", new().section(".debug_frame", progbits(0))),
        (
            "code",
            new().segment(all(PT_LOAD, 5)).section(".text", progbits(6)),
        ),
        (
            "code of Go",
            new()
                .segment(all(PT_LOAD, 5))
                .section(".text", progbits(6))
                .section(".eh_frame", [SHT_PROGBITS, 2, 32 << 20, 4096, 0])
                .section(".go.buildinfo", [SHT_PROGBITS, 2, CODE_AT, 16, 0]),
        ),
        (
            "search table",
            new()
                .segment([PT_LOAD, 4, CONTENTS_AT, hole])
                .segment([PT_GNU_EH_FRAME, 4, CONTENTS_AT, hole])
                .content(CONTENTS_AT, search_table.clone()),
        ),
        (
            "search table of an allocator",
            allocator(
                new()
                    .segment([PT_GNU_EH_FRAME, 4, CONTENTS_AT, hole])
                    .content(CONTENTS_AT, search_table),
            ),
        ),
        (
            "symbols",
            new()
                .section(".symtab", [SHT_SYMTAB, 0, CONTENTS_AT, hole, 3])
                .section(".strtab", [SHT_STRTAB, 0, CONTENTS_AT, hole, 0]),
        ),
        (
            "dynamic segment",
            new().segment([PT_LOAD, 4, 0, hole]).segment(all(PT_DYNAMIC, 6)),
        ),
        ("relocations", allocator(new().dynamic(&relocations))),
        (
            "relocated data",
            allocator(new().dynamic(&relative))
                .section(".data.rel.ro", data)
                .content(17 << 20, entries),
        ),
        (
            "debug information",
            new()
                .section(".debug_info", progbits(0))
                .section(".debug_abbrev", progbits(0))
                .section(".debug_line", progbits(0)),
        ),
    ]
}

/// Names that begin everywhere and end nowhere, or far away.
fn names() -> Vec<(&'static str, Crafted)> {
    const NAMES: u64 = 24 << 20;
    let endless = || vec![b'x'; usize::try_from(8_u64 << 20).expect("a size in memory")];
    let new = || Crafted::new(96 << 20).content(NAMES, endless());
    let symbols: Vec<u8> = (0..100_000)
        .flat_map(|name| function(name, CODE_AT + name % 64))
        .collect();
    let size = symbols.len() as u64;
    let same: Vec<u8> = (0..1_000_000)
        .flat_map(|at| function(1, CODE_AT + at % 4000))
        .collect();
    let same_size = same.len() as u64;
    let mut needed = vec![[5, NAMES]];
    needed.extend((0..4096).map(|name| [1, name]));
    needed.extend([[14, 7], [0, 0]]);
    let far = || new().content(NAMES + (8 << 20), vec![0]);
    vec![
        (
            "names without end",
            new()
                .section(".text", [SHT_PROGBITS, 6, CODE_AT, 4096, 0])
                .section(".symtab", [SHT_SYMTAB, 0, 48 << 20, size, 4])
                .section(".strtab", [SHT_STRTAB, 0, NAMES, 8 << 20, 0])
                .content(48 << 20, symbols),
        ),
        (
            "a million allocators",
            Crafted::new(96 << 20)
                .section(".text", [SHT_PROGBITS, 6, CODE_AT, 4096, 0])
                .section(".symtab", [SHT_SYMTAB, 0, 32 << 20, same_size, 4])
                .section(".strtab", [SHT_STRTAB, 0, NAMES, 13, 0])
                .content(32 << 20, same)
                .content(NAMES, b"\0malloc\0free\0".to_vec()),
        ),
        ("long names of what is needed", far().dynamic(&needed)),
    ]
}

/// An FDE or CIE of `.eh_frame`: what follows its length.
fn entry(body: &[u8]) -> Vec<u8> {
    [words(&[body.len() as u64], 4), body.to_vec()].concat()
}

/// Call frame information that leads to itself, and segments that overlap.
fn circles() -> Vec<(&'static str, Crafted)> {
    let frames = |contents: Vec<u8>| {
        let size = contents.len() as u64;
        Crafted::new(96 << 20)
            .segment([PT_LOAD, 4, CONTENTS_AT, size])
            .section(".text", [SHT_PROGBITS, 6, CODE_AT, 4096, 0])
            .section(".eh_frame", [SHT_PROGBITS, 2, CONTENTS_AT, size, 0])
            .content(CONTENTS_AT, contents)
    };
    let range = words(&[CODE_AT, 64], 8);
    // The distance back to the CIE is counted from where it stands: 4 is the entry itself, 28 the one before.
    let itself = entry(&[words(&[4], 4), range.clone()].concat()).repeat(10_000);
    let each_other = entry(&[words(&[28], 4), range.clone()].concat()).repeat(10_000);
    let cie = |augmentation: &[u8], rest: &[u8]| {
        let head = [&[0, 0, 0, 0, 1][..], augmentation, &[0, 1, 0x78, 16], rest].concat();
        entry(&head)
    };
    let with_fde = |mut cie: Vec<u8>, instructions: &[u8]| {
        let back = words(&[cie.len() as u64 + 4], 4);
        cie.extend(entry(&[back, range.clone(), instructions.to_vec()].concat()));
        cie
    };
    let huge = [0xff_u8; 9];
    // DW_CFA_def_cfa_expression, of DW_OP_breg7 0 and DW_OP_skip -3, back to itself.
    let looping = [0x0f, 5, 0x77, 0, 0x2f, 0xfd, 0xff];
    // A loop in the expression of a register, with a branch that is taken.
    let branching = [0x10, 16, 5, 0x31, 0x28, 0xfc, 0xff, 0x96];
    let mut overlapping = Crafted::new(96 << 20);
    overlapping
        .segments
        .extend(vec![[PT_LOAD, 5, CODE_AT, 4096]; 60_000]);
    vec![
        ("entries that are their own CIE", frames(itself)),
        ("entries that are each other's CIE", frames(each_other)),
        (
            "an augmentation without end",
            frames(with_fde(cie(b"zPLR", &huge), &[])),
        ),
        (
            "an expression that loops",
            frames(with_fde(cie(b"", &[0x0c, 7, 8]), &looping)),
        ),
        (
            "a branch that loops",
            frames(with_fde(cie(b"", &[0x0c, 7, 8]), &branching)),
        ),
        ("segments on each other", overlapping),
    ]
}

/// Writes a file that is in order: the function `thunk`, and its name, megabytes behind it.
pub(super) fn ordinary(path: &Path) {
    let symbols = [function(0, 0), function(1, CODE_AT)].concat();
    let crafted = Crafted::new(96 << 20)
        .section(".text", [SHT_PROGBITS, 6, CODE_AT, 64, 0])
        .section(".symtab", [SHT_SYMTAB, 0, 48 << 20, symbols.len() as u64, 4])
        .section(".strtab", [SHT_STRTAB, 0, 47 << 20, 7, 0])
        .content(48 << 20, symbols)
        .content(47 << 20, b"\0thunk\0".to_vec());
    crafted.save(path);
}

/// Writes all of them, and returns the name and path of each.
pub(super) fn craft(directory: &Path) -> Vec<(&'static str, PathBuf)> {
    let all = HOLES.into_iter().flat_map(holes).chain(names()).chain(circles());
    let saved = all.enumerate().map(|(number, (name, crafted))| {
        let path = directory.join(format!("lib{number}.so"));
        crafted.save(&path);
        (name, path)
    });
    saved.collect()
}
