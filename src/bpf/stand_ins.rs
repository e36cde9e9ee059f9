//! Stack records that stand for stacks which user space has yet to find (`bpf/calls/deferral.h`).

use libbpf_rs::{MapCore, MapFlags, MapHandle};

/// Stand-ins: the kernel side takes them, and user space gives them back.
#[derive(Debug)]
pub struct StandIns {
    /// Queue of indexes of those that were given back.
    pub(super) unused: MapHandle,
}

impl StandIns {
    /// Lets the kernel side use a stand-in again. Its totals must be 0, and no block may refer to it.
    pub(super) fn give_back(&self, index: u32) -> Result<(), libbpf_rs::Error> {
        self.unused.update(&[], &index.to_ne_bytes(), MapFlags::ANY)
    }
}
