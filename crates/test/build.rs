//! Tells the crate where the sources are, where cargo puts the program that is tested, and where suites put
//! their files. Cargo says the last two to integration tests alone.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let package = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let tree = Path::new(&package)
        .ancestors()
        .nth(2)
        .expect("it is in crates/test");
    println!("cargo::rustc-env=MEMLEAK_TREE={}", tree.display());
    let out = env::var("OUT_DIR").expect("cargo sets it");
    // target/debug/build/memleak-test-HASH/out
    let profile = Path::new(&out)
        .ancestors()
        .nth(3)
        .expect("a directory of cargo's");
    println!(
        "cargo::rustc-env=MEMLEAK_PROGRAM={}",
        profile.join("memleak").display()
    );
    let target = profile.parent().expect("a target directory");
    println!(
        "cargo::rustc-env=MEMLEAK_TEST_FILES={}",
        target.join("tmp").display()
    );
}
