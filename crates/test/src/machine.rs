//! Features of the machine that some tests need and a container may lack.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use super::exclusion::share_machine;
use super::program::directory;
use super::tracefs;

/// Environment variable that makes a test fail where a feature is missing, as in `make test-fresh` and CI: no
/// test is skipped unnoticed there. The value `all`, as in the guests of `make test-kernels`, includes
/// features that containers and hosted machines lack.
const REQUIRE: &str = "MEMLEAK_TEST_REQUIRE";

#[derive(Clone, Copy, Debug)]
pub enum Feature {
    /// Mount, pid and network namespaces, made by root.
    Namespaces,
    /// User namespaces, made by any user.
    UserNamespaces,
    /// An overlay over directories of the build: the kernel refuses one over another overlay.
    Overlay,
    Tracefs,
    /// Type information of the kernel.
    Btf,
    /// `CAP_SYS_RESOURCE`, which lets a process lower its OOM score, so that the kernel kills others first.
    LowerOomScores,
}

/// Returns whether the machine lacks a feature, in which case the test has to return. Prints a note, captured
/// or not.
#[must_use]
#[track_caller]
pub fn lacks(feature: Feature) -> bool {
    share_machine();
    let Err(reason) = probe(feature) else {
        return false;
    };
    let thread = std::thread::current();
    let line = format!(
        "note: skipping {}: no {feature:?}: {}\n",
        thread.name().unwrap_or("a test"),
        reason.trim()
    );
    assert!(!is_required(feature), "{REQUIRE} is set; {line}");
    // Write to standard error itself, as the harness shows captured output only of tests that fail.
    let _ = std::io::stderr().write_all(line.as_bytes());
    true
}

fn is_required(feature: Feature) -> bool {
    match (std::env::var_os(REQUIRE), feature) {
        (None, _) => false,
        // Even root of a virtual machine may lack it.
        (Some(which), Feature::LowerOomScores) => which == "all",
        (
            Some(_),
            Feature::Namespaces
            | Feature::UserNamespaces
            | Feature::Overlay
            | Feature::Tracefs
            | Feature::Btf,
        ) => true,
    }
}

fn probe(feature: Feature) -> Result<(), String> {
    let unshare = |arguments: &[&str]| succeeds(Command::new("unshare").args(arguments));
    match feature {
        Feature::Namespaces => unshare(&["--mount", "--pid", "--net", "--fork", "--mount-proc", "true"]),
        Feature::UserNamespaces => succeeds(Command::new("setpriv").args([
            "--reuid",
            "65534",
            "--clear-groups",
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "true",
        ])),
        Feature::Overlay => {
            const SCRIPT: &str = "mkdir lower upper work merged
                mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged";
            let thread = std::thread::current();
            let place = directory(&format!("overlay-{}", thread.name().unwrap_or_default()));
            succeeds(
                Command::new("unshare")
                    .current_dir(place)
                    .args(["--mount", "sh", "-euc", SCRIPT]),
            )
        }
        Feature::Tracefs => tracefs::mount(),
        Feature::LowerOomScores => {
            succeeds(Command::new("sh").args(["-ec", "echo -1 > /proc/self/oom_score_adj"]))
        }
        Feature::Btf => match Path::new("/sys/kernel/btf/vmlinux").exists() {
            true => Ok(()),
            false => Err("there is no /sys/kernel/btf/vmlinux".to_owned()),
        },
    }
}

fn succeeds(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
