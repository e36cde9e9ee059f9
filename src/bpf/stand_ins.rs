//! Stack records that stand for stacks which user space has yet to find (`bpf/calls/deferral.h`).

use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::sizes::Sizes;

/// Stand-ins: the kernel side takes unused ones, and user space gives them back.
#[derive(Debug)]
pub struct StandIns {
    /// Queue of indexes of unused stand-ins.
    unused: MapHandle,
}

impl StandIns {
    /// Creates all stand-ins, none of them in use.
    pub(super) fn new(unused: MapHandle, sizes: &Sizes) -> Result<Self, libbpf_rs::Error> {
        let stand_ins = Self { unused };
        let mut all = sizes.stack_capacity..sizes.stack_capacity + sizes.stand_ins;
        all.try_for_each(|index| stand_ins.give_back(index))?;
        Ok(stand_ins)
    }

    /// Lets the kernel side use a stand-in again. Its totals must be 0, and no block may refer to it.
    pub(super) fn give_back(&self, index: u32) -> Result<(), libbpf_rs::Error> {
        self.unused.update(&[], &index.to_ne_bytes(), MapFlags::ANY)
    }
}
