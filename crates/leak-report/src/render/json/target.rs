//! Traced processes in JSON.

use serde::Serialize;

use super::fragmentation::FragmentationJson;
use super::lack::LackJson;
use super::memory::MemoryJson;
use crate::model::{InstanceEnd, Report, TargetFacts};

/// A traced process, or its part between two execs.
#[derive(Serialize)]
pub(super) struct TargetJson<'a> {
    pid: u32,
    comm: &'a str,
    exe: Option<&'a str>,
    instance: u32,
    parent: Option<u32>,
    ended: Option<&'static str>,
    /// Only if it was killed for lack of memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    lack: Option<LackJson<'a>>,
    memory: Option<MemoryJson<'a>>,
    /// Only with `--pinned`.
    #[serde(skip_serializing_if = "Option::is_none")]
    fragmentation: Option<FragmentationJson>,
}

impl<'a> TargetJson<'a> {
    pub(super) fn of(target: &'a TargetFacts, report: &Report) -> Self {
        Self {
            pid: target.pid,
            comm: &target.comm,
            exe: target.exe.as_deref(),
            instance: target.instance,
            parent: target.parent,
            ended: target.ended.map(InstanceEnd::name),
            lack: target.lack.as_ref().map(LackJson::from),
            memory: target
                .memory
                .as_ref()
                .map(|parts| MemoryJson::of(parts, report.tracked_error(target.instance))),
            fragmentation: FragmentationJson::of(target, report),
        }
    }
}
