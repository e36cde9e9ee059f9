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

/// `CAP_SYS_ADMIN` implies the others, as it did before Linux 5.8 split them off.
const CAP_SYS_ADMIN: u32 = 21;
/// What tracing needs: name and number.
const NEEDED: [(&str, u32); 3] = [("CAP_BPF", 39), ("CAP_PERFMON", 38), ("CAP_SYS_PTRACE", 19)];
const UPROBES: &str = "/sys/bus/event_source/devices/uprobe";

/// Checks this process and kernel.
///
/// # Errors
///
/// The first thing that is missing, with the remedy.
pub fn check() -> Result<(), PreflightError> {
    let status = Process::myself().and_then(|process| process.status());
    check_capabilities(status.map_or(0, |status| status.capeff))?;
    if !fs::exists(UPROBES).unwrap_or(false) {
        return Err(PreflightError::NoUprobes { path: UPROBES });
    }
    Ok(())
}

fn check_capabilities(effective: u64) -> Result<(), PreflightError> {
    let has = |number: u32| effective >> number & 1 == 1;
    let implied = |number: u32| number != 19 && has(CAP_SYS_ADMIN);
    let missing: Vec<_> = NEEDED
        .iter()
        .filter(|&&(_, number)| !has(number) && !implied(number))
        .map(|&(name, _)| name)
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
