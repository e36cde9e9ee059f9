//! Files that are made to look like CPython of any version, linked in each way.

use std::fmt::Write as _;

use super::super::described::{self, DESCRIPTIONS};
use super::super::layout::{BytesFields, CodeFields, FrameFields, RuntimeFields, TextFields, ThreadFields};
use super::*;

/// A file with the symbols and structures that are looked for.
struct Made {
    layout: Layout,
    /// `Py_Version`, from 3.11 on.
    version: Option<u32>,
    /// Functions by which versions before 3.11 are recognized.
    since: &'static str,
    /// Words of `_Py_DebugOffsets`, by their offsets in bytes.
    described: Vec<(usize, u64)>,
    options: &'static [&'static str],
}

/// The layout of a version that describes itself, as its headers have it.
fn in_headers(minor: u8, is_free_threaded: bool) -> Layout {
    // Objects have 16 bytes more: their thread, and locks of their own.
    let more = if is_free_threaded { 16 } else { 0 };
    let of_3_12 = LAYOUTS[3];
    let has_copies = is_free_threaded && minor > 13;
    let bytecode = [192, 200, 208, 208][usize::from(minor) - 12] + more + if has_copies { 8 } else { 0 };
    Layout {
        minor,
        object_type: of_3_12.object_type + more,
        runtime: RuntimeFields {
            key: [Some(2164), Some(2340), None][usize::from(minor) - 13],
            ..of_3_12.runtime
        },
        thread: ThreadFields {
            id: if minor > 14 { 176 } else { 152 },
            frame: 72,
            cframe_frame: None,
            chunk: Some(if minor > 14 { 256 } else { 232 }),
            base: (minor > 14).then_some(80),
        },
        frame: FrameFields {
            mark: match (minor, is_free_threaded) {
                (13, _) => 70,
                (_, false) => 74,
                (_, true) => 78,
            },
            copy: has_copies.then_some(72),
            ..of_3_12.frame
        },
        code: CodeFields {
            name: 128 + more,
            file: 112 + more,
            first_line: 68 + more,
            line_table: 136 + more,
            bytecode: Some(bytecode),
            copies: has_copies.then_some(224),
            ..of_3_12.code
        },
        text: TextFields {
            length: 16 + more,
            state: 32 + more,
            state_shift: if has_copies { 6 } else { 0 },
            ascii_data: 40 + more,
            compact_data: 56 + more,
        },
        bytes: BytesFields {
            length: 16 + more,
            data: 32 + more,
        },
        basic_sizes: [Some(bytecode), None, Some(64 + more), Some(33 + more)],
    }
}

/// Words of `_Py_DebugOffsets` that describe this layout.
fn describing(layout: Layout, is_free_threaded: bool) -> Vec<(usize, u64)> {
    let of = |known: &&Description| known.minor == layout.minor;
    let Some(description) = DESCRIPTIONS.iter().find(of) else {
        return Vec::new();
    };
    let words = description.words(is_free_threaded).map(|(at, described)| {
        let mut layout = layout;
        (at, u64::from(*(described.field)(&mut layout)))
    });
    let version = u64::from(version_of(layout.minor));
    let head = [
        (0, u64::from_le_bytes(*described::COOKIE)),
        (described::VERSION, version),
        (described::FREE_THREADED, is_free_threaded.into()),
    ];
    words.chain(head).collect()
}

fn version_of(minor: u8) -> u32 {
    0x0300_01f0 | u32::from(minor) << 16
}

impl Made {
    fn of(minor: u8) -> Self {
        match LAYOUTS.iter().find(|layout| layout.minor == minor) {
            Some(layout) => Self::with(*layout, false),
            None => Self::with(in_headers(minor, false), false),
        }
    }

    fn free_threaded(minor: u8) -> Self {
        Self::with(in_headers(minor, true), true)
    }

    fn with(layout: Layout, is_free_threaded: bool) -> Self {
        Self {
            layout,
            version: (layout.minor >= 11).then_some(version_of(layout.minor)),
            since: match layout.minor {
                9 => "void PyFrame_GetCode(void) {}",
                _ => "void PyFrame_GetCode(void) {} void Py_Is(void) {}",
            },
            described: describing(layout, is_free_threaded),
            options: &["-shared", "-fPIC"],
        }
    }

    fn with_described(mut self, at: usize, value: u64) -> Self {
        self.described.retain(|&(other, _)| other != at);
        self.described.push((at, value));
        self
    }

    fn source(&self) -> String {
        // Behind its type, each type has a length, its name, sizes, and its destructor.
        let head = self.layout.object_type / 8;
        let mut source = format!(
            "struct type {{ long head[{head}], type, length; const char *name; long size, item; void (*dealloc)(void *); }};"
        );
        source += "
            static void dealloc(void *code) { *(void **)code = 0; }
            int _PyEval_EvalFrameDefault(int n) { return n; }
            int PyEval_EvalFrameEx(int n) { return n; }
            void _start(void) {}
            static __thread long noted;
            long PyGILState_GetThisThreadState(void) { return noted; }
            void note(long state) { noted = state; }
        ";
        source += self.since;
        for ((name, python_name), size) in TYPES.into_iter().zip(self.layout.basic_sizes) {
            let python_name = String::from_utf8_lossy(python_name).replace('\0', "");
            let name = name.text();
            let size = size.unwrap_or(1);
            _ = writeln!(
                source,
                "struct type {name} = {{{{1}}, 1, 1, \"{python_name}\", {size}, 0, dealloc}};"
            );
        }
        if let Some(version) = self.version {
            _ = writeln!(source, "const unsigned long Py_Version = {version};");
        }
        let words = self
            .described
            .iter()
            .map(|(at, value)| format!("[{}] = {value}u,", at / 8));
        let words: String = words.collect();
        _ = writeln!(
            source,
            "unsigned long _PyRuntime[1000] = {{ {words} [999] = 1 }};"
        );
        source
    }

    fn bytes(&self) -> Vec<u8> {
        let directory = tempfile::tempdir().expect("a directory");
        let [source, object] = ["python.c", "python"].map(|name| directory.path().join(name));
        std::fs::write(&source, self.source()).expect("written");
        let mut gcc = Command::new("gcc");
        let made = gcc
            .args(["-w", "-O1", "-nostdlib", "-rdynamic"])
            .args(self.options);
        let made = made.arg("-o").args([&object, &source]).status();
        assert!(made.expect("gcc").success(), "{}", self.source());
        std::fs::read(object).expect("an object")
    }

    fn refusal(&self) -> Unsupported {
        PythonBuild::find(&self.bytes()).expect_err("it is refused")
    }
}

/// Each version is known, by its constant or by functions that came with it.
#[test]
fn every_version() {
    for minor in 9..=15 {
        let made = Made::of(minor);
        let build = found(&made.bytes());
        assert_eq!((build.version.major, build.version.minor), (3, minor));
        assert_eq!(build.version.micro, (minor >= 11).then_some(1));
        assert_eq!(build.layout, made.layout);
        assert_eq!(build.noted == Noted::Key, minor < 15, "{:?}", build.noted);
    }
    let older = Made {
        since: "",
        ..Made::of(9)
    };
    assert_eq!(older.refusal(), Unsupported::Older);
}

/// A version without a lock has its own layout, as it describes it.
#[test]
fn every_version_without_a_lock() {
    for minor in 13..=15 {
        let made = Made::free_threaded(minor);
        assert_eq!(found(&made.bytes()).layout, made.layout);
    }
}

/// From 3.13 on, a version states whether it has a lock, also an unknown version; no other file counts as
/// having one.
#[test]
fn locks() {
    let next = Made {
        version: Some(version_of(16)),
        ..Made::of(15)
    };
    for made in [Made::of(13), Made::of(15), next] {
        assert!(has_lock(&made.bytes()));
    }
    let other = Made::of(14).with_described(0, 0);
    for made in [
        Made::of(12),
        Made::free_threaded(13),
        Made::free_threaded(15),
        other,
    ] {
        assert!(!has_lock(&made.bytes()));
    }
    assert!(!has_lock(
        &std::fs::read(std::env::current_exe().expect("this program")).expect("its file")
    ));
}

/// The next version is refused, with a remedy, and so is one whose description is of another version.
#[test]
fn versions_to_come() {
    let next = Made {
        version: Some(version_of(16)),
        ..Made::of(15)
    };
    assert_eq!(
        next.refusal().to_string(),
        "CPython 3.16.1 is not supported: this memleak reads frames of 3.9 to 3.15"
    );
    let remedy = next.refusal().remedy();
    assert!(remedy.is_some_and(|remedy| remedy.contains("newer memleak")));
    let other = Made::of(15).with_described(described::VERSION, version_of(16).into());
    let refusal = other.refusal().to_string();
    assert!(refusal.contains("`_Py_DebugOffsets.version`"), "{refusal}");
}

/// The place of a thread's state is found however the file is linked.
#[test]
fn every_way_to_the_state() {
    let noted = |options| {
        let made = Made {
            options,
            ..Made::of(15)
        };
        found(&made.bytes()).noted
    };
    let in_program = noted(&["-no-pie", "-fno-pic"]);
    assert!(
        matches!(in_program, Noted::Fixed { distance } if distance < 0),
        "{in_program:?}"
    );
    let from_start = noted(&["-shared", "-fPIC", "-ftls-model=initial-exec"]);
    assert!(matches!(from_start, Noted::Distance { .. }), "{from_start:?}");
    const GLOBAL: &[&str] = &["-shared", "-fPIC", "-ftls-model=global-dynamic"];
    const LOCAL: &[&str] = &["-shared", "-fPIC", "-ftls-model=local-dynamic"];
    for options in [GLOBAL, LOCAL] {
        let later = noted(options);
        assert!(matches!(later, Noted::Object { offset: 0, .. }), "{later:?}");
    }
}

/// The destructor is found however the file is linked: at fixed addresses, position-independent, as a
/// stripped library, with packed relocations, statically.
#[test]
fn every_linkage() {
    let ways: [&[&str]; 5] = [
        &["-no-pie", "-fno-pic"],
        &["-pie", "-fPIE"],
        &["-shared", "-fPIC", "-s"],
        &["-shared", "-fPIC", "-Wl,-z,pack-relative-relocs"],
        &["-static", "-no-pie"],
    ];
    for options in ways {
        let made = Made {
            options,
            ..Made::of(12)
        };
        // Compare with the symbol of the `static` function, which a stripped file does not have.
        let elf = made.bytes();
        let build = found(&elf);
        let file = object::File::parse(&elf[..]).expect("an ELF file");
        let local = file.symbols().find(|symbol| symbol.name() == Ok("dealloc"));
        let is_stripped = options.contains(&"-s");
        assert_eq!(local.is_none(), is_stripped, "{options:?}");
        let expected = local.map_or(build.code_dealloc, |symbol| Svma::new(symbol.address()));
        assert_eq!(build.code_dealloc, expected, "{options:?}");
    }
}

/// A build's own description is used if its offsets are aligned, and within what is read.
#[test]
fn other_builds_by_their_own_description() {
    let made = || Made::free_threaded(14);
    let version = found(&made().bytes()).version;
    let moved = made().with_described(208, 80);
    assert_eq!(found(&moved.bytes()).layout.thread.frame, 80);
    let of_14 = DESCRIPTIONS.iter().find(|description| description.minor == 14);
    let mut words = 0;
    for (at, described) in of_14.expect("it is known").words(true) {
        let field = described.name;
        for other in [0x1000, 1 << 40, u64::MAX] {
            let refusal = made().with_described(at, other).refusal();
            assert_eq!(refusal, Unsupported::Offset { version, field }, "{other}");
        }
        words += 1;
    }
    assert_eq!(words, 20);
    let field = "_Py_DebugOffsets.free_threaded";
    let unknown = made().with_described(described::FREE_THREADED, 2);
    assert_eq!(unknown.refusal(), Unsupported::Offset { version, field });
    let silent = made().with_described(0, 0);
    let field = "_PyRuntime.debug_offsets";
    assert_eq!(silent.refusal(), Unsupported::Offset { version, field });
}

/// Types of another size are refused, by their name.
#[test]
fn every_size_is_compared() {
    let made = |minor, sizes_of| Made {
        layout: Made::of(sizes_of).layout,
        ..Made::of(minor)
    };
    for (minor, sizes_of, differs) in [
        (9, 10, "PyFrame_Type"),
        (10, 9, "PyFrame_Type"),
        (11, 12, "PyCode_Type"),
    ] {
        let refusal = made(minor, sizes_of).refusal().to_string();
        assert!(refusal.contains(differs), "3.{minor}: {refusal}");
    }
}
