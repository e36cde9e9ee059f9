//! Both walks over a recorded process: real objects, real stacks, a signal frame, a realigned frame, libc's
//! callbacks. The process only has to be one's own: no tracing, no kernel side.

mod common;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::host::{HostWalk, Memory};
use memleak::target::{MappedCode, Mappings, ModuleId, Modules, Target};
use unwind_tables::addr::Avma;
use unwind_tables::compile;
use unwind_tables::mapping::Identity;
use unwind_tables::walk::{
    ADDRESS_BITS, End, FoundBy, Mapping, MappingKind, Registers, Stack, Tables, Unwind, walk,
};

/// A program that stands still with the stack to walk, and is ended with the test.
struct Recorded {
    child: Child,
    start: Registers,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn compile_program(flags: &[&str]) -> PathBuf {
    let name = format!("recorded{}", flags.concat());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let status = Command::new("gcc")
        .args([
            "-O2",
            "-mavx2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "tests/programs/recorded_stack.c",
            "-o",
        ])
        .arg(&program)
        .args(flags)
        .status()
        .expect("gcc runs (apt-get install gcc)");
    assert!(status.success(), "the program compiles with {flags:?}");
    program
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

/// All memory of a process that can be read.
fn record_memory(pid: u32) -> Memory {
    let maps = std::fs::read(format!("/proc/{pid}/maps")).expect("its maps can be read");
    let source = File::open(format!("/proc/{pid}/mem")).expect("its memory can be read");
    let mut memory = Memory::default();
    for entry in memleak::target::maps::parse(&maps).map(|entry| entry.expect("a well-formed line")) {
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
struct Published {
    words: Vec<u32>,
    mappings: Vec<Mapping>,
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
            MappedCode::Anonymous => (MappingKind::Anonymous, Default::default(), 0),
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

/// Names of the frames' functions, from the module's own symbol table by an independent reader.
fn functions(stack: &Stack, mappings: &Mappings, modules: &Modules) -> Vec<String> {
    let name = |frame: &unwind_tables::walk::Frame| {
        let code = frame.pc.wrapping_sub(u64::from(!frame.exact));
        let MappedCode::Module { module, bias } = mappings.find(code).expect("a frame is mapped").code else {
            return "?".to_owned();
        };
        let path = &modules.get(module).expect("it is known").path;
        let output = Command::new("addr2line")
            .args(["-f", "-e"])
            .arg(path)
            .arg(format!("{:#x}", bias.to_svma(code)))
            .output()
            .expect("addr2line runs (apt-get install binutils)");
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().next().unwrap_or("?").to_owned()
    };
    stack.frames.iter().map(name).collect()
}

/// The reference walk finds the whole stack, and the C walk the same, with a cold and a warm cache and with each
/// of its reads failing in turn.
#[test]
fn recorded_walks_are_equal_and_complete() {
    let mut host = HostWalk::build();
    for flags in [
        &["-fomit-frame-pointer"][..],
        &["-static"],
        &["-fno-omit-frame-pointer"],
    ] {
        let program = start(&compile_program(flags));
        let pid = program.child.id();
        let target = Target::open(pid).expect("it runs");
        let mut modules = Modules::new();
        let mappings = target
            .read_mappings(&mut modules)
            .expect("its mappings can be read");
        let published = publish(&mappings, &modules);
        let mut memory = record_memory(pid);
        let tables = Tables {
            words: &published.words,
            mappings: &published.mappings,
            unwind: Unwind::Dwarf,
            changing: false,
        };

        let mut slots = Vec::new();
        let reference = walk(tables, program.start, |slot| {
            slots.push(slot);
            memory.word(slot)
        });
        assert_eq!(reference.end, End::Complete, "{flags:?}: {reference:x?}");
        assert_eq!(
            count(&reference, FoundBy::Fp),
            0,
            "{flags:?}: nothing here lacks CFI"
        );
        if flags != ["-static"] {
            check_functions(&functions(&reference, &mappings, &modules));
        }

        for unwind in [Unwind::Dwarf, Unwind::Fp] {
            let tables = Tables { unwind, ..tables };
            for fault in std::iter::once(None).chain(slots.iter().copied().map(Some)) {
                memory.fault_at = fault;
                let expected = walk(tables, program.start, |slot| memory.word(slot));
                host.clear_cache();
                for cache in ["cold", "warm"] {
                    let stack = host.walk(tables, program.start, &memory);
                    assert_eq!(stack, expected, "{flags:?}, {cache} cache, fault at {fault:?}");
                }
            }
            memory.fault_at = None;
        }
    }
}

fn count(stack: &Stack, found_by: FoundBy) -> usize {
    stack
        .frames
        .iter()
        .filter(|frame| frame.found_by == found_by)
        .count()
}

/// The frames are those of the program, in order; libc's inner functions, which have no public symbols, may
/// stand between them.
fn check_functions(found: &[String]) {
    let mut expected = vec!["wait_here"];
    expected.extend(["recurse"; 21]);
    expected.extend(["large_frame", "handler", "realigned", "compare", "main", "_start"]);
    let mut rest = found.iter();
    for name in expected {
        assert!(
            rest.any(|function| function.starts_with(name)),
            "no {name} in its place in {found:?}"
        );
    }
}
