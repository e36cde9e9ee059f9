//! What the kernel and this process's rights allow, as far as files say so. That it really works is `attach`.

use std::fs;
use std::path::Path;

use super::Finding;
use crate::preflight::{self, Capability};

const RELEASE: &str = "/proc/sys/kernel/osrelease";
const BTF: &str = "/sys/kernel/btf/vmlinux";
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
const LIMITS: &str = "/proc/self/limits";
const PID_NAMESPACE: &str = "/proc/self/ns/pid";

/// The oldest kernel that is supported.
const OLDEST: (u32, u32) = (6, 1);
/// Fewer descriptors than this can be too few for a process's files.
const FEW_FILES: u64 = 1024;
/// `PROC_PID_INIT_INO` of `include/linux/proc_ns.h`.
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// One finding per thing that can be in the way.
pub(super) fn findings() -> Vec<Finding> {
    let mut findings = vec![release(&text_of(RELEASE)), btf(Path::new(BTF).exists())];
    findings.extend(uprobes());
    let capabilities = preflight::capabilities();
    let is_perfmon = |name: &str| name == "CAP_PERFMON";
    let perfmon = capabilities
        .iter()
        .any(|(capability, present)| *present && is_perfmon(capability.name));
    findings.extend(self::capabilities(&capabilities));
    findings.extend([
        paranoid(&text_of(PARANOID), perfmon),
        lockdown(&text_of(LOCKDOWN)),
        open_files(&text_of(LIMITS)),
        pid_namespace(fs::read_link(PID_NAMESPACE).ok().as_deref()),
    ]);
    findings
}

/// Empty when it cannot be read, which each reader of it takes for "unknown".
fn text_of(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn release(text: &str) -> Finding {
    let release = text.trim();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) if (major, minor) >= OLDEST => {
            Finding::fine("kernel", format!("Linux {release}"))
        }
        (Some(_), Some(_)) => {
            Finding::warning("kernel", format!("Linux {release} is older than what is tested"))
                .with_remedy("use Linux 6.1 or newer")
        }
        _ => Finding::note("kernel", format!("the release cannot be read from {RELEASE}")),
    }
}

fn btf(present: bool) -> Finding {
    match present {
        true => Finding::fine("btf", "the kernel has type information"),
        false => Finding::note("btf", format!("no {BTF}: probes do not need it")),
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
            let remedy = || {
                format!(
                    "run as root (sudo memleak …) or grant it with setcap {}+ep",
                    name.to_lowercase()
                )
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
        .with_remedy("run as root (sudo memleak …)"),
    }
}

/// The file lists all modes, the one in force in brackets.
fn lockdown(text: &str) -> Finding {
    let in_force = text
        .split_whitespace()
        .find_map(|mode| mode.strip_prefix('[')?.strip_suffix(']'));
    match in_force {
        None => Finding::fine("lockdown", "none: not in this kernel, or not visible"),
        Some("confidentiality") => Finding::warning(
            "lockdown",
            "confidentiality: the kernel may refuse programs that read memory",
        )
        .with_remedy("boot with lockdown=integrity, or without secure boot"),
        Some(mode) => Finding::fine("lockdown", mode),
    }
}

/// A file per module stays open, and a few descriptors more.
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
            "not the initial one: probes know processes by the ids they have there",
        )
        .with_remedy("run it outside the container, or with the host's pid namespace (--pid=host)"),
        None => Finding::note("pid_namespace", format!("cannot be read from {PID_NAMESPACE}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
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

    /// Releases are compared by number; what has no number is no reason to refuse.
    #[test]
    fn releases() {
        check(&release("6.18.44-fc-v657\n"), Level::Fine, "6.18.44");
        check(&release("6.1-rc1"), Level::Fine, "6.1");
        check(&release("10.0.1"), Level::Fine, "10.0.1");
        check(&release("5.15.0-generic"), Level::Warning, "older");
        check(&release("six"), Level::Note, "cannot be read");
        check(&release(""), Level::Note, "cannot be read");
    }

    /// A missing capability is fatal where it is needed, and each names how to get it.
    #[test]
    fn missing_capabilities() {
        let capability = |needed| Capability {
            name: "CAP_X",
            number: 1,
            purpose: "do",
            needed,
        };
        let cases = [(true, true), (true, false), (false, false)];
        let all = cases.map(|(needed, present)| (capability(needed), present));
        let findings = capabilities(&all);
        check(&findings[0], Level::Fine, "CAP_X, to do");
        check(&findings[1], Level::Fatal, "CAP_X is missing");
        check(&findings[2], Level::Note, "CAP_X is missing");
    }

    /// The mode in force is the one in brackets.
    #[test]
    fn lockdown_modes() {
        check(
            &lockdown("[none] integrity confidentiality\n"),
            Level::Fine,
            "none",
        );
        check(
            &lockdown("none [integrity] confidentiality\n"),
            Level::Fine,
            "integrity",
        );
        check(
            &lockdown("none integrity [confidentiality]\n"),
            Level::Warning,
            "confidentiality",
        );
        check(&lockdown(""), Level::Fine, "not in this kernel");
    }

    /// Limits and settings that are in the way name what to do.
    #[test]
    fn limits() {
        let limit = |soft| format!("Max processes 1 1\nMax open files            {soft}  4096  files\n");
        check(&open_files(&limit("256")), Level::Warning, "256");
        check(&open_files(&limit("1024")), Level::Fine, "1024");
        check(&open_files(&limit("unlimited")), Level::Fine, "unlimited");
        check(&open_files(""), Level::Note, "cannot be read");
        check(&paranoid("4\n", true), Level::Fine, "does not matter");
        check(&paranoid("2\n", false), Level::Warning, "CAP_PERFMON");
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
