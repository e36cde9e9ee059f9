//! Rights instead of root: the three capabilities of `docs/permissions.md` are enough, each missing one is
//! named in one line with its remedy, and so is whatever refuses programs to a user who has them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

use super::{check_cannot_trace, doctor_by};
use memleak_test::attach_paths::attach_paths;
use memleak_test::machine::{Feature, lacks};
use memleak_test::memleak::Memleak;
use memleak_test::program::{Program, compile_as, copy_program, directory, require_root, run_tool};
use memleak_test::report::Report;

/// The list that every message names.
const GRANT: &str = "setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep";
const TRACING: [&str; 3] = ["bpf", "perfmon", "sys_ptrace"];

const NOBODY: u32 = 65534;
const ANOTHER: u32 = 1;

/// Capabilities that tracing needs on this kernel: perf events need more.
fn needed() -> Vec<&'static str> {
    let by_perf_only = attach_paths() == ["perf"];
    let admin = by_perf_only.then_some("sys_admin");
    TRACING.into_iter().chain(admin).collect()
}

/// Copies that any user can execute: the build directory may be closed to others.
struct Place {
    directory: TempDir,
    /// The target's program, for copies.
    compiled: PathBuf,
}

impl Place {
    fn new(test: &str) -> Self {
        require_root();
        let directory = tempfile::tempdir().expect("a new directory");
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), open).expect("our own directory");
        let compiled = self::directory(&format!("doctor-{test}")).join("calls");
        compile_as(&compiled, "allocators/calls.c", &["-O2", "-fomit-frame-pointer"]);
        let place = Self { directory, compiled };
        copy_program(env!("CARGO_BIN_EXE_memleak"), place.path("memleak"));
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A command that runs `program` as this user with these capabilities and no others.
    fn command(&self, user: u32, capabilities: &[&str], program: &str) -> Command {
        let kept = capabilities.iter().map(|name| format!(",+{name}"));
        let sets = format!("-all{}", kept.collect::<String>());
        let user = user.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
        command.args([
            "--bounding-set",
            &sets,
            "--inh-caps",
            &sets,
            "--ambient-caps",
            &sets,
        ]);
        command.arg("--").arg(self.path(program));
        command
    }

    /// Starts a program of `user` that waits before it makes its calls.
    #[track_caller]
    fn target(&self, user: u32) -> Program {
        // Another file each time: the last one may still run.
        let _ = fs::remove_file(self.path("calls"));
        copy_program(&self.compiled, self.path("calls"));
        run_tool(
            Command::new("chown")
                .arg(user.to_string())
                .arg(self.path("calls")),
        );
        let program = Program::spawn(&mut self.command(user, &[], "calls"));
        program.expect("ready");
        program
    }

    /// Traces a target as the user `nobody` with these capabilities. Returns the report and the messages.
    #[track_caller]
    fn trace(&self, mut target: Program, capabilities: &[&str], flags: &[&str]) -> (Report, Vec<String>) {
        let memleak = Memleak::attach_by(self.command(NOBODY, capabilities, "memleak"), target.pid(), flags);
        target.step("done");
        let (report, messages) = memleak.finish_with_messages();
        assert!(target.end().success());
        report.check_sums();
        (report, messages)
    }

    /// Runs memleak as the user `nobody` with these capabilities. Returns its refusal, which is one line.
    #[track_caller]
    fn refused(&self, pid: u32, capabilities: &[&str], flags: &[&str]) -> String {
        let mut command = self.command(NOBODY, capabilities, "memleak");
        refusal(
            &command
                .args(["-q", "-p", &pid.to_string()])
                .args(flags)
                .output()
                .expect("setpriv"),
        )
    }
}

/// Returns the one line of a trace that could not begin.
#[track_caller]
fn refusal(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(errors.trim_end().lines().count(), 1, "{errors}");
    errors
}

#[track_caller]
fn check_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

/// Checks that everything is there: the block that is left, its complete stack, and no word of files that
/// could not be read.
#[track_caller]
fn check_complete(report: &Report, messages: &[String]) {
    let stack = report.only_through("malloc_kept");
    assert_eq!(
        (stack.outstanding.bytes, stack.end.as_str()),
        (1001, "complete"),
        "{report}"
    );
    let incomplete = report.stacks.iter().find(|stack| stack.end != "complete");
    assert!(incomplete.is_none(), "{report}");
    let denied = messages
        .iter()
        .find(|line| line.contains("permission") || line.contains("CAP_DAC"));
    assert_eq!(denied, None);
}

/// Three capabilities are enough for a process of one's own, and for another user's.
#[test]
fn three_capabilities_are_enough() {
    let place = Place::new("three");
    for user in [NOBODY, ANOTHER] {
        let (report, messages) = place.trace(place.target(user), &needed(), &[]);
        check_complete(&report, &messages);
    }
}

/// A missing capability is named with the command that grants it, by a trace and by doctor.
#[test]
fn missing_capabilities_are_named_with_remedy() {
    let place = Place::new("missing");
    let target = place.target(NOBODY);
    for (missing, name) in TRACING
        .into_iter()
        .zip(["CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE"])
    {
        let others: Vec<_> = TRACING.into_iter().filter(|&other| other != missing).collect();
        let errors = place.refused(target.pid(), &others, &[]);
        check_contains(&errors, &[&format!("needs {name}: "), GRANT]);
        let output = place.command(NOBODY, &others, "memleak").arg("doctor").output();
        let output = output.expect("setpriv");
        check_cannot_trace(&output, &[&format!("{name} is missing")]);
        check_contains(&String::from_utf8_lossy(&output.stdout), &[GRANT]);
    }
}

/// Perf events ask for CAP_SYS_ADMIN, and say so.
#[test]
fn perf_events_need_more() {
    let place = Place::new("perf");
    let by_perf = ["--attach", "perf"];
    let target = place.target(ANOTHER);
    let errors = place.refused(target.pid(), &TRACING, &by_perf);
    check_contains(
        &errors,
        &[
            "perf events, which need CAP_SYS_ADMIN",
            "sudo memleak",
            "Linux 6.6",
        ],
    );
    let more = [&TRACING[..], &["sys_admin"]].concat();
    let (report, messages) = place.trace(target, &more, &by_perf);
    check_complete(&report, &messages);
}

/// A program that only its user can read takes CAP_DAC_READ_SEARCH.
#[test]
fn files_of_one_user() {
    let place = Place::new("closed");
    let target = place.target(ANOTHER);
    let closed = fs::Permissions::from_mode(0o700);
    fs::set_permissions(place.path("calls"), closed).expect("a file of ours");
    let errors = place.refused(target.pid(), &needed(), &[]);
    check_contains(&errors, &["CAP_DAC_READ_SEARCH", "calls", "sudo"]);
    let more = [&needed()[..], &["dac_read_search"]].concat();
    let (report, messages) = place.trace(target, &more, &[]);
    check_complete(&report, &messages);
}

/// A program whose file is gone takes CAP_CHECKPOINT_RESTORE, and of another user CAP_DAC_READ_SEARCH.
#[test]
fn deleted_files() {
    let place = Place::new("deleted");
    for (user, more) in [
        (NOBODY, &["checkpoint_restore"][..]),
        (ANOTHER, &["checkpoint_restore", "dac_read_search"]),
    ] {
        let deleted = || {
            let target = place.target(user);
            fs::remove_file(place.path("calls")).expect("a file of ours");
            target
        };
        let (report, messages) = place.trace(deleted(), &needed(), &[]);
        let warned = messages.iter().find(|line| line.contains("replaced or deleted"));
        check_contains(
            warned.expect("a warning"),
            &["CAP_CHECKPOINT_RESTORE", "CAP_DAC_READ_SEARCH", "sudo"],
        );
        assert!(
            report.unwinding.stacks["complete"] < report.stacks.len() as u64,
            "{report}"
        );
        let (report, messages) = place.trace(deleted(), &[&needed()[..], more].concat(), &[]);
        check_complete(&report, &messages);
    }
}

/// Runs memleak in a new mount namespace, prepared by a shell script.
fn in_namespace(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-ec", &format!("{script}; exec \"$@\""), "sh"]);
    command.arg(env!("CARGO_BIN_EXE_memleak"));
    command
}

#[track_caller]
fn refused_by(mut command: Command) -> String {
    refusal(
        &command
            .args(["-q", "-p", &std::process::id().to_string()])
            .output()
            .expect("it starts"),
    )
}

/// Checks that a trace is refused in one line for this reason, with this remedy, and that doctor says both.
#[track_caller]
fn check_obstacle(memleak: impl Fn() -> Command, reason: &str, remedy: &str) {
    check_contains(&refused_by(memleak()), &[reason, remedy]);
    let output = doctor_by(memleak());
    check_cannot_trace(&output, &[reason]);
    let text = String::from_utf8_lossy(&output.stdout);
    let fatal = text.lines().find(|line| line.starts_with("  fatal"));
    check_contains(fatal.expect("a line"), &[reason, remedy]);
}

/// A kernel without type information loads nothing, and the refusal says that this is why.
#[test]
fn no_type_information() {
    if lacks(Feature::Namespaces) {
        return;
    }
    require_root();
    let command = || in_namespace("mount -t tmpfs none /sys/kernel/btf");
    check_obstacle(
        command,
        "/sys/kernel/btf/vmlinux is missing",
        "CONFIG_DEBUG_INFO_BTF",
    );
}

/// The kernel's lockdown mode is stated; in confidentiality, the refusal names it, with the boot parameter to
/// change it. `KERNEL_LOCKDOWN` names the expected mode, where a test chose it.
#[test]
fn lockdown() {
    require_root();
    let text = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    let mode = text.split(['[', ']']).nth(1).unwrap_or("none");
    if let Ok(chosen) = std::env::var("KERNEL_LOCKDOWN") {
        assert_eq!(mode, chosen, "{text}");
    }
    let memleak = || Command::new(env!("CARGO_BIN_EXE_memleak"));
    if mode == "confidentiality" {
        check_obstacle(memleak, "locked down (confidentiality)", "lockdown=integrity");
        return;
    }
    let output = doctor_by(memleak());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    check_contains(&String::from_utf8_lossy(&output.stdout), &["ok       lockdown: "]);
}

/// Without tracefs everything can be traced but mapping calls.
#[test]
fn no_tracefs() {
    if lacks(Feature::Namespaces) || lacks(Feature::Tracefs) {
        return;
    }
    require_root();
    let command = || in_namespace("umount -l /sys/kernel/tracing; ! umount -l /sys/kernel/debug 2>/dev/null");
    let mut of_mappings = command();
    of_mappings.arg("--mmap");
    check_contains(
        &refused_by(of_mappings),
        &["--mmap", "mount -t tracefs nodev /sys/kernel/tracing"],
    );
    let output = doctor_by(command());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    check_contains(
        &String::from_utf8_lossy(&output.stdout),
        &["note     tracefs: ", "mount -t tracefs"],
    );
}

/// A seccomp filter, as containers have one: it is named, with what to start the container with.
#[test]
fn refused_by_seccomp() {
    require_root();
    let filter = directory("doctor-seccomp").join("no_bpf");
    compile_as(&filter, "hostile/no_bpf.c", &["-O2"]);
    let command = || {
        let mut command = Command::new(&filter);
        command.arg(env!("CARGO_BIN_EXE_memleak"));
        command
    };
    check_obstacle(command, "bpf() is refused", "seccomp=unconfined");
}

/// Documents name the same capabilities as messages.
#[test]
fn documents_list_the_same_capabilities() {
    for file in ["docs/permissions.md", "tests/package.sh"] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = fs::read_to_string(path).expect("it is here");
        assert_eq!(
            text.matches("setcap cap_").count(),
            text.matches(GRANT).count(),
            "{file}"
        );
        assert!(text.contains(GRANT), "{file}");
    }
}
