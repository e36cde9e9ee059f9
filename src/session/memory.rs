//! Facts about a process's memory that are kept between readings.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use unwind_tables::addr::Avma;

use crate::bpf::Origin;
use crate::process::Target;
use crate::process::census::Divided;
use crate::process::census::huge::Sampled;
use crate::process::census::quick::Quick;
use crate::process::memory::{self, Sums};
use leak_report::model::Beside;

/// Time until memory that mappings do not show is read again, as a multiple of the time that it took: reports
/// at short intervals use what was read before.
const PAUSE: u32 = 100;

/// Facts about the memory of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// Resident memory when the trace of the process began; `None` if that is not known: what a forked one
    /// inherited is older than its trace.
    pub(super) at_attach: Option<Sums>,
    /// Stack pointers by thread, from when the thread was last seen waiting.
    pub(super) stack_pointers: BTreeMap<u32, Avma>,
    beside: Option<Looked>,
    page_tables: u64,
}

/// Memory that mappings do not show, as it was read last.
#[derive(Clone, Debug)]
struct Looked {
    beside: Beside,
    /// Pages of huge pages that were read.
    sampled: Vec<Sampled>,
    at: Instant,
    took: Duration,
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
            ..Self::default()
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

    /// Reads memory that mappings do not show: what is cheap each time, the rest if it is due.
    pub(super) fn look_beside(&mut self, target: &Target, divided: &Divided) {
        self.page_tables = Quick::without_files(target.pid()).map_or(0, |quick| quick.page_tables);
        let at = Instant::now();
        let is_due = |last: &Looked| at.duration_since(last.at) >= PAUSE * last.took;
        if !self.beside.as_ref().is_none_or(is_due) {
            return;
        }
        self.beside = target.read_beside(divided).ok().map(|found| Looked {
            beside: memory::beside(&found),
            sampled: found.huge.sampled,
            at,
            took: at.elapsed(),
        });
    }

    /// Adds what was read last to memory that mappings show.
    pub(super) fn add_beside(&self, beside: &mut Beside) {
        beside.page_tables = self.page_tables;
        if let Some(Looked { beside: found, .. }) = &self.beside {
            beside.sockets = found.sockets;
            beside.held_files = found.held_files;
            beside.cgroup = found.cgroup;
        }
    }

    /// Pages of huge pages that were read, ascending.
    pub(super) fn sampled(&self) -> &[Sampled] {
        self.beside.as_ref().map_or(&[], |looked| &looked.sampled)
    }
}
