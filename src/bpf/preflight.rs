//! Checks of this process and kernel before anything is loaded. Findings are values; nothing is printed.

use std::fmt;
use std::fs;
use std::path::Path;

use libbpf_rs::libbpf_sys::bpf_map_create_opts;
use libbpf_rs::{MapHandle, MapType};
use thiserror::Error;

use crate::base::proc_fields::ProcFields;

/// Something is missing.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PreflightError {
    /// Capabilities are missing.
    #[error("tracing needs {missing}: run as root (sudo memleak …) or grant what it needs with {GRANT}")]
    Capabilities {
        /// Names of the missing capabilities.
        missing: String,
    },
    #[error("this kernel has no uprobes ({path} is missing): it must be built with CONFIG_UPROBE_EVENTS")]
    NoUprobes {
        /// Path that is missing.
        path: &'static str,
    },
    /// `bpf()` is refused for every command.
    #[error("bpf() is refused ({error}): {why}")]
    BpfRefused {
        error: String,
        /// Likely cause, and remedy.
        why: &'static str,
    },
}

/// Command that grants a program all that tracing needs. One command, since each `setcap` replaces what was
/// granted before.
pub const GRANT: &str = "setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep";

/// A capability that tracing uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    pub name: &'static str,
    /// Number in `include/uapi/linux/capability.h`.
    pub number: u32,
    /// Permitted actions, as a verb phrase.
    pub purpose: &'static str,
    /// True if nothing can be traced without it.
    pub needed: bool,
    /// Number of a capability that includes it.
    implied_by: Option<u32>,
}

const CAP_DAC_OVERRIDE: u32 = 1;
/// Includes CAP_BPF, CAP_PERFMON and CAP_CHECKPOINT_RESTORE, which Linux 5.8 and 5.9 split off it.
const CAP_SYS_ADMIN: u32 = 21;
const CAPABILITIES: [Capability; 8] = [
    needed("CAP_BPF", 39, "load programs").implied_by(CAP_SYS_ADMIN),
    needed("CAP_PERFMON", 38, "attach probes").implied_by(CAP_SYS_ADMIN),
    needed("CAP_SYS_PTRACE", 19, "read processes"),
    optional(
        "CAP_DAC_READ_SEARCH",
        2,
        "read files that file modes deny to this user",
    )
    .implied_by(CAP_DAC_OVERRIDE),
    optional(
        "CAP_CHECKPOINT_RESTORE",
        40,
        "open mapped files that were deleted or replaced",
    )
    .implied_by(CAP_SYS_ADMIN),
    optional(
        "CAP_SYS_ADMIN",
        CAP_SYS_ADMIN,
        "attach by perf events (the only way before Linux 6.6), and measure run times of programs",
    ),
    optional(
        "CAP_SYS_NICE",
        23,
        "receive deferred walks without delay on a busy machine",
    ),
    optional(
        "CAP_SYS_RESOURCE",
        24,
        "be spared when the kernel kills processes for lack of memory",
    ),
];

pub(crate) const fn needed(name: &'static str, number: u32, purpose: &'static str) -> Capability {
    Capability {
        name,
        number,
        purpose,
        needed: true,
        implied_by: None,
    }
}

pub(crate) const fn optional(name: &'static str, number: u32, purpose: &'static str) -> Capability {
    Capability {
        needed: false,
        ..needed(name, number, purpose)
    }
}

impl Capability {
    const fn implied_by(self, other: u32) -> Self {
        Self {
            implied_by: Some(other),
            ..self
        }
    }
}

const UPROBES: &str = "/sys/bus/event_source/devices/uprobe";
const BTF: &str = "/sys/kernel/btf/vmlinux";
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// The lockdown mode in which programs cannot read the kernel's memory.
pub const CONFIDENTIALITY: &str = "confidentiality";
/// Message for a kernel in [`CONFIDENTIALITY`] mode.
pub const LOCKED_DOWN: &str =
    "the kernel is locked down (confidentiality) and refuses programs that read its memory";
/// Remedy for [`LOCKED_DOWN`].
pub const LOCKDOWN_REMEDY: &str = "boot with lockdown=integrity or lockdown=none";
/// Message for a kernel without BTF, which the programs that follow processes need.
pub const NO_BTF: &str = "the kernel shows no type information (/sys/kernel/btf/vmlinux is missing)";
/// Remedy for [`NO_BTF`].
pub const BTF_REMEDY: &str =
    "use a kernel built with CONFIG_DEBUG_INFO_BTF, as Debian's are, and mount /sys in a container";

/// Checks this process and kernel for tracing processes.
///
/// # Errors
///
/// The first requirement that is not met, with the remedy.
pub fn check() -> Result<(), PreflightError> {
    check_capabilities(effective())?;
    check_uprobes()?;
    check_bpf()
}

/// Checks this process for tracing the kernel's own allocations. Requirements on the kernel for that are
/// checked in `tracepoints`.
///
/// # Errors
///
/// Missing capabilities, with the remedy.
pub fn check_kernel_mode() -> Result<(), PreflightError> {
    check_capabilities_but(effective(), &["CAP_SYS_PTRACE"])?;
    check_bpf()
}

/// Checks that the kernel has uprobes.
pub fn check_uprobes() -> Result<(), PreflightError> {
    if !fs::exists(UPROBES).unwrap_or(false) {
        return Err(PreflightError::NoUprobes { path: UPROBES });
    }
    Ok(())
}

/// Checks that `bpf()` is permitted, by creating the smallest possible map.
pub fn check_bpf() -> Result<(), PreflightError> {
    let options = bpf_map_create_opts {
        sz: size_of::<bpf_map_create_opts>() as u64,
        ..Default::default()
    };
    let made = MapHandle::create(MapType::Array, None::<&str>, 4, 4, 1, &options);
    made.map(drop).map_err(|error| PreflightError::BpfRefused {
        error: error.to_string(),
        why: match is_filtered() {
            true => {
                "a seccomp filter is in force, as in containers: run outside, or start the container with \
                 --security-opt seccomp=unconfined"
            }
            false => {
                "the kernel lacks CONFIG_BPF_SYSCALL, or a security module forbids it (dmesg names it): use a kernel that \
                 allows it"
            }
        },
    })
}

/// Returns whether a seccomp filter is in force for this process.
fn is_filtered() -> bool {
    const FILTER: u64 = 2;
    ProcFields::own_status().number("Seccomp") == Some(FILTER)
}

/// A reason why the kernel refuses programs and probes although the capabilities are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// Description for messages.
    pub description: String,
    pub remedy: &'static str,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.description, self.remedy)
    }
}

/// Obstacles that this system has, to explain a refusal.
pub fn obstacles() -> Vec<Obstacle> {
    let bpf = match check_bpf() {
        // A missing capability is reported instead.
        Err(PreflightError::BpfRefused { error, why }) if check_capabilities(effective()).is_ok() => {
            Some((format!("bpf() is refused ({error})"), why))
        }
        Ok(()) | Err(_) => None,
    };
    let btf = (!has_btf()).then(|| (NO_BTF.to_owned(), BTF_REMEDY));
    let is_locked_down = lockdown().as_deref() == Some(CONFIDENTIALITY);
    let lockdown = is_locked_down.then(|| (LOCKED_DOWN.to_owned(), LOCKDOWN_REMEDY));
    let obstacles = [bpf, btf, lockdown].into_iter().flatten();
    obstacles
        .map(|(description, remedy)| Obstacle { description, remedy })
        .collect()
}

pub fn has_btf() -> bool {
    Path::new(BTF).exists()
}

/// The kernel's lockdown mode; `None` if it has none or the file cannot be read.
pub fn lockdown() -> Option<String> {
    mode_in_force(&fs::read_to_string(LOCKDOWN).unwrap_or_default()).map(str::to_owned)
}

/// The mode in brackets, from a list of all modes.
fn mode_in_force(text: &str) -> Option<&str> {
    let in_brackets = |mode: &'_ str| mode.starts_with('[') && mode.ends_with(']');
    let mode = text.split_whitespace().find(|mode| in_brackets(mode))?;
    Some(mode.trim_matches(['[', ']']))
}

/// All capabilities that tracing uses, and whether this process has each.
pub fn capabilities() -> Vec<(Capability, bool)> {
    let effective = effective();
    let with_presence = |capability: Capability| (capability, has(effective, &capability));
    CAPABILITIES.into_iter().map(with_presence).collect()
}

/// Effective capability set; empty if it cannot be read.
fn effective() -> u64 {
    ProcFields::own_status().bits("CapEff").unwrap_or(0)
}

fn has(effective: u64, capability: &Capability) -> bool {
    let has = |number: u32| effective >> number & 1 == 1;
    capability.implied_by.is_some_and(has) || has(capability.number)
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

    /// The mode in force is the one in brackets.
    #[test]
    fn lockdown_modes() {
        for (text, mode) in [
            ("[none] integrity confidentiality\n", Some("none")),
            ("none [integrity] confidentiality\n", Some("integrity")),
            ("none integrity [confidentiality]\n", Some(CONFIDENTIALITY)),
            ("", None),
        ] {
            assert_eq!(mode_in_force(text), mode, "{text}");
        }
    }

    /// Missing capabilities are named; `CAP_SYS_ADMIN` includes those that were split off it.
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
