//! Refusals and help: a command line that makes no sense, or a process that cannot be traced, is refused by
//! one line that names the remedy, with status 2, and before anything is attached.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use memleak_test::program::{Program, compile, copy_program, directory, require_root};

pub(super) fn memleak(arguments: &[&str]) -> Output {
    // A refusal comes at once.
    assert_cmd::cargo::cargo_bin_cmd!("memleak")
        .args(arguments)
        .env_remove("COLUMNS")
        .timeout(Duration::from_secs(20))
        .output()
        .expect("memleak was built, and ends by itself")
}

/// Checks that `output` is a refusal: status 2, nothing on standard output, one line that says all of
/// `parts`.
#[track_caller]
pub(super) fn check_refused(output: &Output, parts: &[&str]) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(output.stdout.is_empty());
    assert_eq!(errors.lines().count(), 1, "one line: {errors}");
    assert!(errors.starts_with("memleak: "), "{errors}");
    for part in parts {
        assert!(errors.contains(part), "no {part:?} in {errors}");
    }
}

/// Arguments, and parts of the line that refuses them.
type Case<'a> = (&'a [&'a str], &'a [&'a str]);

#[track_caller]
fn check_all_refused(cases: &[Case<'_>]) {
    for (arguments, parts) in cases {
        check_refused(&memleak(arguments), parts);
    }
}

/// Targets, amounts and modes that make no sense, and what the line about each says.
#[test]
fn command_lines_about_targets_are_refused() {
    check_all_refused(&[
        (&["-p"], &["--pid <PID|NAME>", "--help"]),
        (&["-p", "1", "--percpu"], &["--percpu", "without -p"]),
        (&["--follow-fork"], &["--follow-fork", "-p PID"]),
        (&["--table-memory", "1M"], &["--table-memory", "-p PID"]),
        (&["-p", "no-such-program"], &["named `no-such-program`", "--wait"]),
        (&["-p", "1,"], &["-p needs a value"]),
        (&["-p", "1", "--wait"], &["--wait waits for", "--container"]),
        (
            &["--unit", "nginx.service"],
            &["bytes, blocks", "--systemd-unit nginx.service"],
        ),
        (&["-p", "0"], &["from 1 to 2147483647"]),
        (&["-p", "99999999999"], &["99999999999"]),
        (&["-p", "1", "0"], &["`0` for INTERVAL", "above 0"]),
        (&["-p", "1", "-1"], &["-1"]),
        (&["-p", "1", "1", "0"], &["`0` for COUNT"]),
        (&["-p", "1", "--", "ls"], &["-p", "only one"]),
        (&["-p", "1", "-c", "ls"], &["-p", "only one"]),
        (&["-c", "ls", "--", "ls"], &["-c COMMAND", "only one"]),
        (&["-c", "ls 'a"], &["`ls 'a`", "quote"]),
        (&["-c", " "], &["no program", "-c 'ls -l'"]),
        (&["-p", "1", "--max-blocks", "0"], &["--max-blocks", "above 0"]),
        (
            &["-p", "1", "--stack-storage-size", "0"],
            &["--stack-storage-size", "above 0"],
        ),
        (&["-p", "1", "-o", "5x"], &["`5x` for --older", "`x`", "500ms"]),
        (
            &["-p", "1", "--sample-bytes", "512KB"],
            &["`512KB` for --sample-bytes", "ambiguous", "use K or KiB", "512K"],
        ),
        (
            &["-p", "1", "--table-memory", "1GiB"],
            &["`1GiB` for --table-memory", "64 KiB to 256 MiB"],
        ),
        (&["-p", "1", "--duration", "0"], &["--duration", "above 0"]),
        // `-p $(pidof x)` of more processes than there are arguments.
        (&["-p", "1", "2", "3", "4"], &["'4'", "-p 17,18"]),
        (
            &["-p", "1", "-C", "-o", "500"],
            &["--combined-only", "--older", "only one"],
        ),
        (
            &["-p", "1", "-C", "-a"],
            &["--combined-only", "--show-allocs", "only one"],
        ),
        (&["-p", "1", "-C", "--classes"], &["--combined-only", "--classes"]),
        (&["-p", "1", "--mmap", "--classes"], &["--mmap", "--classes"]),
        (&["-p", "1", "-C", "--pinned"], &["--combined-only", "--pinned"]),
        (
            &["-p", "1", "--mmap", "--sort", "pinned"],
            &["--mmap", "--pinned"],
        ),
        (&["--pinned"], &["--pinned"]),
        (&["-p", "1", "--mmap", "-a"], &["--mmap", "--show-allocs"]),
        (&["-p", "1", "--mmap", "-t"], &["--mmap", "--trace"]),
        (&["-p", "1", "--faults", "-a"], &["--faults", "--show-allocs"]),
        (&["-p", "1", "--faults", "-t"], &["--faults", "--trace"]),
        (&["-p", "1", "--faults", "--mmap"], &["--faults", "--mmap"]),
        (
            &["-p", "1", "--faults", "--source", "usdt"],
            &["--faults", "--source"],
        ),
        (
            &["-p", "1", "--faults", "-S", "je_"],
            &["--faults", "--symbols-prefix"],
        ),
    ]);
}

/// Views, conditions and formats that make no sense, and what the line about each says.
#[test]
fn command_lines_about_reports_are_refused() {
    check_all_refused(&[
        (&["--faults"], &["--faults needs a process", "-p PID"]),
        (
            &["-p", "1", "--format", "folded", "-a"],
            &["--format folded", "single blocks", "--show-allocs"],
        ),
        (
            &["-p", "1", "--format", "folded", "-t"],
            &["--format folded", "single calls", "--trace"],
        ),
        (
            &["-p", "1", "--perf-max-stack-depth", "0"],
            &["`0` for --perf-max-stack-depth", "above 0"],
        ),
        // Ambiguous: several options begin like this.
        (&["-p", "1", "--m", "5"], &["--m"]),
        (
            &["-p", "1", "--sort", "age"],
            &["age", "size, count, growth", "--help"],
        ),
        (
            &["-p", "1", "--unwind", "magic"],
            &["magic", "dwarf, fp", "--help"],
        ),
        (&["-p", "1", "--nonsense"], &["--nonsense", "--help"]),
        (
            &["-p", "1", "--fail-on", "outstanding>1MB"],
            &["`outstanding>1MB`, character 14", "MiB"],
        ),
        (&["-p", "1", "--junit", "a.xml"], &["--junit", "--fail-on"]),
        (
            &["-p", "1", "--suppressions", "/nonexistent"],
            &["/nonexistent", "No such file"],
        ),
        (
            &["-p", "1", "--fail-on", "blocks>1", "--baseline", "/etc/passwd"],
            &["/etc/passwd:1: ", "--write-baseline"],
        ),
        (
            &["-p", "1", "--output", "x.doc"],
            &["`x.doc`", "--format", ".json"],
        ),
        (&["-p", "1", "-f"], &["-f", "--output FILE"]),
        (
            &["-p", "1", "--output", "/etc/passwd", "--format", "text"],
            &["`/etc/passwd`", "-f"],
        ),
        (
            &["-p", "1", "--output", "/nowhere/x.txt"],
            &["`/nowhere/x.txt`", "No such file", "create its directory"],
        ),
        // The message does not name the temporary file.
        (
            &["-p", "1", "--output", "/nowhere/x.svg"],
            &["cannot write `/nowhere/x.svg`: No such file or directory (os error 2): create"],
        ),
    ]);
}

/// Files, other commands and destinations that make no sense, and what the line about each says.
#[test]
fn command_lines_about_files_are_refused() {
    check_all_refused(&[
        (
            &["-p", "1", "--alloc", "foo"],
            &[
                "memleak: --alloc: `foo` is not SYMBOL:SHAPE: write for example my_alloc:alloc(size=0), \
               my_free:free(block=0) or my_realloc:realloc(block=0,size=1)\n",
            ],
        ),
        (
            &["-p", "1", "--fail-on", ""],
            &["character 1: expected a measure, one of outstanding, blocks"],
        ),
        (&["-p", "1", "--record", "-"], &["--record needs a file"]),
        (&["-p", "1", "--anonymize"], &["--anonymize", "--record FILE"]),
        (
            &["-p", "1", "--record", "a", "--record-limit", "1K"],
            &["`1K` for --record-limit", "64 KiB"],
        ),
        (&["report"], &["<FILE>", "--help"]),
        (&["report", "/nonexistent"], &["/nonexistent", "No such file"]),
        (
            &["report", "/etc/passwd"],
            &["/etc/passwd", "not a recording", "--record"],
        ),
        (&["report", "a", "--at", "0"], &["--at", "0"]),
        (
            &["report", "a", "--all", "--format", "svg"],
            &["svg", "one report", "--at N"],
        ),
        (
            &["report", "a", "--record", "b", "--fail-on", "blocks>1"],
            &["--record", "--fail-on"],
        ),
        (&["report", "a", "--baseline", "b"], &["--baseline", "--fail-on"]),
        (
            &["report", "a", "--record", "b", "--format", "json"],
            &["--format", "--record", "only one"],
        ),
        (&["diff", "a"], &["<AFTER>", "--help"]),
        (
            &["diff", "a", "b", "--measure", "growth", "--format", "svg"],
            &["already shows growth", "outstanding"],
        ),
        (
            &["diff", "a", "b", "--output", "a.speedscope.json"],
            &["speedscope", "a difference", "folded"],
        ),
        (
            &["trend", "a", "--output", "a.svg"],
            &["svg", "a trend", "text or json"],
        ),
        (&["table"], &["<ELF>"]),
        (
            &["doctor", "-p", "no-such-program"],
            &["named `no-such-program`", "ps -e"],
        ),
        (&["doctor", "--format", "xml"], &["xml", "text, json"]),
    ]);
}

/// `--ebpf` prints the source of all that memleak loads, without privileges and without a process.
#[test]
fn source_of_the_programs() {
    let output = memleak(&["--ebpf"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && output.stderr.is_empty());
    for part in [
        "/* ---- bpf/memleak.bpf.c ---- */\n",
        "SEC(\"uprobe.session\")",
        "bpf/kernel_memory.h",
    ] {
        assert!(text.contains(part), "no {part:?}");
    }
}

/// Long options can be shortened, as with bcc's memleak; libbpf-tools' flags for help work as well.
#[test]
fn options_of_bcc_and_libbpf_tools() {
    check_refused(
        &memleak(&["-p", "1", "--combined", "--show-al"]),
        &["--combined-only", "only one"],
    );
    let help = memleak(&["-h"]);
    for flag in ["-?", "--usage"] {
        assert_eq!(memleak(&[flag]), help, "{flag}");
    }
}

/// Files that have no unwind table.
#[test]
fn files_without_cfi_have_no_table() {
    for (file, parts) in [
        ("/etc/passwd", &["/etc/passwd", "not an ELF file"][..]),
        ("/nonexistent", &["/nonexistent", "No such file"]),
        ("/proc", &["/proc", "not a regular file"]),
        ("/dev/zero", &["/dev/zero", "not a regular file"]),
        ("/dev/null", &["/dev/null", "not a regular file"]),
    ] {
        check_refused(&memleak(&["table", file]), parts);
    }
}

/// A table that exists is described: the C library's rows, bytes and source.
#[test]
fn table_of_a_library() {
    let output = memleak(&["table", "/usr/lib/x86_64-linux-gnu/libc.so.6"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(
        text.starts_with("/usr/lib/x86_64-linux-gnu/libc.so.6\n"),
        "{text}"
    );
    for word in ["rows", "bytes per row", "EhFrame", "without CFI"] {
        assert!(text.contains(word), "no {word:?} in {text}");
    }
}

/// Every table below some paths is compared with the CFI, each file once, whatever its names; what is not ELF
/// is left out, links are not followed, and other machines' files are skipped with the reason.
#[test]
fn table_verify() {
    let directory = directory("command_line-table_verify");
    let library = "/usr/lib/x86_64-linux-gnu/libc.so.6";
    let inner = directory.join("inner");
    fs::create_dir(&inner).expect("our own directory");
    fs::copy(library, inner.join("one")).expect("room for a copy");
    fs::hard_link(inner.join("one"), directory.join("two")).expect("our own directory");
    std::os::unix::fs::symlink(library, directory.join("link")).expect("our own directory");
    fs::write(directory.join("text"), "no ELF").expect("our own directory");
    let mut other = fs::read(library).expect("readable");
    other[18] = 0xf3; // e_machine: RISC-V
    fs::write(directory.join("other"), other).expect("our own directory");
    let path = directory.to_str().expect("UTF-8");
    let output = memleak(&["table", "--verify", path]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for part in [
        "1 ELF file: ",
        "wrong: 0\n",
        "unsupported: 0 places; 0 of ",
        "skipped: 1 file: ",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    check_refused(
        &memleak(&["table", "--verify", "/nonexistent"]),
        &["/nonexistent", "No such file"],
    );
}

/// A pid that no process has is refused: one above the largest that the kernel gives.
#[test]
fn no_such_process_as_root() {
    require_root();
    let pid_max = fs::read_to_string("/proc/sys/kernel/pid_max").expect("/proc is mounted");
    let pid = pid_max.trim();
    check_refused(&memleak(&["-p", pid]), &["no process", pid, "ps"]);
}

/// Refuses a second pid, rather than wait as many seconds, if both are processes of one program; and only
/// then: another program's small number, a kernel thread's, and a number with its unit are intervals.
#[test]
fn second_pid_is_not_taken_for_an_interval() {
    let sleeper = || Command::new("/bin/sleep").arg("60").spawn().expect("/bin/sleep");
    let mut sleepers = [sleeper(), sleeper()];
    let [first, second] = [0, 1].map(|at: usize| sleepers[at].id().to_string());
    let several = memleak(&["-p", &first, &second]);
    let as_count = memleak(&["-p", &first, "1", &second]);
    let live = memleak(&["live", "-p", &first, &second]);
    // These intervals are right: the refusal is of `--max-blocks 0`.
    let seconds = format!("{second}s");
    let intervals = [&seconds, "2"].map(|text| memleak(&["-p", &first, text, "--max-blocks", "0"]));
    for sleeper in &mut sleepers {
        sleeper.kill().expect("a child of ours");
        sleeper.wait().expect("a child of ours");
    }
    let both = format!("-p {first},{second}");
    let parts = [&format!("`{second}`"), "(sleep)", &both, &seconds];
    check_refused(&several, &parts.map(|part| part));
    check_refused(&live, &parts.map(|part| part));
    check_refused(&as_count, &["COUNT", &both]);
    for output in intervals {
        check_last_line(&output, "--max-blocks must be above 0");
    }
}

/// A kernel thread is refused as such.
#[test]
fn kernel_thread_as_root() {
    require_root();
    let kernel_thread = fs::read("/proc/2/cmdline").expect("process 2: run this outside containers");
    assert!(
        kernel_thread.is_empty(),
        "process 2 is a kernel thread outside containers"
    );
    check_refused(&memleak(&["-p", "2"]), &["kernel thread"]);
}

/// A zombie, which has ended and which its parent has not waited for, is refused: it has exited.
#[test]
fn zombie_as_root() {
    require_root();
    let mut child = Command::new("/bin/true").spawn().expect("/bin/true");
    let stat = || fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it is not waited for");
    while !stat().contains(") Z ") {
        std::thread::yield_now();
    }
    let output = memleak(&["-p", &child.id().to_string()]);
    child.wait().expect("a child of ours");
    check_refused(&output, &["has exited"]);
}

/// A refusal for want of privileges names what is missing.
#[test]
fn no_privilege_as_root() {
    require_root();
    let (directory, copy) = readable_copy();
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"])
        .arg(copy)
        .args(["-p", &std::process::id().to_string()])
        .output()
        .expect("setpriv (apt-get install util-linux)");
    fs::remove_dir_all(directory).expect("our own directory");
    check_refused(&output, &["CAP_BPF", "CAP_PERFMON", "root", "setcap"]);
}

/// Copies memleak to where other users can run it, as the build directory may be closed to them.
fn readable_copy() -> (PathBuf, PathBuf) {
    let directory = std::env::temp_dir().join(format!("memleak-cli-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a new directory");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("our own directory");
    let copy = directory.join("memleak");
    copy_program(env!("CARGO_BIN_EXE_memleak"), &copy);
    (directory, copy)
}

/// A process without an allocator (a static one whose symbols were removed) cannot be traced, and goes on.
#[test]
fn no_allocator_as_root() {
    require_root();
    require_root();
    let directory = directory("command_line-no_allocator");
    let path = compile(&directory, "amounts/plain.c", &["-O2", "-static", "-s"]);
    let mut program = Program::start(&path, &[]);
    program.expect("ready");
    let output = memleak(&["-p", &program.pid().to_string()]);
    check_last_line(&output, "nothing to probe");
    check_last_line(&output, "--mmap");
    program.step("done");
}

/// Checks a refusal as [`check_refused`] does, but allows progress messages ahead of it.
#[track_caller]
fn check_last_line(output: &Output, part: &str) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    let last = errors.lines().last().unwrap_or_default();
    assert!(last.starts_with("memleak: ") && last.contains(part), "{errors}");
    assert!(output.stdout.is_empty());
}

/// The version is that of the crate.
#[test]
fn version() {
    let output = memleak(&["--version"]);
    assert!(output.status.success());
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text, format!("memleak {}\n", env!("CARGO_PKG_VERSION")));
}

/// The whole help text. After a change on purpose: `INSTA_UPDATE=always cargo test --test cli`.
#[test]
fn help() {
    for (name, flag) in [("help", "--help"), ("short_help", "-h")] {
        let output = memleak(&[flag]);
        assert!(output.status.success() && output.stderr.is_empty());
        insta::assert_snapshot!(name, String::from_utf8_lossy(&output.stdout));
    }
}

/// Archive and package of `make dist`, here of the program that tests run: the package installs, its files
/// are what it says they are, and the files in the archive run and are readable.
#[test]
fn packages_as_root() {
    require_root();
    let directory = directory("command_line-packages");
    let root = directory.join("root");
    let run = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        let output = command.args(arguments).env("PACKAGE_COMPRESSION", "0").output();
        let output = output.expect("Debian has it");
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    run(
        "tests/package.sh",
        &[env!("CARGO_BIN_EXE_memleak"), &path(&directory)],
    );
    let version = env!("CARGO_PKG_VERSION");
    let package = path(&directory.join(format!("memleak_{version}-1_amd64.deb")));

    // A system without any package.
    for made in ["var/lib/dpkg/info", "var/lib/dpkg/updates"] {
        fs::create_dir_all(root.join(made)).expect("made");
    }
    fs::write(root.join("var/lib/dpkg/status"), "").expect("written");
    let system = format!("--root={}", path(&root));
    run("dpkg", &[&system, "--install", &package]);
    assert_eq!(run("dpkg", &[&system, "--verify", "memleak"]), "");
    let installed = root.join("usr/bin/memleak");
    assert_eq!(
        run(&path(&installed), &["--version"]),
        format!("memleak {version}\n")
    );
    let library = fs::read(root.join("usr/lib/memleak/libmemleak.so")).expect("installed");
    let written = path(&directory.join("libmemleak.so"));
    run(&path(&installed), &["library", "--output", &written]);
    assert_eq!(fs::read(&written).expect("written"), library);
    let doc = root.join("usr/share/doc/memleak");
    let copyright = fs::read_to_string(doc.join("copyright")).expect("installed");
    for part in ["libbpf-sys", "inferno", "libelf", "MIT License", "CDDL"] {
        assert!(copyright.contains(part), "no {part:?}");
    }
    for page in [
        "README.Debian",
        "docs/permissions.md",
        "docs/cli.md",
        "docs/images/page.png",
        "examples/grafana-dashboard.json",
        "examples/prometheus-rules.yml",
    ] {
        assert!(doc.join(page).exists(), "{page}");
    }
    let manual = path(&root.join("usr/share/man/man8/memleak.8.gz"));
    assert!(run("zcat", &[&manual]).contains("fail\\-on"), "{manual}");
    let completions = path(&root.join("usr/share/bash-completion/completions/memleak"));
    run("bash", &["-n", &completions]);

    run(
        "sh",
        &[
            "-c",
            &format!("cd {} && sha256sum --check SHA256SUMS", path(&directory)),
        ],
    );
    let name = format!("memleak-{version}-x86_64-linux");
    let archive = path(&directory.join(format!("{name}.tar.xz")));
    run("tar", &["-C", &path(&directory), "-xf", &archive]);
    let unpacked = path(&directory.join(name).join("bin/memleak"));
    assert_eq!(run(&unpacked, &["--version"]), format!("memleak {version}\n"));
}
