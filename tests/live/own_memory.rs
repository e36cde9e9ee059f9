//! memleak's own memory is as reported, by the kernel's figures, and it is bounded.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, directory, end_if_only_compiled};

const MIB: u64 = 1 << 20;
/// Limit of resident memory while a program of a few libraries is traced. Tests build with less optimisation,
/// and so with more code, than users do.
const MAX_RESIDENT: u64 = 160 * MIB;

/// Tolerance of figures: the kernel counts pages per CPU first, so that its totals lag behind.
const COUNTED_LATE: u64 = MIB;

/// Finds the number behind a name that begins a line.
fn number(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns the memory of all maps of a process, by the kernel's figures.
fn map_bytes(pid: u32) -> u64 {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("it runs");
    let mut maps = BTreeMap::new();
    for descriptor in descriptors {
        let text = fs::read_to_string(descriptor.expect("an entry").path()).unwrap_or_default();
        if let Some(map) = number(&text, "map_id:") {
            maps.insert(map, number(&text, "memlock:").expect("maps have it"));
        }
    }
    maps.values().sum()
}

/// Figures of a report agree with those of `/proc` while nothing happens, and stay below the bound.
#[test]
fn own_memory_equals_proc() {
    let directory = directory("own_memory");
    let path = compile(&directory, "amounts/memory.c", &["-O2", "-pthread"]);
    let file = directory.join("file");
    fs::write(&file, vec![1; 16 << 20]).expect("a new file");
    let mut program = Program::start(&path, &[file.to_str().expect("a path of ours")]);
    program.expect("ready");
    let memleak = Memleak::attach_reporting(program.pid(), &[], &["1"]);
    let own = memleak.report().own;
    let status = fs::read_to_string(format!("/proc/{}/status", memleak.pid())).expect("it runs");
    let now = |name| 1024 * number(&status, name).expect("every process has it");
    assert_eq!(own.kernel_bytes, map_bytes(memleak.pid()));
    // Writing the report takes a little; symbols and file pages come and go.
    assert!(
        own.resident_bytes.abs_diff(now("VmRSS:")) <= 16 * MIB,
        "{own:?} {status}"
    );
    assert!(
        own.peak_bytes <= now("VmHWM:") + COUNTED_LATE && own.resident_bytes <= own.peak_bytes,
        "{own:?} {status}"
    );
    assert!(own.peak_bytes <= MAX_RESIDENT, "{own:?}");
    program.step("done");
    drop(memleak.finish());
    assert!(program.end().success());
}

/// Memory for finding names is released once they are found: of debug information that takes a hundred
/// megabytes, memleak's own, little is left.
#[test]
fn memory_of_symbolization_is_released() {
    // Before the target starts, as it ends by itself, and another test may have the machine for itself
    // meanwhile.
    end_if_only_compiled();
    let program = env!("CARGO_BIN_EXE_memleak");
    let mut target = Command::new(program)
        .args(["table", "--verify", "/usr/lib"])
        .stdout(Stdio::null())
        .spawn()
        .expect("memleak was built");
    let memleak = Memleak::attach_reporting(target.id(), &[], &["1"]);
    let own = memleak.report().own;
    let status = fs::read_to_string(format!("/proc/{}/status", memleak.pid())).expect("it runs");
    let now = 1024 * number(&status, "VmRSS:").expect("every process has it");
    assert!(now + 40 * MIB < own.resident_bytes, "{own:?} {status}");
    drop(memleak.finish());
    target.kill().expect("it runs");
    target.wait().expect("it was killed");
}
