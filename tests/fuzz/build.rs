//! Compiles the walk of `bpf/` for the host like the rest of a fuzz target: with the coverage that guides
//! fuzzers, and with sanitizers if they are on.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=../../bpf");
    println!("cargo::rerun-if-changed=../host_bpf");
    for target in ["x86", "arm64"] {
        compile(target);
    }
}

/// Compiles the walk of an architecture, with its function named after it.
fn compile(target: &str) {
    // Objects are named after their source alone.
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join(target);
    let mut build = cc::Build::new();
    build
        .out_dir(out)
        .compiler("clang")
        .file("../host_bpf/host.c")
        .include("../../bpf")
        .define(&format!("__TARGET_ARCH_{target}"), None)
        .define("host_walk", &*format!("host_walk_{target}"))
        .flag("-Wno-unused-parameter")
        .flag("-fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp");
    // Undefined behaviour is a trap: libFuzzer sees that, and needs no other library.
    build
        .flag("-fsanitize=undefined")
        .flag("-fno-sanitize=alignment")
        .flag("-fsanitize-trap=undefined");
    let sanitizers = env::var("CARGO_CFG_SANITIZE").unwrap_or_default();
    if sanitizers.contains("address") {
        build.flag("-fsanitize=address");
    }
    // Its other functions have the same names for both architectures: make them local.
    let walk = format!("host_walk_{target}");
    let objcopy = env::var("OBJCOPY").unwrap_or_else(|_| "objcopy".to_owned());
    for object in build.compile_intermediates() {
        let mut command = Command::new(&objcopy);
        command.arg(format!("--keep-global-symbol={walk}")).arg(&object);
        let localized = command.status().is_ok_and(|status| status.success());
        assert!(localized, "{command:?} failed: binutils is needed");
        println!("cargo::rustc-link-arg-bins={}", object.display());
    }
}
