//! Files are read as they are on disk while their code is probed in every process that maps it. Needs root.

mod common;

use std::fs;
use std::path::Path;

use common::memleak::Memleak;
use memleak::target::Modules;

/// The kernel puts breakpoints into every private mapping of probed code, whether or not it is executable; this
/// process is traced itself, and reads the C library all the same as its file has it.
#[test]
fn breakpoints_are_not_read() {
    let path = "/usr/lib/x86_64-linux-gnu/libc.so.6";
    let memleak = Memleak::attach(std::process::id(), &[]);
    let mut modules = Modules::new();
    let module = modules.add_file(Path::new(path)).expect("readable");
    let bytes = modules.get(module).expect("it is there").bytes();
    let file = fs::read(path).expect("readable");
    let differs = (0..file.len()).find(|&at| bytes.get(at) != file.get(at));
    drop(memleak);
    assert_eq!(differs, None);
}
