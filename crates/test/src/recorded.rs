//! A process recorded while it stands still: registers, memory, and the tables that a session would publish.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use memleak_process::{MappedCode, Mappings, ModuleId, Modules, Target};
use unwind_tables::addr::Avma;
use unwind_tables::mapping::{ADDRESS_BITS, Identity, Mapping, MappingKind};
use unwind_tables::walk::{Registers, ReturnProbes, Tables, Unwind};
use unwind_tables::{Architecture, compile};

use super::host::Memory;
use super::program::directory_path;

/// Ways to build the program.
pub const BUILDS: [&[&str]; 3] = [
    &["-fomit-frame-pointer"],
    &["-static"],
    &["-fno-omit-frame-pointer"],
];

/// A recorded program with everything that a walk can meet in it.
pub struct Scene {
    pub program: Recorded,
    pub modules: Modules,
    pub mappings: Mappings,
    pub published: Published,
    pub memory: Memory,
}

impl Scene {
    /// Builds the program with `flags`, starts it, and records it.
    pub fn of(flags: &[&str]) -> Self {
        let program = start(&program(flags));
        let target = Target::open(program.pid()).expect("it runs");
        let mut modules = Modules::new();
        let mappings = target.read_mappings(&mut modules);
        let mappings = mappings.expect("its mappings can be read");
        Self {
            published: publish(&mappings, &modules),
            memory: record_memory(program.pid()),
            program,
            modules,
            mappings,
        }
    }
}

/// A process that is paused with the stack to walk; ended when dropped.
pub struct Recorded {
    child: Child,
    pub start: Registers,
}

impl Recorded {
    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Compiles the program, once for all tests.
fn program(flags: &[&str]) -> PathBuf {
    static BUILT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let mut built = BUILT.lock().expect("no build panicked");
    let program = directory_path("recorded").join(format!("recorded{}", flags.concat()));
    if built.insert(program.clone()) {
        compile_program(&program, flags);
    }
    program
}

fn compile_program(program: &Path, flags: &[&str]) {
    std::fs::create_dir_all(program.parent().expect("a directory")).expect("a new directory");
    let status = Command::new("gcc")
        .args([
            "-O2",
            "-mavx2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "tests/programs/stacks/recorded_stack.c",
            "-o",
        ])
        .arg(program)
        .args(flags)
        .status()
        .expect("gcc runs (apt-get install gcc)");
    assert!(status.success(), "the program compiles with {flags:?}");
}

fn start(program: &Path) -> Recorded {
    let mut command = Command::new(program);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let output = child.stdout.take().expect("it was piped");
    BufReader::new(output)
        .read_line(&mut line)
        .expect("the program prints its registers");
    let numbers: Vec<_> = line
        .split_whitespace()
        .map(|number| Avma::new(u64::from_str_radix(number, 16).expect("a number")))
        .collect();
    let &[pc, sp, fp] = numbers.as_slice() else {
        panic!("three registers in {line:?}")
    };
    Recorded {
        child,
        start: Registers::new(pc, sp, fp),
    }
}

/// Reads all memory of a process that can be read.
fn record_memory(pid: u32) -> Memory {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).expect("its maps can be read");
    let source = File::open(format!("/proc/{pid}/mem")).expect("its memory can be read");
    let mut memory = Memory::default();
    for entry in memleak_process::maps::parse(&maps).map(|entry| entry.expect("a well-formed line")) {
        let length = entry.range.end.offset_from(entry.range.start);
        let mut bytes = vec![0; usize::try_from(length).expect("it is mapped")];
        // Some mappings cannot be read; none that a stack needs.
        if entry.readable && source.read_exact_at(&mut bytes, entry.range.start.get()).is_ok() {
            memory.add(entry.range.start, bytes);
        }
    }
    memory
}

/// The tables of a process as the session would store and publish them.
pub struct Published {
    pub words: Vec<u32>,
    pub mappings: Vec<Mapping>,
}

impl Published {
    pub fn tables(&self) -> Tables<'_> {
        Tables {
            architecture: Architecture::X86_64,
            words: &self.words,
            mappings: &self.mappings,
            unwind: Unwind::Dwarf,
            changing: false,
            return_probes: ReturnProbes::default(),
        }
    }
}

fn publish(mappings: &Mappings, modules: &Modules) -> Published {
    let mut words = Vec::new();
    let mut stored: BTreeMap<ModuleId, Option<u32>> = BTreeMap::new();
    let mut list = Vec::new();
    for entry in mappings.entries() {
        let (kind, bias, image_at) = match entry.code {
            MappedCode::Module { module, bias } => {
                let at = *stored.entry(module).or_insert_with(|| {
                    let bytes = modules.get(module).expect("it is known").bytes();
                    let image = compile(bytes).expect("it is an ELF file").image?;
                    let at = u32::try_from(words.len()).expect("it is small");
                    words.extend_from_slice(image.words());
                    Some(at)
                });
                match at {
                    Some(at) => (MappingKind::Table, bias, at),
                    None => (MappingKind::NoCfi, bias, 0),
                }
            }
            MappedCode::Generated { .. } => (MappingKind::Anonymous, Default::default(), 0),
            MappedCode::Trampoline | MappedCode::Unreadable { .. } => continue,
        };
        if entry.range.end.get() >> ADDRESS_BITS == 0 {
            list.push(Mapping {
                start: entry.range.start,
                end: entry.range.end,
                bias,
                image_at,
                kind,
                identity: Identity::SETTLED,
            });
        }
    }
    Published {
        words,
        mappings: list,
    }
}
