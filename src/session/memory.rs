//! Where the resident memory of each process is (`crate::process::memory`): reads what that takes, at the attach and for each
//! report.

use std::collections::BTreeMap;
use std::ops::Range;

use unwind_tables::addr::Avma;

use super::live::Live;
use crate::bpf::Origin;
use crate::bpf::collect::{Held, held};
use crate::process::memory::{Live as LiveBytes, Sums, Tracks};
use leak_report::model::Snapshot;

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

    /// A thread that runs has no stack pointer to be read; its stack is where it was.
    fn update(&mut self, threads: Vec<(u32, Option<Avma>)>) {
        let known = std::mem::take(&mut self.stack_pointers);
        let known = |thread: u32| known.get(&thread).copied();
        let pointers = threads.into_iter();
        self.stack_pointers = pointers
            .filter_map(|(thread, pointer)| Some((thread, pointer.or_else(|| known(thread))?)))
            .collect();
    }
}

/// What was found in one look.
struct Look {
    sums: Sums,
    /// Where everything is that is live was seen.
    is_all: bool,
}

impl Live<'_> {
    /// Notes what is resident when the trace of a process begins.
    pub(super) fn note_memory(&mut self, number: u32) {
        let look = self.look_at_memory(number);
        if let (Some(look), Some(process)) = (look, self.processes.get_mut(&number)) {
            process.memory.at_attach = look.sums.allocator;
        }
    }

    /// Gives the facts of each process that runs the parts of its memory.
    pub(super) fn describe_memory(&mut self, snapshot: &Snapshot) {
        let live = self.processes.iter().filter(|(_, process)| process.is_live());
        for number in live.map(|(&number, _)| number).collect::<Vec<_>>() {
            let total = self.live_bytes(number, snapshot);
            let (look, tracks) = (self.look_at_memory(number), self.tracks());
            if let Some(process) = self.processes.get_mut(&number) {
                let at_attach = process.memory.at_attach;
                process.facts.memory = look.map(|Look { sums, is_all }| {
                    let live = match is_all {
                        true => LiveBytes::ByMapping,
                        false => LiveBytes::Total(total),
                    };
                    sums.parts(tracks, live, at_attach)
                });
            }
        }
    }

    fn tracks(&self) -> Tracks {
        match self.regions {
            Some(_) => Tracks::Mappings,
            None => Tracks::Blocks,
        }
    }

    /// What is live in an instance. What is not known to be of one is of the only one, if there is no other.
    fn live_bytes(&self, number: u32, snapshot: &Snapshot) -> u64 {
        let is_only = self.processes.len() == 1;
        let stacks = snapshot.stacks.iter();
        let of_instance = stacks.filter(|stack| stack.instance == number || is_only);
        of_instance
            .map(|stack| stack.outstanding().amount.bytes)
            .fold(0, u64::saturating_add)
    }

    /// What is resident in a process now; `None` if it has ended.
    fn look_at_memory(&mut self, number: u32) -> Option<Look> {
        let process = self.processes.get_mut(&number)?;
        let target = process.target.as_ref()?;
        let mappings = target.read_smaps().ok()?;
        process.memory.update(target.stack_pointers());
        let pointers: Vec<Avma> = process.memory.stack_pointers.values().copied().collect();
        // A mapping that nothing is resident of can hold live blocks all the same.
        let anonymous = mappings.iter().filter(|mapping| mapping.entry.inode == 0);
        let ranges: Vec<Range<Avma>> = anonymous.map(|mapping| mapping.entry.range.clone()).collect();
        let Held { bytes, is_all } = match &self.regions {
            Some(ledger) => ledger.held(number, &ranges),
            None => held(&self.kernel, number, &ranges),
        };
        let live_in = |range: &Range<Avma>| {
            let at = ranges.binary_search_by_key(&range.start, |candidate| candidate.start);
            at.ok().and_then(|at| bytes.get(at).copied()).unwrap_or(0)
        };
        let sums = Sums::of(&mappings, &pointers, self.tracks(), live_in);
        Some(Look { sums, is_all })
    }
}
