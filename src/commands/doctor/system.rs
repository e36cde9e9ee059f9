//! Checks what the kernel and this process's rights allow, as far as files show it. `attach` tests whether it
//! works.

use std::fs;
use std::path::Path;

use super::finding::Finding;
use crate::bpf::preflight::{self, Capability, PreflightError};
use crate::bpf::{LoadError, check_large_arrays};

const RELEASE: &str = "/proc/sys/kernel/osrelease";
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
const UNPRIVILEGED: &str = "/proc/sys/kernel/unprivileged_bpf_disabled";
/// Directories in which the kernel lists its tracepoints, for those who may read them.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"];
const LIMITS: &str = "/proc/self/limits";
const PID_NAMESPACE: &str = "/proc/self/ns/pid";

/// Minimum limit of open files; less can be too few for a process's files.
const FEW_FILES: u64 = 1024;
/// Link of the initial PID namespace: `PROC_PID_INIT_INO` of `include/linux/proc_ns.h`.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Returns a finding for each thing that can hinder a trace.
pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![release(&text_of(RELEASE)), btf(preflight::has_btf())];
    findings.extend(uprobes());
    let capabilities = preflight::capabilities();
    let has = |name: &str| {
        let found = capabilities
            .iter()
            .find(|(capability, _)| capability.name == name);
        found.is_some_and(|(_, present)| *present)
    };
    findings.extend(self::capabilities(&capabilities));
    findings.extend(has("CAP_BPF").then(|| bpf(preflight::check_bpf())));
    findings.extend(large_arrays(check_large_arrays()));
    findings.extend([
        unprivileged(&text_of(UNPRIVILEGED), has("CAP_BPF")),
        paranoid(&text_of(PARANOID), has("CAP_PERFMON")),
        lockdown(preflight::lockdown().as_deref()),
        tracefs(TRACEFS.into_iter().any(|path| fs::read_dir(path).is_ok())),
        open_files(&text_of(LIMITS)),
        pid_namespace(fs::read_link(PID_NAMESPACE).ok().as_deref()),
    ]);
    findings
}

/// Text of a file; empty if it cannot be read, which each caller treats as unknown.
fn text_of(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn release(text: &str) -> Finding {
    // Features are tested, not inferred from the release.
    match text.trim() {
        "" => Finding::note("kernel", format!("the release cannot be read from {RELEASE}")),
        release => Finding::fine("kernel", format!("Linux {release}")),
    }
}

fn btf(present: bool) -> Finding {
    match present {
        true => Finding::fine("btf", "the kernel has type information"),
        false => Finding::warning("btf", preflight::NO_BTF).with_remedy(preflight::BTF_REMEDY),
    }
}

fn bpf(tried: Result<(), PreflightError>) -> Finding {
    match tried {
        Ok(()) => Finding::fine("bpf", "bpf() works"),
        Err(PreflightError::BpfRefused { error, why }) => {
            Finding::warning("bpf", format!("bpf() is refused ({error})")).with_remedy(why)
        }
        Err(error) => Finding::warning("bpf", error.to_string()),
    }
}

/// Finding about arrays of the size that traces need. Other errors are left to other checks.
fn large_arrays(tried: Result<(), LoadError>) -> Option<Finding> {
    let topic = "large_arrays";
    match tried {
        Ok(()) => Some(Finding::fine(topic, "arrays of more than 4 MiB: tried, works")),
        Err(error @ LoadError::LargeArray { .. }) => Some(
            Finding::fatal(topic, error.to_string())
                .with_remedy("use a kernel with the BPF of Linux 6.0 or newer"),
        ),
        Err(_) => None,
    }
}

fn unprivileged(text: &str, bpf: bool) -> Finding {
    let topic = "unprivileged_bpf_disabled";
    match (text.trim(), bpf) {
        ("", _) => Finding::note(topic, format!("cannot be read from {UNPRIVILEGED}")),
        (value, true) => Finding::fine(topic, format!("{value}, which does not matter with CAP_BPF")),
        (value, false) => Finding::warning(
            topic,
            format!("{value}: with any value, these programs need CAP_BPF"),
        )
        .with_remedy(format!("run as root (sudo memleak …) or {}", preflight::GRANT)),
    }
}

fn tracefs(is_readable: bool) -> Finding {
    match is_readable {
        true => Finding::fine("tracefs", "mounted and readable"),
        false => Finding::note(
            "tracefs",
            "not mounted, or not readable by this user: --mmap and --faults cannot be used",
        )
        .with_remedy("mount -t tracefs nodev /sys/kernel/tracing, and have CAP_DAC_READ_SEARCH if not root"),
    }
}

fn uprobes() -> Option<Finding> {
    let missing = preflight::check_uprobes().err()?;
    let remedy = "use a kernel that is built with CONFIG_UPROBE_EVENTS";
    Some(Finding::fatal("uprobes", missing.to_string()).with_remedy(remedy))
}

fn capabilities(all: &[(Capability, bool)]) -> Vec<Finding> {
    let finding =
        |&(capability, present): &(Capability, bool)| {
            let Capability {
                name,
                purpose,
                needed,
                ..
            } = capability;
            // One command for all: a second setcap revokes what the first one granted.
            let remedy = || match needed {
                true => format!(
                    "run as root (sudo memleak …) or grant what it needs with {}",
                    preflight::GRANT
                ),
                false => format!(
                    "run as root (sudo memleak …) or add {} to what setcap grants",
                    name.to_lowercase()
                ),
            };
            match (present, needed) {
                (true, _) => Finding::fine("capability", format!("{name}, to {purpose}")),
                (false, true) => Finding::fatal("capability", format!("{name} is missing, to {purpose}"))
                    .with_remedy(remedy()),
                (false, false) => Finding::note("capability", format!("{name} is missing, to {purpose}"))
                    .with_remedy(remedy()),
            }
        };
    all.iter().map(finding).collect()
}

fn paranoid(text: &str, perfmon: bool) -> Finding {
    let value = text.trim();
    match (value.parse::<i32>(), perfmon) {
        (Err(_), _) => Finding::note("perf_event_paranoid", format!("cannot be read from {PARANOID}")),
        (Ok(_), true) => Finding::fine(
            "perf_event_paranoid",
            format!("{value}, which does not matter with CAP_PERFMON"),
        ),
        (Ok(_), false) => Finding::warning(
            "perf_event_paranoid",
            format!("{value}, which needs CAP_PERFMON for probes"),
        )
        .with_remedy(format!("run as root (sudo memleak …) or {}", preflight::GRANT)),
    }
}

fn lockdown(mode: Option<&str>) -> Finding {
    match mode {
        None => Finding::fine("lockdown", "none: not in this kernel, or not visible"),
        Some(preflight::CONFIDENTIALITY) => {
            Finding::warning("lockdown", preflight::LOCKED_DOWN).with_remedy(preflight::LOCKDOWN_REMEDY)
        }
        Some(mode) => Finding::fine("lockdown", mode),
    }
}

/// Checks the limit of open files: one file per module stays open, and a few more.
fn open_files(limits: &str) -> Finding {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    match soft.map(|soft| (soft, soft.parse::<u64>())) {
        None => Finding::note("open_files", format!("the limit cannot be read from {LIMITS}")),
        Some((_, Ok(soft))) if soft < FEW_FILES => Finding::warning(
            "open_files",
            format!("at most {soft}: each mapped file takes one"),
        )
        .with_remedy(format!("ulimit -n {FEW_FILES}")),
        Some((soft, _)) => Finding::fine("open_files", format!("at most {soft}")),
    }
}

fn pid_namespace(link: Option<&Path>) -> Finding {
    match link {
        Some(link) if link == Path::new(INITIAL_PID_NAMESPACE) => {
            Finding::fine("pid_namespace", "the initial one")
        }
        Some(_) => Finding::warning(
            "pid_namespace",
            "not the initial one: probes see the process IDs of the initial namespace",
        )
        .with_remedy("run it outside the container, or with the host's pid namespace (--pid=host)"),
        None => Finding::note("pid_namespace", format!("cannot be read from {PID_NAMESPACE}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[track_caller]
    fn check(finding: &Finding, level: Level, part: &str) {
        assert_eq!(finding.level, level, "{finding:?}");
        assert!(finding.text.contains(part), "no {part:?} in {finding:?}");
        let remedy_due = level >= Level::Warning;
        assert!(
            finding.remedy.is_some() || !remedy_due,
            "no remedy in {finding:?}"
        );
    }

    /// Releases are shown, not judged.
    #[test]
    fn releases() {
        check(&release("6.18.44-fc-v657\n"), Level::Fine, "6.18.44");
        check(&release("5.15.0-generic"), Level::Fine, "5.15.0");
        check(&release(""), Level::Note, "cannot be read");
    }

    /// A missing capability is fatal if it is required; each finding has a remedy.
    #[test]
    fn missing_capabilities() {
        let capability = |needed| match needed {
            true => preflight::needed("CAP_X", 1, "do"),
            false => preflight::optional("CAP_X", 1, "do"),
        };
        let cases = [(true, true), (true, false), (false, false)];
        let all = cases.map(|(needed, present)| (capability(needed), present));
        let findings = capabilities(&all);
        check(&findings[0], Level::Fine, "CAP_X, to do");
        check(&findings[1], Level::Fatal, "CAP_X is missing");
        check(&findings[2], Level::Note, "CAP_X is missing");
    }

    /// Only confidentiality mode is worth a warning.
    #[test]
    fn lockdown_modes() {
        check(&lockdown(Some("none")), Level::Fine, "none");
        check(&lockdown(Some("integrity")), Level::Fine, "integrity");
        check(
            &lockdown(Some("confidentiality")),
            Level::Warning,
            "confidentiality",
        );
        check(&lockdown(None), Level::Fine, "not in this kernel");
    }

    /// Too small arrays are fatal. An array that is refused for another reason gives no finding here.
    #[test]
    fn arrays() {
        let too_large = LoadError::LargeArray {
            bytes: 8 << 20,
            errno: nix::errno::Errno::E2BIG,
        };
        let finding = large_arrays(Err(too_large)).expect("a finding");
        check(&finding, Level::Fatal, "before 6.0, arrays have at most 4 MiB");
        check(&large_arrays(Ok(())).expect("a finding"), Level::Fine, "works");
        let denied = LoadError::Refused(libbpf_rs::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(large_arrays(Err(denied)), None);
    }

    /// Limits and settings that hinder a trace have a remedy.
    #[test]
    fn limits() {
        let limit = |soft| format!("Max processes 1 1\nMax open files            {soft}  4096  files\n");
        check(&open_files(&limit("256")), Level::Warning, "256");
        check(&open_files(&limit("1024")), Level::Fine, "1024");
        check(&open_files(&limit("unlimited")), Level::Fine, "unlimited");
        check(&open_files(""), Level::Note, "cannot be read");
        check(&paranoid("4\n", true), Level::Fine, "does not matter");
        check(&paranoid("2\n", false), Level::Warning, "CAP_PERFMON");
        check(&unprivileged("2\n", true), Level::Fine, "does not matter");
        check(&unprivileged("0\n", false), Level::Warning, "CAP_BPF");
        check(&tracefs(false), Level::Note, "--mmap");
        check(
            &pid_namespace(Some(Path::new("pid:[1]"))),
            Level::Warning,
            "not the initial",
        );
        check(
            &pid_namespace(Some(Path::new(INITIAL_PID_NAMESPACE))),
            Level::Fine,
            "initial",
        );
    }
}
