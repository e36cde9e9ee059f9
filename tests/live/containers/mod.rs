//! Targets in other mount and pid namespaces, on an overlay file system, with files that were deleted or
//! replaced, and memleak in a separate pid namespace: stacks and names are as elsewhere.

mod hostile;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::verdict::verdict_on;
use memleak_test::machine::{Feature, lacks};
use memleak_test::memleak::{Memleak, child_of};
use memleak_test::program::{Program, compile, compile_as, directory, run_tool};
use memleak_test::report::{Report, from_main};

const RELEASE: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

/// A container: a program on an overlay that no other process sees, process 1 of a pid namespace.
struct Container {
    program: Program,
    /// The program's process id outside.
    pid: u32,
}

impl Container {
    /// Runs `merged/NAME` of an overlay over `lower`. The overlay ends with its program.
    #[track_caller]
    fn start(base: &Path, name: &str) -> Self {
        for part in ["upper", "work", "merged"] {
            fs::create_dir_all(base.join(part)).expect("a directory");
        }
        let script =
            "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged && exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .current_dir(base)
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", script, "sh"])
            .arg(base.join("merged").join(name));
        let program = Program::spawn(&mut command);
        program.expect("ready");
        let pid = child_of(program.pid()).expect("unshare has forked");
        Self { program, pid }
    }

    /// Runs a shell script where the program runs.
    #[track_caller]
    fn run(&self, script: &str) {
        let target = self.pid.to_string();
        run_tool(
            Command::new("nsenter").args(["--target", &target, "--mount", "--pid", "sh", "-ec", script]),
        );
    }
}

/// `lazy.c` and its library in `lower`, found from `merged`. Returns the directory above these.
fn prepare(test: &str) -> PathBuf {
    let base = directory(&format!("containers-{test}"));
    let lower = base.join("lower");
    fs::create_dir_all(&lower).expect("a directory");
    let library = lower.join("liblazy.so");
    let shared: Vec<_> = RELEASE
        .iter()
        .chain(&["-shared", "-fPIC", "-Wl,-soname,liblazy.so"])
        .copied()
        .collect();
    compile_as(&library, "stacks/lazy_library.c", &shared);
    let rpath = format!("-Wl,-rpath,{}", base.join("merged").display());
    let own = ["-Wl,-z,lazy", &rpath, library.to_str().expect("UTF-8")];
    let flags: Vec<_> = RELEASE.iter().chain(&own).copied().collect();
    compile(&lower, "stacks/lazy.c", &flags);
    base
}

/// A program in `lower`. Returns the directory above that.
fn compiled(test: &str, source: &str) -> PathBuf {
    let base = directory(&format!("containers-{test}"));
    let lower = base.join("lower");
    fs::create_dir_all(&lower).expect("a directory");
    compile(&lower, source, &RELEASE);
    base
}

/// Checks that the stack through the library is complete and named, with the paths of the container.
#[track_caller]
fn check(report: &Report, base: &Path) {
    report.check_sums();
    let stack = report.only_through("leak_in_library");
    stack.check(&from_main(&["leak_in_library", "first_call", "main"]));
    let library = base.join("merged/liblazy.so");
    assert_eq!(stack.frames[0].module.as_deref(), library.to_str(), "{stack}");
}

/// A program on an overlay in other namespaces is traced from outside like any.
#[test]
fn overlay_in_other_namespaces() {
    if lacks(Feature::Overlay) {
        return;
    }
    let base = prepare("overlay");
    let mut container = Container::start(&base, "lazy");
    let memleak = Memleak::attach(container.pid, &[]);
    container.program.step("done");
    check(&memleak.finish(), &base);
}

/// The library was replaced by another of the same name, and its directory cleared, while the program runs:
/// its stacks are those of the file that it has mapped.
#[test]
fn upgraded_while_running() {
    if lacks(Feature::Overlay) {
        return;
    }
    let base = prepare("upgraded");
    let mut container = Container::start(&base, "lazy");
    let merged = base.join("merged");
    let merged = merged.display();
    container.run(&format!(
        "cd {merged}; cp /bin/true new.so; mv new.so liblazy.so; rm lazy"
    ));
    let memleak = Memleak::attach(container.pid, &[]);
    container.program.step("done");
    check(&memleak.finish(), &base);
}

/// Inside a pid namespace, memleak traces by the process ids that are seen there.
#[test]
fn inside_a_pid_namespace() {
    if lacks(Feature::Overlay) {
        return;
    }
    let base = prepare("inside");
    let mut container = Container::start(&base, "lazy");
    let memleak = Memleak::attach_inside(container.pid, 1, &[]);
    container.program.step("done");
    let report = memleak.finish();
    assert_eq!(report.targets[0].pid, 1);
    check(&report, &base);
}

/// The children of a traced process are found by the ids that they have in memleak's pid namespace.
#[test]
fn children_inside_a_pid_namespace() {
    if lacks(Feature::Overlay) {
        return;
    }
    let base = compiled("children", "processes/fork.c");
    let mut container = Container::start(&base, "fork");
    let memleak = Memleak::attach_inside(container.pid, 1, &["--follow-fork"]);
    container.program.step("done");
    let report = memleak.finish();
    let in_child = report.only_through("in_child");
    assert_ne!(in_child.pid, 1, "{report}");
    assert_eq!(in_child.allocated.blocks, 100, "{report}");
    assert_eq!(in_child.end, "complete", "{report}");
}

/// Without the right to open mapped files by their inode, a file that was replaced is not taken for the
/// mapped one: it is named, stacks end there and say so.
#[test]
fn replaced_and_out_of_reach() {
    if lacks(Feature::Overlay) {
        return;
    }
    let base = prepare("out-of-reach");
    let mut container = Container::start(&base, "lazy");
    let merged = base.join("merged");
    container.run(&format!(
        "cd {}; cp /bin/true new.so; mv new.so liblazy.so",
        merged.display()
    ));
    let memleak = Memleak::attach_without(&["sys_admin", "checkpoint_restore"], container.pid);
    let named = |line: &String| line.contains("merged/liblazy.so") && line.contains("replaced or deleted");
    container.program.step("done");
    let (report, messages) = memleak.finish_with_messages();
    assert!(messages.iter().any(named), "{messages:#?}");
    report.check_sums();
    let stack = report.stacks.first().expect("a stack");
    assert_eq!(stack.end, "no_table", "{report}");
    assert!(
        !report.stacks.iter().any(|stack| stack.passes("leak_in_library")),
        "{report}"
    );
}

/// Blocks that are lost in a container are found from outside and from inside.
#[test]
fn verdicts_in_other_namespaces() {
    if lacks(Feature::Overlay) {
        return;
    }
    let base = compiled("verdict", "verdicts/forked.c");
    let flags = ["--verdict", "--follow-fork"];
    let from_outside = |container: &Container| Memleak::attach(container.pid, &flags);
    let from_inside = |container: &Container| Memleak::attach_inside(container.pid, 1, &flags);
    for attach in [&from_outside as &dyn Fn(&Container) -> Memleak, &from_inside] {
        let mut container = Container::start(&base, "forked");
        let memleak = attach(&container);
        container.program.step("done");
        let report = memleak.finish();
        for function in ["before_fork", "after_fork"] {
            assert_eq!(verdict_on(&report, function), [7, 0, 100, 0], "{function}");
        }
        container.program.end();
    }
}
