//! Real interpreters, which the tests ask for addresses and offsets, and files that were made unusable.

mod made;

use std::path::PathBuf;
use std::process::Command;

use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSymbol};

use super::*;

/// CPython in an executable at a fixed address (Debian's).
const INTERPRETER: &str = "/usr/bin/python3";
/// `FRAME_OWNED_BY_CSTACK`, in `bpf/python/layout.h`.
const OWNED_BY_C_STACK: u32 = 3;
/// Environment variable that names another interpreter, to compare another version with.
const OTHER: &str = "MEMLEAK_TEST_PYTHON";

fn interpreter() -> Command {
    Command::new(std::env::var_os(OTHER).map_or_else(|| INTERPRETER.into(), PathBuf::from))
}

/// A program with CPython in a library.
fn gdb() -> Command {
    let mut gdb = Command::new("/usr/bin/gdb");
    gdb.args(["-nx", "-batch", "-x"]);
    gdb
}

/// Lines that a script in the directory of these tests prints.
fn printed(mut program: Command, script: &str, arguments: &[String]) -> Vec<String> {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/python/tests/");
    let ran = program
        .arg(format!("{directory}{script}"))
        .args(arguments)
        .output();
    let ran = ran.expect("a program");
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{script}: {errors}");
    let text = String::from_utf8(ran.stdout).expect("UTF-8");
    text.lines().map(str::to_owned).collect()
}

fn found(bytes: &[u8]) -> PythonBuild {
    let found = PythonBuild::find(bytes).expect("a known version");
    found.expect("CPython")
}

/// Compares the addresses in a file with those in a process.
fn check(program: Command) {
    let lines = printed(program, "addresses.py", &[]);
    let [path, addresses, version] = &lines[..] else {
        panic!("{lines:?}");
    };
    let build = found(&std::fs::read(path).expect("the file"));
    let addresses = addresses
        .split(' ')
        .map(|address| address.parse().expect("a number"));
    let stated = [
        build.runtime,
        build.code_type,
        build.code_dealloc,
        build.evaluator.start,
    ];
    let biases: Vec<u64> = addresses
        .zip(stated)
        .map(|(address, stated): (u64, _)| address.wrapping_sub(stated.get()))
        .collect();
    assert_eq!(biases, [biases[0]; 4], "one bias: {build:?}");
    assert_eq!(biases[0] % 4096, 0, "{biases:x?}");
    assert!(
        version.starts_with(&build.version.to_string()),
        "{version}: {build:?}"
    );
    // In 3.14 and 3.15, Debian's compiler takes nearly all of it for unlikely, and places it elsewhere.
    let bytes = build.evaluator.end.offset_from(build.evaluator.start);
    assert!((500..200_000).contains(&bytes), "{bytes} bytes");
}

/// The addresses are those of a process, whether the file is loaded at a fixed address or not.
#[test]
fn addresses_are_those_of_a_process() {
    check(interpreter());
    check(gdb());
}

/// The layout of the installed version matches its interpreter: text, bytes, code, frames, its state.
#[test]
fn layout_is_that_of_the_interpreter() {
    let path = printed(interpreter(), "addresses.py", &[]).swap_remove(0);
    let build = found(&std::fs::read(path).expect("the file"));
    let Layout {
        minor,
        runtime,
        thread,
        frame,
        code,
        text,
        bytes,
        object_type,
        basic_sizes: _,
    } = &build.layout;
    let shim = (frame.entry == EntryMark::Shim).then_some(OWNED_BY_C_STACK);
    let offsets = [
        ("minor", Some(u32::from(*minor))),
        ("shim", shim),
        ("object.type", Some(*object_type)),
        ("runtime.key", runtime.key),
        ("runtime.current", runtime.current),
        ("runtime.next_interpreter", runtime.next_interpreter),
        ("thread.id", Some(thread.id)),
        ("thread.frame", Some(thread.frame)),
        ("thread.cframe_frame", thread.cframe_frame),
        ("thread.chunk", thread.chunk),
        ("thread.base", thread.base),
        ("frame.code", Some(frame.code)),
        ("frame.back", Some(frame.back)),
        ("frame.instruction", Some(frame.instruction)),
        ("frame.mark", Some(frame.mark)),
        ("frame.copy", frame.copy),
        ("code.name", Some(code.name)),
        ("code.file", Some(code.file)),
        ("code.first_line", Some(code.first_line)),
        ("code.line_table", Some(code.line_table)),
        ("code.bytecode", code.bytecode),
        ("code.copies", code.copies),
        ("text.length", Some(text.length)),
        ("text.state", Some(text.state)),
        ("text.state_shift", Some(text.state_shift)),
        ("text.ascii_data", Some(text.ascii_data)),
        ("text.compact_data", Some(text.compact_data)),
        ("bytes.length", Some(bytes.length)),
        ("bytes.data", Some(bytes.data)),
    ];
    let known = offsets
        .iter()
        .filter_map(|(name, offset)| Some((name, (*offset)?)));
    let arguments: Vec<String> = known.map(|(name, offset)| format!("{name}={offset}")).collect();
    let said = printed(interpreter(), "layout.py", &arguments);
    assert_eq!(said.len(), 1, "{said:?}");
    // `minor` and `shim` are no offsets.
    let compared = arguments.len() - 1 - usize::from(shim.is_some());
    assert!(said[0].starts_with(&format!("{compared} offsets")), "{said:?}");
}

/// All fields that are read of a frame are within `FrameFields::bytes`, and versions ascend without a gap.
#[test]
fn layouts_are_consistent() {
    for Layout { minor, frame, .. } in &LAYOUTS {
        let instruction = if *minor < 11 { 4 } else { 8 };
        for end in [
            frame.code + 8,
            frame.back + 8,
            frame.instruction + instruction,
            frame.mark + 1,
        ] {
            assert!(end <= frame.bytes(), "3.{minor}: {frame:?}");
        }
        assert_eq!(frame.bytes() % 8, 0, "3.{minor}");
    }
    let tables = LAYOUTS.iter().map(|layout| layout.minor);
    let described = DESCRIPTIONS.iter().map(|description| description.minor);
    let known: Vec<u8> = tables.chain(described).collect();
    assert!(known.is_sorted_by(|one, other| one + 1 == *other), "{known:?}");
}

/// A file of which parts can be changed.
struct Changed(Vec<u8>);

impl Changed {
    fn interpreter() -> Self {
        Self(std::fs::read(INTERPRETER).expect("an interpreter"))
    }

    /// Offset of a symbol's entry in the file, and the symbol's value.
    fn symbol(&self, name: &str) -> (usize, u64) {
        let file = ElfFile64::<LittleEndian>::parse(&self.0[..]).expect("an ELF file");
        let table = file.section_by_name(".dynsym").expect("symbols");
        let (start, _) = table.file_range().expect("it is in the file");
        let found = file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name));
        let found = found.expect("the symbol");
        let at = usize::try_from(start).expect("an offset") + 24 * found.index().0;
        (at, found.address())
    }

    /// Sets a symbol's value or size: the word at 8 or at 16 of its entry.
    fn with_symbol(mut self, name: &str, at: usize, value: u64) -> Self {
        let (entry, _) = self.symbol(name);
        self.0[entry + at..entry + at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }

    /// Sets bytes behind a symbol's address.
    fn with_data(mut self, name: &str, at: u64, bytes: &[u8]) -> Self {
        let (_, address) = self.symbol(name);
        let view = ElfView::parse(&self.0).expect("an ELF file");
        let offset = view.offset_of(Svma::new(address + at)).expect("in the file");
        let offset = usize::try_from(offset.get()).expect("an offset");
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn refusal(&self) -> String {
        let refused = PythonBuild::find(&self.0).expect_err("it is refused");
        refused.to_string()
    }
}

/// A version that is not known is refused by its name, and so is one that is not a release.
#[test]
fn other_versions_are_refused() {
    let with = |version: u32| {
        Changed::interpreter()
            .with_data("Py_Version", 0, &version.to_le_bytes())
            .refusal()
    };
    assert!(
        with(0x0310_00f0).contains("CPython 3.16.0 is not supported"),
        "{}",
        with(0x0310_00f0)
    );
    assert!(with(0x0308_14f0).contains("CPython 3.8.20 is not supported"));
    assert!(with(0x040b_00f0).contains("CPython 4.11.0 is not supported"));
    assert!(with(0x030b_00a3).contains("CPython 3.11.0 is a prerelease"));
    assert!(with(0).contains("0.0.0"));
}

/// A program without CPython, one that uses its library, and files that are not ELF have none.
#[test]
fn others_have_none() {
    let own = std::fs::read("/proc/self/exe").expect("own program");
    let gdb = std::fs::read("/usr/bin/gdb").expect("gdb");
    for bytes in [&own[..], &gdb, b"", b"\x7fELF", b"#!/usr/bin/python3\n"] {
        assert_eq!(PythonBuild::find(bytes), Ok(None));
    }
}

/// Offset of a type's own type.
fn own_type(build: &PythonBuild) -> u64 {
    build.layout.object_type.into()
}

/// A build whose layout differs from that of releases is refused, and the refusal names the difference.
#[test]
fn other_builds_are_refused() {
    let build = found(&Changed::interpreter().0);
    let version = build.version;
    // From 3.13 on, a build describes its frames itself, and they may have any size.
    let name = match build.layout.basic_sizes {
        [_, Some(_), _, _] => "PyFrame_Type",
        [_, None, _, _] => "PyBytes_Type",
    };
    let resized = Changed::interpreter().with_data(name, own_type(&build) + TYPE_BASIC_SIZE, &[0x90, 0]);
    assert_eq!(
        resized.refusal(),
        format!("CPython {version} is a custom build: the size of `{name}` differs from releases")
    );
    // Where each object has two more pointers (`Py_TRACE_REFS`), the name of a type is where its size was.
    let moved = Changed::interpreter().with_data("PyCode_Type", own_type(&build) + TYPE_NAME, &[0; 8]);
    assert!(moved.refusal().contains("`PyCode_Type`"));
}

/// Symbols that lead out of the file, or have impossible sizes, are refused.
#[test]
fn hostile_symbols_are_refused() {
    const VALUE: usize = 8;
    const SIZE: usize = 16;
    let usable = [
        "_PyRuntime",
        "PyCode_Type",
        "PyUnicode_Type",
        "_PyEval_EvalFrameDefault",
    ];
    for name in usable {
        for value in [0, 1, 1 << 40, u64::MAX, u64::MAX - 7] {
            let refusal = Changed::interpreter().with_symbol(name, VALUE, value).refusal();
            assert!(refusal.contains(name), "{value:#x}: {refusal}");
        }
    }
    for (name, size) in [
        ("_PyEval_EvalFrameDefault", 0),
        ("_PyEval_EvalFrameDefault", u64::MAX),
        ("_PyEval_EvalFrameDefault", MAX_EVALUATOR + 1),
        ("_PyRuntime", 0),
        ("_PyRuntime", u64::MAX),
    ] {
        let refusal = Changed::interpreter().with_symbol(name, SIZE, size).refusal();
        assert!(refusal.contains(name), "{size:#x}: {refusal}");
    }
    let at = own_type(&found(&Changed::interpreter().0)) + TYPE_DEALLOC;
    for value in [0, 0x40, 1 << 40, u64::MAX] {
        let value: u64 = value;
        let lost = Changed::interpreter().with_data("PyCode_Type", at, &value.to_le_bytes());
        assert!(lost.refusal().contains("no usable `PyCode_Type`"), "{value:#x}");
    }
    // The version's constant is not in the file.
    let lost = Changed::interpreter().with_symbol("Py_Version", VALUE, u64::MAX - 3);
    assert!(lost.refusal().contains("CPython 3.10"), "{}", lost.refusal());
}

/// A file that is cut anywhere is refused, has no CPython, or gives the same as the whole one.
#[test]
fn cut_files_are_harmless() {
    let whole = Changed::interpreter().0;
    let build = found(&whole);
    let mut kinds = [0; 3];
    let step = whole.len() / 300;
    for length in (0..200).chain((200..whole.len()).step_by(step)) {
        match PythonBuild::find(&whole[..length]) {
            Ok(None) => kinds[0] += 1,
            Err(_) => kinds[1] += 1,
            Ok(Some(found)) => {
                assert_eq!(found, build, "of {length} bytes");
                kinds[2] += 1;
            }
        }
    }
    assert!(kinds[0] > 200, "{kinds:?}");
}
