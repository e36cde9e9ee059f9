//! Instances: what runs in a process between two execs.

use serde::{Deserialize, Serialize};
/// Event that ended an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstanceEnd {
    /// The process exited or was killed.
    Exited,
    /// The process executed another program, which is a new instance.
    #[serde(rename = "exec")]
    Execed,
    /// The process still runs, but no longer belongs to those that are traced.
    Left,
    /// The kernel killed the process for lack of memory.
    OutOfMemory,
}

impl InstanceEnd {
    /// Name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exited => "exited",
            Self::Execed => "exec",
            Self::Left => "left",
            Self::OutOfMemory => "out_of_memory",
        }
    }
}
