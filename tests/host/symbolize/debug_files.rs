//! Separate debug files are found by build-id and by link, and nothing else is taken for one.

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use super::*;
use memleak_test::machine::{Feature, lacks};

/// A stripped program's names come from the debug file with its build-id, under the root it belongs to, and a
/// debug file with another build-id at that place is not used.
#[test]
fn debug_file_by_build_id() {
    let directory = directory("build-id");
    let program = build(&directory, "symbols/inlined.cpp", &["-g", "-Wl,--build-id"]);
    let stripped = strip(&program, &directory);
    let (empty, root) = (directory.join("empty"), directory.join("root"));
    fs::create_dir_all(&empty).expect("a new directory");
    let path = Path::new("/opt/program");
    check_no_names(&mut Subject::in_root(&stripped, path, vec![empty.clone()]));

    let place = root.join("usr/lib/debug").join(build_id_path(&program));
    keep_debug(&program, &place);
    check_same_names(
        &program,
        &mut Subject::in_root(&stripped, path, vec![empty.clone(), root.clone()]),
    );

    let other = build(
        &super::directory("build-id-other"),
        "symbols/inlined.cpp",
        &["-g", "-O1", "-Wl,--build-id"],
    );
    keep_debug(&other, &place);
    check_no_names(&mut Subject::in_root(&stripped, path, vec![root]));
}

/// An absolute link in a root is a path in that root.
#[test]
fn debug_directory_behind_a_link() {
    let directory = directory("link");
    let program = build(&directory, "symbols/inlined.cpp", &["-g", "-Wl,--build-id"]);
    let stripped = strip(&program, &directory);
    let root = directory.join("root");
    keep_debug(&program, &root.join("elsewhere").join(build_id_path(&program)));
    fs::create_dir_all(root.join("usr/lib")).expect("a new directory");
    std::os::unix::fs::symlink("/elsewhere", root.join("usr/lib/debug")).expect("a new link");
    check_same_names(
        &program,
        &mut Subject::in_root(&stripped, Path::new("/p"), vec![root]),
    );
}

/// Without a build-id the linked file is used from each place it may lie in, if its checksum is right.
#[test]
fn debug_file_by_link() {
    let directory = directory("debuglink");
    let program = build(&directory, "symbols/inlined.cpp", &["-g", "-Wl,--build-id=none"]);
    let stripped = strip(&program, &directory);
    let debug = directory.join("program.debug");
    keep_debug(&program, &debug);
    run(
        "objcopy",
        &[&format!("--add-gnu-debuglink={}", text(&debug)), text(&stripped)],
    );
    let path = Path::new("/opt/bin/program");
    for place in ["opt/bin", "opt/bin/.debug", "usr/lib/debug/opt/bin"] {
        let root = directory.join("roots").join(place.replace('/', "-"));
        let file = root.join(place).join("program.debug");
        keep_debug(&program, &file);
        check_same_names(
            &program,
            &mut Subject::in_root(&stripped, path, vec![root.clone()]),
        );

        let mut bytes = fs::read(&file).expect("the debug file");
        bytes.push(0);
        fs::write(&file, bytes).expect("a changed debug file");
        check_no_names(&mut Subject::in_root(&stripped, path, vec![root]));
    }
}

/// A pipe of the kernel's tracing, which gives each line to one reader only; gone when dropped.
struct TracePipe(PathBuf);

impl TracePipe {
    fn with(line: &str) -> Self {
        let instance = format!("/sys/kernel/tracing/instances/memleak-{}", std::process::id());
        fs::create_dir(&instance).expect("root, and tracefs at /sys/kernel/tracing");
        let pipe = Self(instance.into());
        fs::write(pipe.0.join("trace_marker"), line).expect("tracefs");
        pipe
    }

    /// Reads the pipe without waiting.
    fn take(&self) -> String {
        let mut options = fs::OpenOptions::new();
        let options = options.read(true).custom_flags(libc::O_NONBLOCK);
        let mut bytes = vec![0; 4096];
        let mut file = options.open(self.0.join("trace_pipe")).expect("tracefs");
        let length = file.read(&mut bytes).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }
}

impl Drop for TracePipe {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A pipe, or a link to a file that acts when it is opened or read, in the place of a debug file or a part of
/// one, is not waited for, and takes nothing from its other readers.
#[test]
fn pipes_and_links_as_debug_files_as_root() {
    program::require_root();
    if lacks(Feature::Tracefs) {
        return;
    }
    let directory = directory("act");
    let flags = ["-g", "-Wl,--build-id=none", "-gsplit-dwarf"];
    let program = build(&directory, "symbols/inlined.cpp", &flags);
    let stripped = strip(&program, &directory);
    let debug = directory.join("program.debug");
    fs::write(&debug, "its checksum is in the link").expect("our own directory");
    run(
        "objcopy",
        &[&format!("--add-gnu-debuglink={}", text(&debug)), text(&stripped)],
    );
    let entries = fs::read_dir(&directory).expect("it is there").flatten();
    let is_unit = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "dwo");
    let unit = entries.map(|entry| entry.path()).find(is_unit).expect("a unit");
    let pipe = TracePipe::with("for somebody else");
    let trace = pipe.0.join("trace_pipe");
    for place in [
        "pipe",
        "/dev/zero",
        "/dev/tty",
        "/proc/kmsg",
        "/proc/self/mem",
        text(&trace),
        ".",
    ] {
        for file in [&debug, &unit] {
            fs::remove_file(file).expect("our own directory");
            match place {
                "pipe" => run("mkfifo", &[text(file)]),
                place => run("ln", &["-s", place, text(file)]),
            };
        }
        let roots = || vec![PathBuf::from("/")];
        check_no_names(&mut Subject::in_root(
            &stripped,
            &directory.join("program"),
            roots(),
        ));
        let mut subject = Subject::in_root(&program, &program, roots());
        for address in subject.return_addresses() {
            let found = subject.at(address, false);
            assert!(
                found.inlined.is_empty() && found.symbol.is_some(),
                "{place}: {found:?}"
            );
        }
    }
    assert!(pipe.take().contains("for somebody else"));
}
