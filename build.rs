//! Compiles each object of `bpf/` with clang into a skeleton, lists their files for `--ebpf`, and compiles
//! `libmemleak.so` from `memleak-alloc`, in `OUT_DIR`. Writes nowhere else, fetches nothing.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::{env, fs};

use libbpf_cargo::SkeletonBuilder;

/// Objects: each is compiled from `bpf/NAME.bpf.c`.
const OBJECTS: [&str; 3] = ["memleak", "kernel_memory", "registers"];
/// Arguments for clang. Instruction set v3 has the atomics and 32-bit jumps that the code needs; kernels from
/// 5.12 on know it.
const CLANG_ARGS: [&str; 7] = [
    "-mcpu=v3",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",
    "-Ibpf",
    "-fno-stack-protector",
];

/// Architectures of programs that can be traced. Their differences are in `unwind-tables` (tables and walks),
/// `bpf/walk/arch.h` (the kernel side) and `crates/code/src/allocator/machine.rs` (positions of probes).
const ARCHITECTURES: [&str; 2] = ["x86_64", "aarch64"];

fn main() {
    let target = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    if !ARCHITECTURES.contains(&target.as_str()) {
        fail(&format!(
            "memleak traces x86-64 and aarch64 programs only, and this build is for {target}; build it for \
             x86_64-unknown-linux-gnu or aarch64-unknown-linux-gnu"
        ));
    }
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    // For the test of programs' sizes, which depend on the compiler.
    println!("cargo::rustc-env=BPF_CLANG_VERSION={}", version_of(&clang));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let manifest_dir = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    if let Err(error) = fs::write(out.join("bpf_files.rs"), source_list(Path::new(&manifest_dir))) {
        fail(&format!("cannot write to {}: {error}", out.display()));
    }
    // Type information names source files: the same names wherever the repository is.
    let nameless = format!("-ffile-prefix-map={manifest_dir}=/memleak");
    // For the test that compiles the kernel side for the other architecture.
    let headers = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys says where libbpf's headers are");
    println!("cargo::rustc-env=BPF_HEADERS={headers}");
    println!("cargo::rustc-env=BPF_CLANG_ARGS={}", CLANG_ARGS.join(" "));
    for object in OBJECTS {
        let source = source_of(object);
        let built = SkeletonBuilder::new()
            .source(&source)
            .clang(&clang)
            .clang_args(
                CLANG_ARGS
                    .map(str::to_owned)
                    .into_iter()
                    .chain([nameless.clone()]),
            )
            .build_and_generate(out.join(format!("{object}.skel.rs")));
        if let Err(error) = built {
            fail(&format!("cannot compile {source}: {error:#}"));
        }
    }
    compile_library(Path::new(&manifest_dir), &out.join("libmemleak.so"));
}

/// Compiles the library that programs are started with (`--preload`). Calls the compiler directly: Cargo has
/// no profile for a single library that is as fast in a debug build and has no standard library.
fn compile_library(root: &Path, output: &Path) {
    const FLAGS: [&str; 14] = [
        "--edition=2024",
        "--crate-name=memleak",
        "--crate-type=cdylib",
        "--cfg=memleak_preload",
        "-Copt-level=3",
        "-Ccodegen-units=1",
        "-Clto=fat",
        "-Cpanic=abort",
        // Walks begin in this library, and need its unwind tables.
        "-Cforce-unwind-tables=yes",
        "-Ctarget-feature=-crt-static",
        // One file for all C libraries: it depends on no other object, and is never unloaded.
        "-Clink-arg=-nostdlib",
        "-Clink-arg=-Wl,-soname,libmemleak.so",
        "-Clink-arg=-Wl,-z,nodelete",
        "-Cstrip=debuginfo",
    ];
    println!("cargo::rerun-if-changed=crates/memleak-alloc/src");
    let variable = |name| env::var_os(name).unwrap_or_else(|| fail(&format!("cargo sets {name}")));
    let mut compiler = Command::new(variable("RUSTC"));
    compiler.args(FLAGS).arg("--target").arg(variable("TARGET"));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut flag = OsString::from("-Clinker=");
        flag.push(linker);
        compiler.arg(flag);
    }
    if env::var_os("CARGO_CFG_TARGET_ARCH").is_some_and(|machine| machine == "aarch64") {
        // Out-of-line atomics would ask the C library which instructions the CPU has.
        compiler.arg("-Ctarget-feature=-outline-atomics");
    }
    let mut nameless = root.as_os_str().to_owned();
    nameless.push("=/memleak");
    compiler.arg("--remap-path-prefix").arg(nameless);
    let source = root.join("crates/memleak-alloc/src/lib.rs");
    let output = compiler.arg(source).arg("-o").arg(output).output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) => fail(&format!(
            "cannot compile libmemleak.so: {}",
            String::from_utf8_lossy(&output.stderr).replace('\n', "; ")
        )),
        Err(error) => fail(&format!("cannot run the compiler for libmemleak.so: {error}")),
    }
}

fn source_of(object: &str) -> String {
    format!("bpf/{object}.bpf.c")
}

/// Returns a Rust expression: name and text of each source file, first those of the objects themselves, then
/// the files that they include, in that order.
fn source_list(root: &Path) -> String {
    let mut names = OBJECTS.map(source_of).to_vec();
    let mut next = 0;
    while let Some(name) = names.get(next) {
        let text = fs::read_to_string(root.join(name)).unwrap_or_default();
        for included in text.lines().filter_map(included_file) {
            let included = format!("bpf/{included}");
            if !names.contains(&included) {
                names.push(included);
            }
        }
        next += 1;
    }
    let rows = names
        .iter()
        .map(|name| format!("    ({name:?}, include_str!({:?})),\n", root.join(name)));
    format!("&[\n{}]\n", rows.collect::<String>())
}

/// The file of `bpf/` that a line of C includes, if it does.
fn included_file(line: &str) -> Option<&str> {
    line.strip_prefix("#include \"")?.strip_suffix('"')
}

/// The first line that clang says of its version.
fn version_of(clang: &str) -> String {
    match Command::new(clang).arg("--version").output() {
        Ok(output) if output.status.success() => {
            let said = String::from_utf8_lossy(&output.stdout);
            said.lines().next().unwrap_or_default().to_owned()
        }
        Ok(_) | Err(_) => fail(&format!(
            "`{clang}` is needed to compile bpf/; install it: apt-get install clang (or set CLANG)"
        )),
    }
}

fn fail(line: &str) -> ! {
    println!("cargo::error={line}");
    exit(1);
}
