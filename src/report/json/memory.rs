//! Where a process's resident memory is, as JSON. The parts but `not_resident` add up to `rss`.

use serde::Serialize;

use crate::memory::Parts;

/// All in bytes.
#[derive(Serialize)]
pub(super) struct MemoryJson {
    rss: u64,
    tracked: u64,
    before_attach_at_most: u64,
    slack_at_least: u64,
    thread_stacks: u64,
    files: u64,
    shared: u64,
    unexplained: u64,
    not_resident: u64,
}

impl From<Parts> for MemoryJson {
    fn from(parts: Parts) -> Self {
        let Parts {
            rss,
            tracked,
            before_attach_at_most,
            slack_at_least,
            thread_stacks,
            files,
            shared,
            unexplained,
            not_resident,
        } = parts;
        Self {
            rss,
            tracked,
            before_attach_at_most,
            slack_at_least,
            thread_stacks,
            files,
            shared,
            unexplained,
            not_resident,
        }
    }
}
