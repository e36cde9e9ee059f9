//! Hostile targets do no harm: not by their mappings, their names, or files that they leave where their
//! tracer looks.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use memleak::process::Target;
use memleak::symbolize::PerfMap;

use super::RELEASE;
use memleak_test::machine::{Feature, lacks};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile, copy_program, directory, require_root, run_tool};

/// A user without any rights.
const NOBODY: u32 = 65534;

fn build(test: &str) -> PathBuf {
    let directory = directory(&format!("containers-{test}"));
    let flags: Vec<_> = RELEASE.iter().chain(&["-pthread"]).copied().collect();
    compile(&directory, "hostile/hostile.c", &flags)
}

/// Builds the program in a directory where every user may execute it; gone with the directory.
fn build_for_all(test: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("our own");
    let path = directory.path().join("hostile");
    copy_program(build(test), &path);
    (directory, path)
}

/// A target that maps a library as code, and truncates and restores its file all the time, does not end its
/// tracer, which reads that file meanwhile.
#[test]
fn truncated_library_does_not_end_the_tracer() {
    let path = build("cut");
    let library = path.with_file_name("libcut.so");
    fs::copy("/lib/x86_64-linux-gnu/libm.so.6", &library).expect("a large library");
    let mut program = Program::start(&path, &["cut", library.to_str().expect("UTF-8")]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &[]);
    program.step("done");
    let report = memleak.finish();
    let stack = report.only_through("leak_here");
    assert_eq!(stack.end, "complete", "{report}");
}

/// Names of processes and functions that contain control characters are escaped for terminals, and begin no
/// line.
#[test]
fn names_with_control_characters() {
    const NAME: &str = "\u{1b}[2J\n::error";
    let path = build("names");
    let renamed = format!("--redefine-sym=leak_here=evil{NAME}\u{9b}31m\u{202e}");
    run_tool(Command::new("objcopy").arg(renamed).arg(&path));
    let mut program = Program::start(&path, &["called", NAME]);
    program.expect("ready");
    let memleak = Memleak::attach(program.pid(), &["--format", "text", "-o", "0"]);
    program.step("done");
    let (text, messages) = memleak.finish_text_with_messages();
    assert!(text.contains("evil\\u"), "{text}");
    assert!(
        messages.iter().any(|line| line.contains("1b[2J\\n::error (")),
        "{messages:#?}"
    );
    for line in text.lines().chain(messages.iter().map(String::as_str)) {
        let acts = |character: char| character.is_control() && character != '\t' || character == '\u{202e}';
        assert!(!line.contains(acts) && !line.starts_with("::error"), "{line:?}");
    }
}

/// Starts a program as the user `nobody`.
fn as_nobody(before: &[&str], path: &Path, arguments: &[&str]) -> Program {
    let ids = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"];
    let mut command = Command::new("setpriv");
    command.args(ids).args(before).arg(path).args(arguments);
    Program::spawn(command.current_dir("/"))
}

/// The owner of files that a process makes is known, also for a process that has made itself undumpable, and
/// for one that acts as another user.
#[test]
fn owners_of_files_of_a_process() {
    require_root();
    let (_directory, path) = build_for_all("whose");
    for (arguments, user) in [(&["hidden"][..], NOBODY), (&["acting", "4711"], 4711)] {
        let program = match user {
            NOBODY => as_nobody(&[], &path, arguments),
            _ => Program::start(&path, arguments),
        };
        program.expect("ready");
        let target = Target::open(program.pid()).expect("it runs");
        assert_eq!(target.user().expect("it runs"), user);
    }
}

/// A user can mount any file in place of its perf map, in its own namespaces: a file that the user could not
/// read is not shown in the report.
#[test]
fn secrets_mounted_in_place_of_a_map() {
    if lacks(Feature::UserNamespaces) {
        return;
    }
    require_root();
    let (directory, path) = build_for_all("mounted");
    let secret = directory.path().join("secret");
    fs::write(&secret, "1000 1000 the root password\n").expect("our own directory");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("our own file");
    let script =
        "secret=$1; shift; map=/tmp/perf-$$.map; : >$map && mount --bind \"$secret\" $map && exec \"$@\"";
    let before = [
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        script,
        "sh",
    ];
    let before = [&before[..], &[secret.to_str().expect("UTF-8")]].concat();
    let program = as_nobody(&before, &path, &[]);
    program.expect("ready");
    let target = Target::open(program.pid()).expect("it runs");
    let root = PathBuf::from(format!("/proc/{}/root", program.pid()));
    let map = root.join(format!("tmp/perf-{}.map", target.own_pid()));
    // We can read it, and it is root's.
    assert!(
        fs::read_to_string(&map)
            .expect("it is mounted")
            .contains("password")
    );
    let user = target.user().expect("it runs");
    assert_eq!(user, NOBODY);
    let read = PerfMap::read(&root, target.own_pid(), user);
    _ = fs::remove_file(format!("/tmp/perf-{}.map", program.pid()));
    assert!(read.is_err(), "{read:?}");
}
