//! C of `tests/host_bpf`, compiled for the host and loaded.

#![allow(unsafe_code, reason = "loads shared objects")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use libloading::{Library, Symbol};
use unwind_tables::Architecture;

use super::host::{HostWalk, Walk};
use super::program::{FILES, ONLY_COMPILED, end_if_only_compiled};

/// Environment variable that is set where a test runs with gcc's sanitizers loaded: C that it compiles is
/// checked by them.
pub const SANITIZED: &str = "MEMLEAK_TEST_SANITIZED";
/// Flags of the sanitizers. Alignment is not checked, as slots of a stack need not be aligned and BPF reads
/// them regardless; C that allowed for it would be compiled to read them byte by byte.
const SANITIZERS: [&str; 3] = [
    "-fsanitize=address,undefined",
    "-fno-sanitize=alignment",
    "-fno-sanitize-recover=all",
];

/// Compiles and loads the walk of an architecture, once for all tests.
pub fn host_walk(architecture: Architecture) -> HostWalk {
    static BUILT: Built = Mutex::new([None, None]);
    load(&BUILT, "host", architecture)
}

/// Compiles and loads the walk of an architecture without fast paths, once for all tests.
pub fn plain_walk(architecture: Architecture) -> HostWalk {
    static BUILT: Built = Mutex::new([None, None]);
    load(&BUILT, "plain", architecture)
}

/// Shared objects by architecture.
type Built = Mutex<[Option<PathBuf>; 2]>;

fn load(built: &Built, source: &str, architecture: Architecture) -> HostWalk {
    let object = built.lock().expect("no build panicked")[architecture as usize]
        .get_or_insert_with(|| compile(source, architecture))
        .clone();
    end_if_only_compiled();
    // SAFETY: the object is the one just built; its only initialisers are those of sanitizers.
    let library = unsafe { Library::new(object) }.expect("the shared object loads");
    // SAFETY: the symbol has this type (tests/host_bpf/host.c, plain.c), and the object is never unloaded.
    let walk = unsafe {
        let walk: Symbol<'_, Walk> = library.get(b"host_walk\0").expect("it is exported");
        *walk
    };
    std::mem::forget(library);
    HostWalk::new(walk)
}

fn compile(source: &str, architecture: Architecture) -> PathBuf {
    let name = format!("{source}-walk-{}-{}", architecture.name(), std::process::id());
    let target = match architecture {
        Architecture::X86_64 => "-D__TARGET_ARCH_x86",
        Architecture::Aarch64 => "-D__TARGET_ARCH_arm64",
    };
    compile_for_host(&format!("{source}.c"), &name, &["-Wno-unused-parameter", target])
}

/// Compiles `source` of `tests/host_bpf` to a shared object called `name`.
pub fn compile_for_host(source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let object = Path::new(FILES).join(format!("{name}.so"));
    let mut compiler = match std::env::var_os(SANITIZED) {
        None => {
            let mut clang = Command::new("clang");
            clang.arg("-O2");
            clang
        }
        Some(_) => {
            let mut gcc = Command::new("gcc");
            gcc.args(SANITIZERS).arg("-O1").arg("-Wno-unknown-pragmas");
            // The compiler itself is not to be checked.
            gcc.env_remove("LD_PRELOAD");
            gcc
        }
    };
    let status = compiler
        .args(["-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"])
        .args(flags)
        .arg("-Ibpf")
        .arg(format!("tests/host_bpf/{source}"))
        .arg("-o")
        .arg(&object)
        .status()
        .expect("a compiler runs");
    assert!(status.success(), "{source} compiles for the host");
    object
}

/// Returns the path of a library of gcc.
fn library(name: &str) -> String {
    let output = Command::new("gcc")
        .arg(format!("-print-file-name={name}"))
        .output();
    let output = output.expect("gcc runs");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Runs the named tests of this program again, with what they compile under gcc's sanitizers.
pub fn run_sanitized(tests: &[&str]) {
    let preload = format!("{} {}", library("libasan.so"), library("libubsan.so"));
    let output = Command::new(std::env::current_exe().expect("this test"))
        .env(SANITIZED, "1")
        .env("LD_PRELOAD", preload)
        // Leaks of Rust's test harness do not matter.
        .env("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1")
        .env("UBSAN_OPTIONS", "print_stacktrace=1")
        .arg("--exact")
        .args(tests)
        .output()
        .expect("it runs");
    let output_text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    // Indented, as the caller's own output has lines that look the same.
    let output_text = output_text.replace('\n', "\n    ");
    if output_text.matches(ONLY_COMPILED).count() == tests.len() {
        end_if_only_compiled();
    }
    assert!(output.status.success(), "{output_text}");
    let passed = format!("{} passed", tests.len());
    assert!(output_text.contains(&passed), "not {passed}: {output_text}");
}
