//! Files that are made to look like CPython of any version, linked in each way.

use std::fmt::Write as _;

use super::*;

/// A file with what is looked for.
struct Made {
    layout: &'static Layout,
    /// `Py_Version`, from 3.11 on.
    version: Option<u32>,
    /// Functions that came with versions before.
    since: &'static str,
    /// Words of `_Py_DebugOffsets`, by their offsets in bytes.
    described: Vec<(usize, u64)>,
    options: &'static [&'static str],
}

impl Made {
    fn of(minor: u8) -> Self {
        let layout = LAYOUTS.iter().find(|layout| layout.minor == minor);
        let layout = layout.expect("a known version");
        let known = described::offsets(layout)
            .into_iter()
            .map(|(at, _, known)| (at, known.map_or(0, u64::from)));
        let cookie = (0, u64::from_le_bytes(*described::COOKIE));
        Self {
            layout,
            version: (minor >= 11).then_some(0x0300_01f0 | u32::from(minor) << 16),
            since: match minor {
                9 => "void PyFrame_GetCode(void) {}",
                _ => "void PyFrame_GetCode(void) {} void Py_Is(void) {}",
            },
            described: if minor >= 13 {
                known.chain([cookie]).collect()
            } else {
                Vec::new()
            },
            options: &["-shared", "-fPIC"],
        }
    }

    fn with_described(mut self, at: usize, value: u64) -> Self {
        self.described.retain(|&(other, _)| other != at);
        self.described.push((at, value));
        self
    }

    fn source(&self) -> String {
        let mut source = "
            struct type { long head[3]; const char *name; long size, item; void (*dealloc)(void *); };
            static void dealloc(void *code) { *(void **)code = 0; }
            int _PyEval_EvalFrameDefault(int n) { return n; }
            int PyEval_EvalFrameEx(int n) { return n; }
            void _start(void) {}
        "
        .to_owned();
        source += self.since;
        for ((name, python_name), size) in TYPES.into_iter().zip(self.layout.basic_sizes) {
            let python_name = String::from_utf8_lossy(python_name).replace('\0', "");
            let name = name.text();
            _ = writeln!(
                source,
                "struct type {name} = {{{{1}}, \"{python_name}\", {size}, 0, dealloc}};"
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

/// Each version is known, by its constant or by what came with it.
#[test]
fn every_version() {
    for layout in &LAYOUTS {
        let build = found(&Made::of(layout.minor).bytes());
        assert_eq!((build.version.major, build.version.minor), (3, layout.minor));
        assert_eq!(build.version.micro, (layout.minor >= 11).then_some(1));
        assert_eq!(build.layout, layout);
    }
    let older = Made {
        since: "",
        ..Made::of(9)
    };
    assert_eq!(older.refusal(), Unsupported::Older);
}

/// The destructor is found however the file is linked: at fixed addresses, as a library, with packed relocations, without symbols that
/// nobody else needs.
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
        // The symbol of a `static` function, in a file of the same code that has it.
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

/// A build without a lock, and one that says that something is elsewhere, are refused.
#[test]
fn other_builds_by_their_own_description() {
    let version = found(&Made::of(13).bytes()).version;
    let free_threaded = Made::of(13).with_described(described::FREE_THREADED, 1);
    assert_eq!(free_threaded.refusal(), Unsupported::FreeThreaded(version));
    for (at, field, known) in described::offsets(Made::of(13).layout) {
        let known = known.map_or(0, u64::from);
        for other in [known + 8, known ^ 1 << 40] {
            let moved = Made::of(13).with_described(at, other);
            assert_eq!(moved.refusal(), Unsupported::Offset { version, field }, "{other}");
        }
    }
    let silent = Made::of(13).with_described(0, 0);
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
        (12, 13, "PyCode_Type"),
    ] {
        let refusal = made(minor, sizes_of).refusal().to_string();
        assert!(refusal.contains(differs), "3.{minor}: {refusal}");
    }
}
