//! What this process and kernel must have before anything is loaded. Findings are values; nothing is printed.

use std::fs;

use procfs::process::Process;
use thiserror::Error;

/// Something is missing.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PreflightError {
    /// Capabilities.
    #[error("tracing needs {missing}: run as root (sudo memleak …) or grant them with setcap")]
    Capabilities {
        /// Their names.
        missing: String,
    },
    /// The kernel has no uprobes.
    #[error("this kernel has no uprobes ({path} is missing): it must be built with CONFIG_UPROBE_EVENTS")]
    NoUprobes {
        /// What was looked for.
        path: &'static str,
    },
}

/// A capability that makes a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Its name.
    pub name: &'static str,
    /// Its number in `include/uapi/linux/capability.h`.
    pub number: u32,
    /// What it is used to do, as a verb phrase.
    pub purpose: &'static str,
    /// Whether nothing can be traced without it.
    pub needed: bool,
}

/// `CAP_SYS_ADMIN` implies those that Linux 5.8 and 5.9 split off it.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_PTRACE: u32 = 19;
const CAPABILITIES: [Capability; 4] = [
    capability("CAP_BPF", 39, "load programs", true),
    capability("CAP_PERFMON", 38, "attach probes", true),
    capability(
        "CAP_SYS_PTRACE",
        CAP_SYS_PTRACE,
        "read other users' processes",
        true,
    ),
    capability(
        "CAP_CHECKPOINT_RESTORE",
        40,
        "open mapped files that were deleted or replaced",
        false,
    ),
];

const fn capability(name: &'static str, number: u32, purpose: &'static str, needed: bool) -> Capability {
    Capability {
        name,
        number,
        purpose,
        needed,
    }
}

const UPROBES: &str = "/sys/bus/event_source/devices/uprobe";

/// Checks this process and kernel.
///
/// # Errors
///
/// The first thing that is missing, with the remedy.
pub fn check() -> Result<(), PreflightError> {
    check_capabilities(effective())?;
    check_uprobes()
}

/// Checks this process for tracing the kernel's own allocations; what that needs of the kernel is found out elsewhere.
///
/// # Errors
///
/// The capabilities that are missing, with the remedy.
pub fn check_kernel_mode() -> Result<(), PreflightError> {
    check_capabilities_but(effective(), &["CAP_SYS_PTRACE"])
}

/// Checks that the kernel has uprobes.
///
/// # Errors
///
/// [`PreflightError::NoUprobes`].
pub fn check_uprobes() -> Result<(), PreflightError> {
    if !fs::exists(UPROBES).unwrap_or(false) {
        return Err(PreflightError::NoUprobes { path: UPROBES });
    }
    Ok(())
}

/// Every capability that makes a difference, and whether this process has it.
pub fn capabilities() -> Vec<(Capability, bool)> {
    let effective = effective();
    let with_presence = |capability: Capability| (capability, has(effective, &capability));
    CAPABILITIES.into_iter().map(with_presence).collect()
}

/// The effective set; empty when it cannot be read.
fn effective() -> u64 {
    let status = Process::myself().and_then(|process| process.status());
    status.map_or(0, |status| status.capeff)
}

fn has(effective: u64, capability: &Capability) -> bool {
    let has = |number: u32| effective >> number & 1 == 1;
    let implied = capability.number != CAP_SYS_PTRACE && has(CAP_SYS_ADMIN);
    implied || has(capability.number)
}

fn check_capabilities(effective: u64) -> Result<(), PreflightError> {
    check_capabilities_but(effective, &[])
}

fn check_capabilities_but(effective: u64, others: &[&str]) -> Result<(), PreflightError> {
    let needed = CAPABILITIES
        .iter()
        .filter(|capability| capability.needed && !others.contains(&capability.name));
    let missing: Vec<_> = needed
        .filter(|capability| !has(effective, capability))
        .map(|capability| capability.name)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(PreflightError::Capabilities {
        missing: missing.join(", "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Missing capabilities are named; `CAP_SYS_ADMIN` stands for those that were split off it.
    #[test]
    fn missing_capabilities_are_named() {
        let bits = |numbers: &[u32]| numbers.iter().fold(0, |bits, number| bits | 1 << number);
        let missing = |names: &str| {
            Err(PreflightError::Capabilities {
                missing: names.to_owned(),
            })
        };
        for (effective, expected) in [
            (bits(&[39, 38, 19]), Ok(())),
            (bits(&[21, 19]), Ok(())),
            (u64::MAX, Ok(())),
            (0, missing("CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE")),
            (bits(&[39, 19]), missing("CAP_PERFMON")),
            (bits(&[21]), missing("CAP_SYS_PTRACE")),
        ] {
            assert_eq!(check_capabilities(effective), expected, "{effective:#x}");
        }
    }
}
