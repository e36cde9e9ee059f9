//! Names of real files' code are those that independent readers find.

mod binutils;
mod damaged;
mod debug_files;
mod debuginfod;
mod folded;
mod forms;
mod names;
mod oracle;
mod removed;
mod supplementary;
mod variables;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use leak_report::model::Symbolized;
use memleak::symbolize::{CodeObject, Symbolizer};
use object::{Object, ObjectSection};
use unwind_tables::addr::Svma;

use memleak_test::program;

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

    /// Creates a subject for `file`, seen by a process that knows it as `path`.
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
        Some((symbol.name.to_string(), symbol.offset))
    }

    /// Addresses behind the calls in `.text`.
    fn return_addresses(&self) -> Vec<u64> {
        let is_call = |flow| matches!(flow, FlowControl::Call | FlowControl::IndirectCall);
        let mut code = self.instructions();
        code.retain(|instruction| is_call(instruction.flow_control()));
        code.iter().map(Instruction::next_ip).collect()
    }

    /// The instructions in `.text`.
    fn instructions(&self) -> Vec<Instruction> {
        let elf = object::File::parse(&*self.bytes).expect("an ELF file");
        let text = elf.section_by_name(".text").expect(".text");
        let code = text.data().expect("its bytes");
        let decoder = Decoder::with_ip(64, code, text.address(), DecoderOptions::NONE);
        decoder.into_iter().collect()
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
    program::directory(&format!("symbolize-{test}"))
}

fn source(name: &str) -> String {
    format!("{}/tests/programs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// `name`, a C++ program, compiled with `flags` into `directory`, which is where the compiler runs.
fn build(directory: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let (program, source) = (directory.join("program"), source(name));
    let arguments = [
        &["-O2", "-fno-omit-frame-pointer", "-o", text(&program), &source],
        flags,
    ]
    .concat();
    let status = Command::new("g++")
        .args(&arguments)
        .current_dir(directory)
        .status();
    assert!(status.expect("g++ runs").success(), "g++ {arguments:?}");
    program
}

/// `load.rs`, compiled with `flags` as `library`.
fn compile_rust_library(library: &Path, flags: &[&str]) {
    let usual = ["-g", "-O", "--crate-type=dylib", "-o", text(library)];
    run("rustc", &[&usual, flags, &[&source("load/load.rs")]].concat());
}

/// `symbols.cpp` with its debug information as it is. Compiled once: it takes seconds.
fn whole_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        build(
            &directory("whole"),
            "symbols/symbols.cpp",
            &["-g", "-Wl,--build-id"],
        )
    })
}

/// One function of an inline chain: name, file name and line.
type Level = (String, String, String);

fn base_name(file: &str) -> String {
    file.rsplit('/').next().unwrap_or(file).to_owned()
}

/// Converts a result of ours to an inline chain, with file names.
fn own_chain(found: &Symbolized) -> Vec<Level> {
    own_chain_by(found, base_name)
}

/// Converts a result of ours to an inline chain, with the part of each file's path that `part` takes.
fn own_chain_by(found: &Symbolized, part: impl Fn(&str) -> String) -> Vec<Level> {
    let unknown = || "??".to_owned();
    let level = |name: Option<&Arc<str>>, file: &Option<Arc<str>>, line: Option<u32>| {
        let file = file.as_deref().map_or_else(unknown, &part);
        let line = line.map_or("?".to_owned(), |line| line.to_string());
        (name.map_or_else(unknown, |name| name.to_string()), file, line)
    };
    let inlined = found.inlined.iter();
    let mut chain: Vec<Level> = inlined
        .map(|inlined| level(inlined.symbol.as_ref(), &inlined.file, inlined.line))
        .collect();
    let name = found.symbol.as_ref().map(|symbol| &symbol.name);
    chain.push(level(name, &found.file, found.line));
    chain
}

/// `program` without symbols and debug information, in `directory`.
fn strip(program: &Path, directory: &Path) -> PathBuf {
    let stripped = directory.join("stripped");
    run("strip", &["-o", text(&stripped), text(program)]);
    stripped
}

fn keep_debug(program: &Path, file: &Path) {
    fs::create_dir_all(file.parent().expect("a directory")).expect("a new directory");
    run("objcopy", &["--only-keep-debug", text(program), text(file)]);
}

/// The build-id of `program`, in hexadecimal digits.
fn build_id(program: &Path) -> String {
    let bytes = fs::read(program).expect("the program");
    let elf = object::File::parse(&*bytes).expect("an ELF file");
    let id = elf.build_id().expect("notes").expect("a build-id");
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Place of the debug file with the build-id of `program`, below the directory of debug files.
fn build_id_path(program: &Path) -> PathBuf {
    let hex = build_id(program);
    PathBuf::from(format!(".build-id/{}/{}.debug", &hex[..2], &hex[2..]))
}

/// Checks that what is known of a program in another form is what the program itself says, at some of its
/// calls.
#[track_caller]
fn check_same_names(whole: &Path, other: &mut Subject) {
    let mut whole = Subject::new(whole);
    let addresses = whole.return_addresses();
    assert!(addresses.len() > 4);
    let step = addresses.len() / 100 + 1;
    for address in addresses.into_iter().step_by(step) {
        assert_eq!(
            *other.at(address, false),
            *whole.at(address, false),
            "at {address:#x}"
        );
    }
}

#[track_caller]
fn check_no_names(stripped: &mut Subject) {
    for address in stripped.return_addresses() {
        let found = stripped.at(address, false);
        assert_eq!(own_chain(&found).len(), 1, "at {address:#x}");
        assert_eq!(found.file, None, "at {address:#x}");
    }
}

fn library(name: &str) -> PathBuf {
    let path = run("g++", &[&format!("-print-file-name={name}")]);
    fs::canonicalize(path.trim()).expect(name)
}
