//! Programs that the kernel refuses are findings of `memleak doctor`, and the file that it writes for an
//! issue has all of them, and nothing private.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::{doctor, end_of, findings, parse};
use memleak_test::attach_paths::attach_paths;
use memleak_test::machine::{Feature, lacks};
use memleak_test::program::{directory, require_root};

const BROKEN: &str = "--break-program";

/// A part that is missing is a warning, with how to report it; a way that is refused is a note; without any
/// way, there can be no trace.
#[test]
fn refused_programs_are_findings() {
    require_root();
    let diagnosis = |broken| {
        let output = doctor(&["--format", "json", BROKEN, broken]);
        (output.status.code(), parse(&output))
    };
    let (status, found) = diagnosis("python_code_end");
    let missing = findings(&found["system"], "missing");
    let [("warning", text, Some(remedy))] = missing[..] else {
        panic!("{missing:?}");
    };
    assert_eq!(status, Some(0));
    assert!(
        text.starts_with("functions of Python are not in stacks: "),
        "{text}"
    );
    assert!(remedy.contains("memleak doctor --report"), "{remedy}");
    if attach_paths()[0] == "session" {
        let (status, found) = diagnosis("allocation_session");
        let used = findings(&found["system"], "attach");
        assert_eq!((status, used[0].1), (Some(0), "traces use multi-probe links"));
        let refused = findings(&found["system"], "attach_session")[0].1;
        assert!(
            refused.contains("refused the program allocation_session: infinite loop"),
            "{refused}"
        );
    }
    let (status, found) = diagnosis("free_entry");
    let [(level, text, Some(remedy))] = findings(&found["system"], "attach")[..] else {
        panic!("{found:#}");
    };
    assert_eq!((status, level), (Some(2), "fatal"));
    assert!(
        text.contains("refused the program free_entry: infinite loop"),
        "{text}"
    );
    assert!(remedy.contains("memleak doctor --report"), "{remedy}");
}

/// The file has the kernel, what became of each program, and the verifier's log of those that were refused;
/// it names no host, user, directory, process or variable of this machine. It replaces an older one, and
/// nothing else.
#[test]
fn report_for_an_issue() {
    if lacks(Feature::Namespaces) {
        return;
    }
    require_root();
    let place = directory("doctor-report").join("private-directory");
    fs::create_dir_all(&place).expect("a directory of ours");
    let file = place.join("memleak-report.txt");
    let _ = fs::remove_file(&file);
    let script = "echo private-host > /proc/sys/kernel/hostname; exec \"$@\"";
    let report = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args([
            "--uts",
            "sh",
            "-ec",
            script,
            "sh",
            env!("CARGO_BIN_EXE_memleak"),
            "doctor",
        ]);
        command.args(arguments).current_dir(&place);
        command
            .env("USER", "private-user")
            .env("HOME", "/home/private-home")
            .env("PRIVATE", "private-variable");
        end_of(command)
    };
    let output = report(&["--report", BROKEN, "free_entry,kernel_kfree"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.starts_with("wrote memleak-report.txt: attach it to an issue; "),
        "{said}"
    );
    let text = fs::read_to_string(&file).expect("it was written");
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("it has one");
    for part in [
        &format!("Linux {}\n", release.trim()),
        " bytes, SHA-256 ",
        "  kernel.unprivileged_bpf_disabled:  ",
        "  loaded   process_exec: ",
        " instructions\n",
        "  refused  free_entry: infinite loop detected at insn ",
        "  refused  kernel_kfree: infinite loop detected at insn ",
        "\nEnd of the verifier's log of free_entry for blocks, by ",
        "\nEnd of the verifier's log of kernel_kfree for the kernel's own allocations\n",
        "  infinite loop detected at insn ",
        " (05) goto pc-1\n",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    assert!(text.len() < 4 << 20 && text.lines().all(|line| line.len() < 16 << 10));
    assert!(!text.contains("private"), "{text}");
    let refused = report(&["--report", "-"]);
    assert_eq!(refused.status.code(), Some(0), "{refused:?}");
    assert!(!String::from_utf8_lossy(&refused.stdout).contains("  refused  free_entry"));
    let again = report(&["--report"]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    assert!(
        !fs::read_to_string(&file)
            .expect("it was written")
            .contains("  refused  free_entry")
    );
    assert_eq!(
        fs::metadata(&file).expect("it is there").permissions().mode() & 0o77,
        0
    );
    fs::write(&file, "notes").expect("a file of ours");
    let other = report(&["--report"]);
    let errors = String::from_utf8_lossy(&other.stderr);
    assert_eq!(
        (other.status.code(), errors.trim_end().lines().count()),
        (Some(2), 1),
        "{errors}"
    );
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "notes");
}
