//! Lack of memory that a process was killed for.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::printable::Printable;
use crate::units::size;

/// Memory that was short when the kernel killed a process for it (OOM killer).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryLack {
    /// Memory of a cgroup, which had reached its limit.
    Cgroup(ReachedLimit),
    /// Memory of the system, or of the nodes that the process may use.
    System,
    /// Not known: the kernel's log could not be read, or does not say it.
    Unknown,
}

/// A limit of a cgroup, and what the kernel counts there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachedLimit {
    /// Path of the cgroup.
    pub cgroup: String,
    /// Maximum bytes of all its processes together (`memory.max`); `None` if that could not be read.
    pub limit: Option<u64>,
    /// Highest usage so far, in bytes (`memory.peak`); `None` on kernels without it.
    pub peak: Option<u64>,
    /// Processes that were killed there so far (`oom_kill` of `memory.events`).
    pub kills: Option<u64>,
}

impl MemoryLack {
    /// Name in reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Cgroup(_) => "cgroup",
            Self::System => "system",
            Self::Unknown => "unknown",
        }
    }

    /// The limit that was hit.
    pub const fn reached(&self) -> Option<&ReachedLimit> {
        match self {
            Self::Cgroup(reached) => Some(reached),
            Self::System | Self::Unknown => None,
        }
    }
}

impl fmt::Display for MemoryLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reached = match self {
            Self::Cgroup(reached) => reached,
            Self::System => {
                return f.write_str("the system's memory was short");
            }
            Self::Unknown => return f.write_str("it is not known which memory was short"),
        };
        write!(f, "cgroup {} had reached its limit", Printable(&reached.cgroup))?;
        if let Some(limit) = reached.limit {
            write!(f, " of {}", size(limit))?;
        }
        if let Some(peak) = reached.peak {
            write!(f, ", peak {}", size(peak))?;
        }
        match reached.kills {
            Some(kills) => write!(f, ", killed there so far: {kills}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text contains the known facts of the limit; a cgroup's name cannot add lines to it.
    #[test]
    fn texts() {
        let mut reached = ReachedLimit {
            cgroup: "/a\nb".to_owned(),
            limit: Some(100 << 20),
            peak: Some(100 << 20),
            kills: Some(2),
        };
        assert_eq!(
            MemoryLack::Cgroup(reached.clone()).to_string(),
            "cgroup /a\\nb had reached its limit of 100.0 MiB, peak 100.0 MiB, killed there so far: 2"
        );
        (reached.limit, reached.peak, reached.kills) = (None, None, None);
        assert_eq!(
            MemoryLack::Cgroup(reached).to_string(),
            "cgroup /a\\nb had reached its limit"
        );
    }
}
