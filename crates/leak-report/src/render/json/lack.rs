//! Memory shortage that a process was killed for.

use serde::Serialize;

use crate::model::{MemoryLack, ReachedLimit};

#[derive(Serialize)]
pub(super) struct LackJson<'a> {
    of: &'static str,
    /// Null unless a cgroup reached its limit.
    cgroup: Option<&'a str>,
    limit_bytes: Option<u64>,
    peak_bytes: Option<u64>,
    kills: Option<u64>,
}

impl<'a> From<&'a MemoryLack> for LackJson<'a> {
    fn from(lack: &'a MemoryLack) -> Self {
        let reached = lack.reached();
        let number = |of: fn(&ReachedLimit) -> Option<u64>| reached.and_then(of);
        Self {
            of: lack.name(),
            cgroup: reached.map(|reached| reached.cgroup.as_str()),
            limit_bytes: number(|reached| reached.limit),
            peak_bytes: number(|reached| reached.peak),
            kills: number(|reached| reached.kills),
        }
    }
}
