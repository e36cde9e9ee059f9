//! Facts about a process's memory that are kept between readings.

use std::collections::BTreeMap;

use unwind_tables::addr::Avma;

use crate::bpf::Origin;
use crate::process::memory::Sums;

/// Facts about the memory of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// Resident memory when the trace of the process began; `None` if that is not known: what a forked one
    /// inherited is older than its trace.
    pub(super) at_attach: Option<Sums>,
    /// Stack pointers by thread, from when the thread was last seen waiting.
    pub(super) stack_pointers: BTreeMap<u32, Avma>,
}

impl Memory {
    /// Facts about a new instance.
    pub(super) fn of(origin: Origin) -> Self {
        let at_attach = match origin {
            Origin::Forked => None,
            // `note_memory` sets that of an attached one when its probes are in place.
            Origin::Attached | Origin::Execed => Some(Sums::default()),
        };
        Self {
            at_attach,
            stack_pointers: BTreeMap::new(),
        }
    }

    /// Updates the stack pointers. That of a running thread cannot be read: its last known one is kept.
    pub(super) fn update(&mut self, threads: Vec<(u32, Option<Avma>)>) {
        let known = std::mem::take(&mut self.stack_pointers);
        let known = |thread: u32| known.get(&thread).copied();
        let pointers = threads.into_iter();
        self.stack_pointers = pointers
            .filter_map(|(thread, pointer)| Some((thread, pointer.or_else(|| known(thread))?)))
            .collect();
    }
}
