//! Where the resident memory of each process is (`crate::memory`): reads what that takes, at the attach and for each
//! report.

use std::collections::BTreeMap;
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::live::Live;
use super::process::Process;
use crate::bpf::Origin;
use crate::collect::{RegionKind, Snapshot, hold_blocks};
use crate::memory::{Sums, Tracked};

/// What is kept of a process's memory from look to look.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// What was resident in the allocator's mappings when the process began to be traced.
    at_attach: u64,
    /// Stack pointers by thread, as of the last time that it was seen waiting.
    stack_pointers: BTreeMap<u32, Avma>,
}

impl Memory {
    /// Of an instance that has just begun: what it took over from its parent is older than its trace.
    pub(super) fn of(origin: Origin) -> Self {
        let at_attach = match origin {
            Origin::Forked => u64::MAX,
            // That of an attached one is looked at when its probes are in place.
            Origin::Attached | Origin::Execed => 0,
        };
        Self {
            at_attach,
            stack_pointers: BTreeMap::new(),
        }
    }
}

impl Live<'_> {
    /// Notes what is resident when the trace of a process begins.
    pub(super) fn note_memory(&mut self, number: u32) {
        let Some(sums) = self.resident(number) else {
            return;
        };
        if let Some(process) = self.processes.get_mut(&number) {
            process.memory.at_attach = sums.allocator;
        }
    }

    /// Gives the facts of each process that runs the parts of its memory.
    pub(super) fn describe_memory(&mut self, snapshot: &Snapshot) {
        let live = self.processes.iter().filter(|(_, process)| process.is_live());
        for number in live.map(|(&number, _)| number).collect::<Vec<_>>() {
            let tracked = self.tracked(number, snapshot);
            let sums = self.resident(number);
            if let Some(process) = self.processes.get_mut(&number) {
                process.facts.memory = sums.map(|sums| sums.parts(tracked, process.memory.at_attach));
            }
        }
    }

    /// What is live in an instance. What is not known to be of one is of the only one, if there is no other.
    fn tracked(&self, number: u32, snapshot: &Snapshot) -> Tracked {
        let is_only = self.processes.len() == 1;
        let of_instance = snapshot
            .stacks
            .iter()
            .filter(|stack| stack.instance == number || is_only);
        let of_kind = of_instance.filter(|stack| matches!(stack.kind, None | Some(RegionKind::Anonymous)));
        let bytes = of_kind
            .map(|stack| stack.allocated.bytes.saturating_sub(stack.freed.bytes))
            .fold(0, u64::saturating_add);
        match self.regions {
            Some(_) => Tracked::Mappings(bytes),
            None => Tracked::Blocks(bytes),
        }
    }

    /// What is resident in a process now; `None` if it has ended.
    fn resident(&mut self, number: u32) -> Option<Sums> {
        let process = self.processes.get_mut(&number)?;
        let target = process.target.as_ref()?;
        let mappings = target.read_smaps().ok()?;
        let waiting = target.stack_pointers();
        let Process { memory, .. } = process;
        // A thread that runs has no stack pointer to be read; its stack is where it was.
        memory.stack_pointers = waiting
            .into_iter()
            .filter_map(|(thread, pointer)| {
                Some((
                    thread,
                    pointer.or_else(|| memory.stack_pointers.get(&thread).copied())?,
                ))
            })
            .collect();
        let pointers: Vec<Avma> = memory.stack_pointers.values().copied().collect();
        let candidates: Vec<Range<Avma>> = mappings
            .iter()
            .filter(|mapping| mapping.entry.inode == 0 && mapping.bytes > 0)
            .map(|mapping| mapping.entry.range.clone())
            .collect();
        let held = hold_blocks(&self.kernel, number, &candidates);
        let has_blocks = |range: &Range<Avma>| {
            let at = candidates.binary_search_by_key(&range.start, |candidate| candidate.start);
            at.is_ok_and(|at| held.get(at) == Some(&true))
        };
        Some(Sums::of(&mappings, &pointers, has_blocks))
    }
}
