//! Objects built on the spot with the machine's `cc`, in a directory that is removed afterwards.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed when dropped.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("unwind-tables-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a scratch directory");
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Best effort: a leftover directory in the temporary directory does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Compiles `source` with `flags`, and returns the bytes of the output. The extension of `file_name` is that
/// of the language.
pub(crate) fn cc(file_name: &str, source: &str, flags: &[&str]) -> Vec<u8> {
    let scratch = Scratch::new();
    let (input, output) = (scratch.path().join(file_name), scratch.path().join("out"));
    std::fs::write(&input, source).expect("the source is written");
    run(Command::new("cc").args(flags).arg(&input).arg("-o").arg(&output));
    std::fs::read(&output).expect("cc has written its output")
}

/// Assembles a shared object for AArch64.
pub(crate) fn aarch64(source: &str) -> Vec<u8> {
    let scratch = Scratch::new();
    let (input, output) = (scratch.path().join("in.s"), scratch.path().join("out"));
    std::fs::write(&input, source).expect("the source is written");
    let flags = ["--target=aarch64-linux-gnu", "-march=armv8.3-a", "-fuse-ld=lld"];
    let mut clang = Command::new("clang");
    clang
        .args(flags)
        .args(["-nostdlib", "-shared", "-Wl,--build-id=none"]);
    run(clang.arg(&input).arg("-o").arg(&output));
    std::fs::read(&output).expect("clang has written its output")
}

/// Runs a tool on a file's bytes, and returns its output file; `arguments` may name the input and output as
/// `{in}` and `{out}`.
pub(crate) fn transform(bytes: &[u8], program: &str, arguments: &[&str]) -> Vec<u8> {
    let scratch = Scratch::new();
    let (input, output) = (scratch.path().join("in"), scratch.path().join("out"));
    std::fs::write(&input, bytes).expect("the input is written");
    let path = |path: &Path| path.display().to_string();
    let arguments = arguments.iter().map(|argument| {
        argument
            .replace("{in}", &path(&input))
            .replace("{out}", &path(&output))
    });
    run(Command::new(program).args(arguments));
    std::fs::read(&output).expect("the tool has written its output")
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; install gcc, binutils, clang and lld"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
