//! Names of real files' code: compared with what binutils, an independent reader, say. No root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use memleak::symbolize::{CodeObject, Gap, Symbolized, Symbolizer};
use object::{Object, ObjectSection};
use unwind_tables::addr::Svma;

/// A file to symbolize, and the roots to look for its debug file in.
struct Subject {
    bytes: Vec<u8>,
    path: PathBuf,
    symbolizer: Symbolizer,
}

impl Subject {
    fn new(file: &Path) -> Self {
        Self::in_root(file, file, Vec::new())
    }

    /// `file` as a process sees it that knows it as `path`.
    fn in_root(file: &Path, path: &Path, roots: Vec<PathBuf>) -> Self {
        Self {
            bytes: fs::read(file).expect("a readable file"),
            path: path.to_owned(),
            symbolizer: Symbolizer::new(roots),
        }
    }

    fn at(&mut self, svma: u64, exact: bool) -> Arc<Symbolized> {
        let object = CodeObject {
            key: 0,
            path: &self.path,
            bytes: &self.bytes,
        };
        self.symbolizer.symbolize(object, Svma::new(svma), exact)
    }

    fn name(&mut self, svma: u64, exact: bool) -> Option<(String, Option<u64>)> {
        let symbol = self.at(svma, exact).symbol.clone()?;
        Some((symbol.name, symbol.offset))
    }

    /// Addresses behind the calls in `.text`.
    fn return_addresses(&self) -> Vec<u64> {
        let elf = object::File::parse(&*self.bytes).expect("an ELF file");
        let text = elf.section_by_name(".text").expect(".text");
        let code = text.data().expect("its bytes");
        let decoder = Decoder::with_ip(64, code, text.address(), DecoderOptions::NONE);
        let is_call = |flow| matches!(flow, FlowControl::Call | FlowControl::IndirectCall);
        let calls = decoder
            .into_iter()
            .filter(|instruction| is_call(instruction.flow_control()));
        calls.map(|instruction| instruction.next_ip()).collect()
    }
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect(program);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// An empty directory for one test.
fn directory(test: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("symbolize-{test}"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).expect("a new directory");
    directory
}

/// `inlined.cpp`, compiled with `flags` into `directory`.
fn build(directory: &Path, flags: &[&str]) -> PathBuf {
    let program = directory.join("program");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/inlined.cpp");
    let arguments = [
        &["-O2", "-fno-omit-frame-pointer", "-o", text(&program), source],
        flags,
    ]
    .concat();
    run("g++", &arguments);
    program
}

/// One function of an inline chain: name, file name and line.
type Level = (String, String, String);

/// What `addr2line` says of the call before `address`, innermost function first.
fn binutils_chain(file: &Path, address: u64) -> Vec<Level> {
    let lookup = format!("{:#x}", address - 1);
    let output = run("addr2line", &["-i", "-f", "-C", "-e", text(file), &lookup]);
    let lines: Vec<&str> = output.lines().collect();
    let level = |pair: &[&str]| {
        let place = pair[1].split(" (discriminator").next().expect("split gives one");
        let (file, line) = place.rsplit_once(':').expect("file:line");
        (pair[0].to_owned(), base_name(file), line.to_owned())
    };
    lines.chunks_exact(2).map(level).collect()
}

fn base_name(file: &str) -> String {
    file.rsplit('/').next().unwrap_or(file).to_owned()
}

/// The same from our side.
fn own_chain(found: &Symbolized) -> Vec<Level> {
    let unknown = || "??".to_owned();
    let level = |name: Option<&String>, file: &Option<String>, line: Option<u32>| {
        let file = file.as_deref().map_or_else(unknown, base_name);
        let line = line.map_or("?".to_owned(), |line| line.to_string());
        (name.cloned().unwrap_or_else(unknown), file, line)
    };
    let inlined = found.inlined.iter();
    let mut chain: Vec<Level> = inlined
        .map(|inlined| level(inlined.symbol.as_ref(), &inlined.file, inlined.line))
        .collect();
    let name = found.symbol.as_ref().map(|symbol| &symbol.name);
    chain.push(level(name, &found.file, found.line));
    chain
}

/// The value of a symbol in the dynamic table, by `nm`.
fn dynamic_symbol(file: &Path, name: &str) -> u64 {
    let listing = run("nm", &["-D", "--defined-only", text(file)]);
    let line = listing.lines().find(|line| {
        let symbol = line.rsplit(' ').next().unwrap_or("");
        symbol.split('@').next() == Some(name)
    });
    let value = line.and_then(|line| line.split(' ').next()).expect(name);
    u64::from_str_radix(value, 16).expect("a number")
}

fn library(name: &str) -> PathBuf {
    let path = run("g++", &[&format!("-print-file-name={name}")]);
    fs::canonicalize(path.trim()).expect(name)
}

/// Public functions of the system's libraries come out under the names in their documentation, from entry to
/// inside; a return address names the function of the call before it.
#[test]
fn system_libraries() {
    let cases = [
        ("libstdc++.so.6", "_Znwm", "operator new(unsigned long)"),
        ("libc.so.6", "malloc", "malloc"),
        ("libc.so.6", "__libc_start_main", "__libc_start_main"),
    ];
    for (file, linker_name, shown) in cases {
        let file = library(file);
        let start = dynamic_symbol(&file, linker_name);
        let mut subject = Subject::new(&file);
        let name = |offset| Some((shown.to_owned(), Some(offset)));
        assert_eq!(subject.name(start, true), name(0));
        assert_eq!(subject.name(start + 0x1a, true), name(0x1a));
        assert_eq!(subject.name(start + 1, false), name(1));
        assert_ne!(subject.name(start, false), name(0));
    }
}

/// For each call of a program built by `flags`, names, inlined functions, files and lines are binutils'.
#[track_caller]
fn check_against_binutils(test: &str, flags: &[&str]) {
    let program = build(&directory(test), flags);
    let mut subject = Subject::new(&program);
    let mut depths = Vec::new();
    for address in subject.return_addresses() {
        let (found, expected) = (subject.at(address, false), binutils_chain(&program, address));
        // Where there are no lines, binutils names the file after the symbol table's last file symbol.
        let has_lines = expected.last().is_some_and(|(_, file, _)| file == "inlined.cpp");
        match has_lines {
            true => assert_eq!(own_chain(&found), expected, "{flags:?} at {address:#x}"),
            false => assert_eq!(own_chain(&found)[0].0, expected[0].0, "{flags:?} at {address:#x}"),
        }
        depths.push(found.inlined.len());
    }
    assert!(
        depths.iter().filter(|&&depth| depth == 2).count() >= 2,
        "{flags:?}: {depths:?}"
    );
}

/// Inlined functions and lines, by each version of DWARF that compilers write.
#[test]
fn lines_are_those_of_binutils() {
    check_against_binutils("dwarf5", &["-g", "-gdwarf-5"]);
    check_against_binutils("dwarf4", &["-g", "-gdwarf-4"]);
    check_against_binutils("sections", &["-g", "-ffunction-sections"]);
}

/// Compressed debug sections are read.
#[test]
fn compressed_sections() {
    check_against_binutils("zlib", &["-g", "-gz=zlib"]);
}

/// The innermost inlined function comes first, and the address belongs to the function that holds it.
#[test]
fn an_inline_chain() {
    let program = build(&directory("chain"), &["-g"]);
    let mut subject = Subject::new(&program);
    let chains: Vec<Vec<Level>> = subject
        .return_addresses()
        .into_iter()
        .map(|address| own_chain(&subject.at(address, false)))
        .collect();
    let level = |name: &str, line: &str| (name.to_owned(), "inlined.cpp".to_owned(), line.to_owned());
    let expected = vec![
        level("store::Cache::grow(unsigned long)", "11"),
        level("store::Cache::add(int)", "17"),
        level("fill(store::Cache&, int)", "24"),
    ];
    assert!(chains.contains(&expected), "{chains:#?}");
}

/// Checks that a stripped program and its debug file together say what the program said.
#[track_caller]
fn check_same_names(whole: &Path, stripped: &mut Subject) {
    let mut whole = Subject::new(whole);
    let addresses = whole.return_addresses();
    assert!(addresses.len() > 4);
    for address in addresses {
        assert_eq!(
            *stripped.at(address, false),
            *whole.at(address, false),
            "at {address:#x}"
        );
    }
}

#[track_caller]
fn check_no_names(stripped: &mut Subject) {
    for address in stripped.return_addresses() {
        assert_eq!(
            own_chain(&stripped.at(address, false)).len(),
            1,
            "at {address:#x}"
        );
        assert_eq!(stripped.at(address, false).file, None, "at {address:#x}");
    }
}

/// `program` without symbols and debug information, beside it.
fn strip(program: &Path) -> PathBuf {
    let stripped = program.with_file_name("stripped");
    run("strip", &["-o", text(&stripped), text(program)]);
    stripped
}

/// Where the debug file with the build-id of `program` lies.
fn build_id_path(program: &Path) -> PathBuf {
    let bytes = fs::read(program).expect("the program");
    let elf = object::File::parse(&*bytes).expect("an ELF file");
    let id = elf.build_id().expect("notes").expect("a build-id");
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    PathBuf::from(format!(".build-id/{}/{}.debug", &hex[..2], &hex[2..]))
}

fn keep_debug(program: &Path, file: &Path) {
    fs::create_dir_all(file.parent().expect("a directory")).expect("a new directory");
    run("objcopy", &["--only-keep-debug", text(program), text(file)]);
}

/// A stripped program's names come from the debug file with its build-id, under the root it belongs to, and a
/// debug file with another build-id at that place is not used.
#[test]
fn debug_file_by_build_id() {
    let directory = directory("build-id");
    let program = build(&directory, &["-g", "-Wl,--build-id"]);
    let stripped = strip(&program);
    let (empty, root) = (directory.join("empty"), directory.join("root"));
    fs::create_dir_all(&empty).expect("a new directory");
    let path = Path::new("/opt/program");
    check_no_names(&mut Subject::in_root(&stripped, path, vec![empty.clone()]));

    let place = root.join("usr/lib/debug").join(build_id_path(&program));
    keep_debug(&program, &place);
    check_same_names(
        &program,
        &mut Subject::in_root(&stripped, path, vec![empty.clone(), root.clone()]),
    );

    let other = build(
        &self::directory("build-id-other"),
        &["-g", "-O1", "-Wl,--build-id"],
    );
    keep_debug(&other, &place);
    check_no_names(&mut Subject::in_root(&stripped, path, vec![root]));
}

/// An absolute link in a root is a path in that root.
#[test]
fn debug_directory_behind_a_link() {
    let directory = directory("link");
    let program = build(&directory, &["-g", "-Wl,--build-id"]);
    let stripped = strip(&program);
    let root = directory.join("root");
    keep_debug(&program, &root.join("elsewhere").join(build_id_path(&program)));
    fs::create_dir_all(root.join("usr/lib")).expect("a new directory");
    std::os::unix::fs::symlink("/elsewhere", root.join("usr/lib/debug")).expect("a new link");
    check_same_names(
        &program,
        &mut Subject::in_root(&stripped, Path::new("/p"), vec![root]),
    );
}

/// Without a build-id the linked file is used from each place it may lie in, if its checksum is right.
#[test]
fn debug_file_by_link() {
    let directory = directory("debuglink");
    let program = build(&directory, &["-g", "-Wl,--build-id=none"]);
    let stripped = strip(&program);
    let debug = directory.join("program.debug");
    keep_debug(&program, &debug);
    run(
        "objcopy",
        &[&format!("--add-gnu-debuglink={}", text(&debug)), text(&stripped)],
    );
    let path = Path::new("/opt/bin/program");
    for place in ["opt/bin", "opt/bin/.debug", "usr/lib/debug/opt/bin"] {
        let root = directory.join("roots").join(place.replace('/', "-"));
        let file = root.join(place).join("program.debug");
        keep_debug(&program, &file);
        check_same_names(
            &program,
            &mut Subject::in_root(&stripped, path, vec![root.clone()]),
        );

        let mut bytes = fs::read(&file).expect("the debug file");
        bytes.push(0);
        fs::write(&file, bytes).expect("a changed debug file");
        check_no_names(&mut Subject::in_root(&stripped, path, vec![root]));
    }
}

/// Rust names come out without their hash.
#[test]
fn rust_symbol() {
    std::hint::black_box(rust_landmark as fn() -> u32)();
    let own = std::env::current_exe().expect("this test");
    let listing = run("nm", &[text(&own)]);
    let line = listing
        .lines()
        .find(|line| line.contains("rust_landmark"))
        .expect("the landmark");
    let start = u64::from_str_radix(line.split(' ').next().expect("a value"), 16).expect("a number");
    let mut subject = Subject::new(&own);
    assert_eq!(
        subject.name(start, true),
        Some(("symbolize::rust_landmark".to_owned(), Some(0)))
    );
    assert!(
        subject
            .at(start, true)
            .file
            .as_deref()
            .is_some_and(|file| file.ends_with("symbolize.rs"))
    );
}

#[inline(never)]
fn rust_landmark() -> u32 {
    std::hint::black_box(7)
}

/// Addresses outside all symbols have no name, and the reason says so.
#[test]
fn outside_all_symbols() {
    let libc = library("libc.so.6");
    let mut subject = Subject::new(&libc);
    for address in [0, 1, 0x40, u64::MAX, 1 << 46] {
        let found = subject.at(address, true);
        assert_eq!(
            (&found.symbol, found.gap),
            (&None, Some(Gap::NotInSymbol)),
            "at {address:#x}"
        );
    }
}

/// A file that is no ELF file, or a damaged one, gives no names; it does not end the program.
#[test]
fn damaged_files() {
    let program = build(&directory("damaged"), &["-g"]);
    let whole = Subject::new(&program);
    let addresses = whole.return_addresses();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..300 {
        let mut damaged = Subject::new(&program);
        for _ in 0..8 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let at = usize::try_from(random >> 33).expect("31 bits") % damaged.bytes.len();
            damaged.bytes[at] = random.to_le_bytes()[3];
        }
        if round % 3 == 0 {
            let length = damaged.bytes.len() * round / 300;
            damaged.bytes.truncate(length);
        }
        for &address in &addresses {
            damaged.at(address, false);
        }
    }
    let mut nothing = Subject {
        bytes: b"#!/bin/sh\n".to_vec(),
        ..whole
    };
    assert_eq!(nothing.at(0x1000, false).gap, Some(Gap::Unreadable));
}

/// Debug information nested deeper than this program's stack is refused, and symbols still name the code.
#[test]
fn endless_nesting_is_refused() {
    let file = directory("nesting").join("nested.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/nested_debug_info.s");
    run("gcc", &["-shared", "-nostdlib", "-o", text(&file), source]);
    let victim = dynamic_symbol(&file, "victim");
    let found = Subject::new(&file).at(victim + 4, true);
    assert_eq!(own_chain(&found)[0].0, "victim");
    assert_eq!(found.gap, Some(Gap::Malformed));
}
