//! Stack records that stand for stacks which user space has yet to find (`bpf/calls/deferral.h`).

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::load::Sizes;

/// Stand-ins, of which the kernel side takes those that are in no use.
#[derive(Debug)]
pub struct StandIns {
    /// Queue of indexes.
    unused: MapHandle,
}

impl StandIns {
    /// All stand-ins, none of them in use.
    pub(super) fn new(unused: MapHandle, sizes: &Sizes) -> Result<Self, libbpf_rs::Error> {
        let stand_ins = Self { unused };
        let mut all = sizes.stack_capacity..sizes.stack_capacity + sizes.stand_ins;
        all.try_for_each(|index| stand_ins.give_back(index))?;
        Ok(stand_ins)
    }

    /// Lets the kernel side use a stand-in again. Its totals must be 0, and no block may have it.
    pub(super) fn give_back(&self, index: u32) -> Result<(), libbpf_rs::Error> {
        self.unused.update(&[], &index.to_ne_bytes(), MapFlags::ANY)
    }
}
