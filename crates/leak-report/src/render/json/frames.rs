//! Numbers of frames by how they were found.

use serde::Serialize;

/// Numbers of frames by how they were found; those that are not counted separately are absent.
#[derive(Default, Serialize)]
pub(super) struct FramesJson {
    pub(super) cfi: u64,
    pub(super) fp: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fp_generated: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) fp_uncertain: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) python: Option<u64>,
}
