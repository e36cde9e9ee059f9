//! A process's resident memory by part, and memleak's own memory, in JSON. `tracked` to `unexplained` add up
//! to `rss`.

use serde::Serialize;

use crate::model::{Beside, Elsewhere, KindBytes, NamedBytes, OwnMemory, Parts};

/// Resident memory of a process, in bytes.
#[derive(Serialize)]
pub(super) struct MemoryJson<'a> {
    rss: u64,
    tracked: u64,
    /// Only if `tracked` is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    tracked_standard_error: Option<f64>,
    before_attach_at_most: u64,
    slack_at_least: u64,
    thread_stacks: u64,
    files: u64,
    shared: u64,
    unexplained: u64,
    not_resident: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    growth_elsewhere: Option<Elsewhere>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    kinds: &'a [KindBytes],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    named_shared: &'a [NamedBytes],
    /// Absent if nothing of it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<Beside>,
}

impl<'a> MemoryJson<'a> {
    /// `tracked_error` is the standard error of `tracked` if that is an estimate.
    pub(super) fn of(parts: &'a Parts, tracked_error: Option<f64>) -> Self {
        let &Parts {
            rss,
            tracked,
            before_attach_at_most,
            slack_at_least,
            thread_stacks,
            files,
            shared,
            unexplained,
            not_resident,
            growth_elsewhere,
            ref kinds,
            ref named_shared,
            beside,
        } = parts;
        Self {
            rss,
            tracked,
            tracked_standard_error: tracked_error,
            before_attach_at_most,
            slack_at_least,
            thread_stacks,
            files,
            shared,
            unexplained,
            not_resident,
            growth_elsewhere,
            kinds,
            named_shared,
            beside: Some(beside).filter(|beside| *beside != Beside::default()),
        }
    }
}

/// memleak's own memory.
#[derive(Serialize)]
pub(super) struct OwnJson {
    resident_bytes: u64,
    peak_bytes: u64,
    kernel_bytes: u64,
}

impl From<OwnMemory> for OwnJson {
    fn from(own: OwnMemory) -> Self {
        let OwnMemory {
            resident_bytes,
            peak_bytes,
            kernel_bytes,
        } = own;
        Self {
            resident_bytes,
            peak_bytes,
            kernel_bytes,
        }
    }
}
