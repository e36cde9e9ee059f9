//! Compiles the walk of `bpf/` for the host, as the rest is: with what fuzzers are led by, and with sanitizers if there are any.

fn main() {
    println!("cargo::rerun-if-changed=../../bpf");
    println!("cargo::rerun-if-changed=../host_bpf");
    for target in ["x86", "arm64"] {
        compile(target);
    }
}

/// The walk of an architecture, its function named after it.
fn compile(target: &str) {
    let mut build = cc::Build::new();
    build
        .compiler("clang")
        .file("../host_bpf/host.c")
        .include("../../bpf")
        .define(&format!("__TARGET_ARCH_{target}"), None)
        .define("host_walk", &*format!("host_walk_{target}"))
        .flag("-Wno-unused-parameter")
        .flag("-fsanitize-coverage=inline-8bit-counters,pc-table,trace-cmp");
    // Undefined behaviour is a trap: libFuzzer sees that, and no other library is needed.
    build
        .flag("-fsanitize=undefined")
        .flag("-fno-sanitize=alignment")
        .flag("-fsanitize-trap=undefined");
    let sanitizers = std::env::var("CARGO_CFG_SANITIZE").unwrap_or_default();
    if sanitizers.contains("address") {
        build.flag("-fsanitize=address");
    }
    build.compile(&format!("host_walk_{target}"));
}
