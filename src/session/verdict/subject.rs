//! One process that a verdict is made on.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use crate::bpf::{Registers, ThreadState};
use crate::process::maps::MapsEntry;
use crate::process::touched::ResidentPages;
use crate::process::{kept, maps_of};
use crate::reach::heap::{Block, Heap};
use crate::reach::judge::{Judge, LostBlocks, Sight};
use crate::reach::pages::Pages;
use crate::reach::passes::Identity;
use crate::reach::reader::Reader;
use crate::reach::roots::{Thread, dead_stacks};
use crate::reach::tags::Tags;
use crate::reach::{Memory, ended, free};
use leak_report::model::{Hidden, Judgement};

/// An instance, and what the passes so far have found.
#[derive(Debug)]
pub(super) struct Subject {
    instance: u32,
    pid: u32,
    /// Bound to the memory of the instance: after an exec or its end, nothing is read.
    resident: Option<ResidentPages>,
    judge: Judge,
    known: Known,
    /// Set once enough passes were made.
    lost: Option<LostBlocks>,
    has_failed: bool,
    read: u64,
    unreadable: u64,
    /// Longest time for which threads of it were stopped.
    stopped: Option<Duration>,
    /// Places that the last pass could not look into.
    hidden: BTreeMap<Hidden, u64>,
}

/// What is known of a process before it is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// True if nothing of it runs: then one pass says everything.
    pub(super) is_still: bool,
    /// True if it can have pointers in blocks beyond their requested size.
    pub(super) uses_slack: bool,
    /// Tags that its pointers can have.
    pub(super) tags: Tags,
}

/// Result of all passes.
#[derive(Debug)]
pub(super) enum End {
    Settled(LostBlocks),
    /// Blocks that no pass has reached, of too few.
    NotSettled(Vec<Identity>),
    /// The memory could not be read.
    Failed,
}

impl Subject {
    /// Process `pid`, as long as it is the instance.
    pub(super) fn new(instance: u32, pid: u32, known: Known) -> Self {
        let resident = ResidentPages::open(pid);
        if let Err(error) = &resident {
            tracing::warn!(
                "cannot tell what process {pid} can reach: {error} (reading its memory needs CAP_SYS_PTRACE)"
            );
        }
        Self {
            instance,
            pid,
            has_failed: resident.is_err(),
            resident: resident.ok(),
            judge: Judge::default(),
            known,
            lost: None,
            read: 0,
            unreadable: 0,
            stopped: None,
            hidden: BTreeMap::new(),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn instance(&self) -> u32 {
        self.instance
    }

    /// True if nothing of it runs.
    pub(super) fn is_still(&self) -> bool {
        self.known.is_still
    }

    /// Returns whether another pass is needed.
    pub(super) fn needs_more(&self) -> bool {
        self.lost.is_none() && !self.has_failed
    }

    /// Adds what was done to the facts about a verdict.
    pub(super) fn add_to(&self, facts: &mut Judgement) {
        facts.passes = facts.passes.max(self.judge.passes().count());
        facts.read = facts.read.saturating_add(self.read);
        facts.stopped = facts.stopped.max(self.stopped);
        facts.unreadable = facts.unreadable.saturating_add(self.unreadable);
        for (&place, &count) in &self.hidden {
            let sum = facts.hidden.entry(place).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// Makes a pass, in which `blocks` are all that are outstanding.
    pub(super) fn pass(&mut self, blocks: Vec<Block>, registers: Option<&mut Registers<'_>>) {
        if let Err(error) = self.try_pass(blocks, registers) {
            tracing::debug!("pass over process {}: {error}", self.pid);
            self.has_failed = true;
        }
    }

    fn try_pass(&mut self, blocks: Vec<Block>, registers: Option<&mut Registers<'_>>) -> io::Result<()> {
        let mappings = maps_of(self.pid)?;
        let reader = Reader::new(self.pid, self.pages(&mappings)?);
        let outside = Outside::read(self.pid, registers)?;
        let heap = self.look(blocks, &reader, reader.pages(), &mappings, &outside);
        if self.known.is_still || self.judge.passes().are_enough() {
            self.settle(&heap, &reader, |_| true);
        }
        self.has_read(reader.read(), reader.unreadable());
        self.check()
    }

    /// Marks what the process reaches in `memory`, of which `pages` are there.
    pub(super) fn look(
        &mut self,
        blocks: Vec<Block>,
        memory: &dyn Memory,
        pages: &Pages,
        mappings: &[MapsEntry],
        outside: &Outside,
    ) -> Heap {
        self.hidden.clone_from(&outside.hidden);
        let mut heap = Heap::new(blocks);
        heap.set_tags(self.known.tags);
        let mut unused = free::find(memory, mappings, &heap);
        tracing::debug!("unused memory of process {}: {:?}", self.pid, unused.facts);
        heap.extend(&unused.usable, self.known.uses_slack);
        let ended = ended::stacks(memory, mappings, &outside.threads);
        unused.ranges.extend(ended);
        unused.ranges.sort_unstable_by_key(|range| range.start);
        self.judge.pass(&Sight {
            memory,
            pages: pages.runs(),
            heap: &heap,
            unused: &unused.ranges,
            dead: &dead_stacks(mappings, &outside.threads),
            words: &outside.words,
        });
        heap
    }

    /// Checks that it is the same program still: only then, all that was read was its.
    pub(super) fn check(&self) -> io::Result<()> {
        self.resident.as_ref().map_or(Ok(()), ResidentPages::check)
    }

    /// Pages of `mappings`, which are its.
    pub(super) fn pages(&self, mappings: &[MapsEntry]) -> io::Result<Pages> {
        match &self.resident {
            Some(resident) => Pages::read(resident, mappings),
            None => Ok(Pages::default()),
        }
    }

    pub(super) fn was_stopped(&mut self, time: Option<Duration>) {
        self.stopped = self.stopped.max(time);
    }

    /// Ends the passes: what none has reached is lost, of the blocks that are outstanding still.
    pub(super) fn settle(
        &mut self,
        heap: &Heap,
        memory: &dyn Memory,
        is_outstanding: impl Fn(&Block) -> bool,
    ) {
        let mut lost = self.judge.lost(heap, memory);
        lost.definitely.retain(&is_outstanding);
        lost.indirectly.retain(&is_outstanding);
        self.lost = Some(lost);
    }

    pub(super) fn has_read(&mut self, read: u64, unreadable: u64) {
        self.read = self.read.saturating_add(read);
        self.unreadable = unreadable;
    }

    pub(super) fn end(self) -> End {
        match (self.lost, self.has_failed) {
            (Some(lost), _) => End::Settled(lost),
            (None, false) => End::NotSettled(self.judge.passes().missed().to_vec()),
            (None, true) => End::Failed,
        }
    }
}

/// What a process has outside of its memory.
#[derive(Debug, Default)]
pub(super) struct Outside {
    threads: Vec<Thread>,
    /// Registers, and what the kernel keeps.
    pub(super) words: Vec<u64>,
    hidden: BTreeMap<Hidden, u64>,
}

impl Outside {
    pub(super) fn read(pid: u32, registers: Option<&mut Registers<'_>>) -> io::Result<Self> {
        let states = registers.map(|registers| registers.read(pid)).transpose();
        let states = states.map_err(io::Error::other)?.unwrap_or_default();
        let threads = states.iter().map(thread).collect();
        let mut words: Vec<u64> = states.into_iter().flat_map(|state| state.words).collect();
        let kept = kept::read(pid)?;
        words.extend(kept.words);
        Ok(Self {
            threads,
            words,
            hidden: kept.hidden,
        })
    }
}

fn thread(state: &ThreadState) -> Thread {
    Thread {
        sp: state.sp,
        tp: state.tp,
        is_running: state.is_running,
    }
}
