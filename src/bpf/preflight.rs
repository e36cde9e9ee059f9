//! What this process and kernel must have before anything is loaded. Findings are values; nothing is printed.

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
    /// Capabilities.
    #[error("tracing needs {missing}: run as root (sudo memleak …) or grant what it needs with {GRANT}")]
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
    /// `bpf()` itself is refused, whatever it is asked for.
    #[error("bpf() is refused ({error}): {why}")]
    BpfRefused {
        /// What the kernel says.
        error: String,
        /// What refuses it, and what to do about it.
        why: &'static str,
    },
}

/// What gives a program all that tracing needs. As one command: each one replaces what was granted before.
pub const GRANT: &str = "setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep";

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
    /// The number of another one that gives the same.
    implied_by: Option<u32>,
}

const CAP_DAC_OVERRIDE: u32 = 1;
/// Implies those that Linux 5.8 and 5.9 split off it.
const CAP_SYS_ADMIN: u32 = 21;
const CAPABILITIES: [Capability; 6] = [
    needed("CAP_BPF", 39, "load programs").implied_by(CAP_SYS_ADMIN),
    needed("CAP_PERFMON", 38, "attach probes").implied_by(CAP_SYS_ADMIN),
    needed("CAP_SYS_PTRACE", 19, "read processes"),
    optional(
        "CAP_DAC_READ_SEARCH",
        2,
        "read files that their modes keep from this user",
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
        "attach by perf events, all that Linux has before 6.6, and measure what programs take",
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

/// The lockdown mode that keeps the kernel's memory from programs.
pub const CONFIDENTIALITY: &str = "confidentiality";
/// What that means.
pub const LOCKED_DOWN: &str =
    "the kernel is locked down (confidentiality) and refuses programs that read its memory";
/// What to do about it.
pub const LOCKDOWN_REMEDY: &str = "boot with lockdown=integrity or lockdown=none";
/// What the programs that follow processes cannot do without.
pub const NO_BTF: &str = "the kernel shows no type information (/sys/kernel/btf/vmlinux is missing)";
/// What to do about it.
pub const BTF_REMEDY: &str =
    "use a kernel built with CONFIG_DEBUG_INFO_BTF, as Debian's are, and mount /sys in a container";

/// Checks this process and kernel.
///
/// # Errors
///
/// The first thing that is missing, with the remedy.
pub fn check() -> Result<(), PreflightError> {
    check_capabilities(effective())?;
    check_uprobes()?;
    check_bpf()
}

/// Checks this process for tracing the kernel's own allocations; what that needs of the kernel is found out elsewhere.
///
/// # Errors
///
/// The capabilities that are missing, with the remedy.
pub fn check_kernel_mode() -> Result<(), PreflightError> {
    check_capabilities_but(effective(), &["CAP_SYS_PTRACE"])?;
    check_bpf()
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

/// Checks that `bpf()` does anything for us, by having the smallest of maps made.
///
/// # Errors
///
/// [`PreflightError::BpfRefused`].
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

/// Whether a seccomp filter holds for this process.
fn is_filtered() -> bool {
    const FILTER: u64 = 2;
    ProcFields::own_status().number("Seccomp") == Some(FILTER)
}

/// Something that has the kernel refuse programs and probes although the rights are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// What it is.
    pub what: String,
    /// What to do about it.
    pub remedy: &'static str,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.remedy)
    }
}

/// The obstacles that there are, for who was refused something.
pub fn obstacles() -> Vec<Obstacle> {
    let bpf = match check_bpf() {
        // Who lacks a capability is told of that instead.
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
        .map(|(what, remedy)| Obstacle { what, remedy })
        .collect()
}

/// Whether the kernel shows its type information.
pub fn has_btf() -> bool {
    Path::new(BTF).exists()
}

/// The kernel's lockdown mode; `None` where there is none, or it is not to be seen.
pub fn lockdown() -> Option<String> {
    mode_in_force(&fs::read_to_string(LOCKDOWN).unwrap_or_default()).map(str::to_owned)
}

/// The file lists all modes, the one in force in brackets.
fn mode_in_force(text: &str) -> Option<&str> {
    let in_brackets = |mode: &'_ str| mode.starts_with('[') && mode.ends_with(']');
    let mode = text.split_whitespace().find(|mode| in_brackets(mode))?;
    Some(mode.trim_matches(['[', ']']))
}

/// Every capability that makes a difference, and whether this process has it.
pub fn capabilities() -> Vec<(Capability, bool)> {
    let effective = effective();
    let with_presence = |capability: Capability| (capability, has(effective, &capability));
    CAPABILITIES.into_iter().map(with_presence).collect()
}

/// The effective set; empty when it cannot be read.
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
