//! A process on which a verdict is made.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

use super::holding::{self, Holding, Looked};
use crate::bpf::collect::Moment;
use crate::bpf::{Registers, ThreadState, monotonic_nanoseconds};
use crate::process::census::usual_stack;
use crate::process::maps::MapsEntry;
use crate::process::touched::ResidentPages;
use crate::process::{kept, maps_of};
use crate::reach::free::Listing;
use crate::reach::free::seen::{self, Freed, Notes};
use crate::reach::heap::{Block, Heap};
use crate::reach::holders::Missing;
use crate::reach::judge::{Judge, LostBlocks, Sight};
use crate::reach::pages::Pages;
use crate::reach::passes::Identity;
use crate::reach::reader::Reader;
use crate::reach::roots::{Thread, dead_stacks};
use crate::reach::tags::Tags;
use crate::reach::{Memory, elsewhere, ended, free};
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
    /// Time before the first pass: memory that was freed later may have been in use at a pass.
    began: u64,
    /// Set once enough passes were made.
    lost: Option<LostBlocks>,
    /// Set with `lost`.
    holding: Option<Result<Holding, Missing>>,
    /// Blocks that were listed in the last copy, without a trace.
    in_copy: Option<Listing>,
    has_failed: bool,
    read: u64,
    unreadable: u64,
    /// Longest time for which threads of it were stopped.
    stopped: Option<Duration>,
    /// Places that the last pass could not look into.
    hidden: BTreeMap<Hidden, u64>,
    /// Maximum number of words in such places at one pass.
    hidden_words: u64,
}

/// Facts about a process that are known before it is looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// True if none of its threads runs, so that one pass is enough.
    pub(super) is_still: bool,
    /// True if it can have pointers in blocks beyond their requested size.
    pub(super) uses_slack: bool,
    /// Tags that its pointers can have.
    pub(super) tags: Tags,
    /// True if its blocks are those that its allocator lists, not those of a trace.
    pub(super) is_untraced: bool,
}

/// Result of all passes.
#[derive(Debug)]
pub(super) enum End {
    Settled(LostBlocks),
    /// Blocks that no pass has reached, after too few passes.
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
            began: monotonic_nanoseconds(),
            lost: None,
            holding: None,
            in_copy: None,
            read: 0,
            unreadable: 0,
            stopped: None,
            hidden: BTreeMap::new(),
            hidden_words: 0,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn instance(&self) -> u32 {
        self.instance
    }

    /// True if none of its threads runs.
    pub(super) fn is_still(&self) -> bool {
        self.known.is_still
    }

    /// Returns whether another pass is needed.
    pub(super) fn needs_more(&self) -> bool {
        self.lost.is_none() && !self.has_failed
    }

    /// Adds facts about the passes to those about a verdict.
    pub(super) fn add_to(&self, facts: &mut Judgement) {
        facts.passes = facts.passes.max(self.judge.passes().count());
        facts.read = facts.read.saturating_add(self.read);
        facts.stopped = facts.stopped.max(self.stopped);
        facts.unreadable = facts.unreadable.saturating_add(self.unreadable);
        for (&place, &count) in &self.hidden {
            let sum = facts.hidden.entry(place).or_default();
            *sum = sum.saturating_add(count);
        }
        facts.hidden_words = facts.hidden_words.saturating_add(self.hidden_words);
    }

    /// Holders of the blocks; `None` if they were not looked for yet.
    pub(super) fn take_holding(&mut self) -> Option<Result<Holding, Missing>> {
        self.holding.take()
    }

    /// Makes a pass; the `listed` blocks are all that are outstanding. If it is the last pass, holders are
    /// looked for until `deadline`.
    pub(super) fn pass(&mut self, listed: Listed, registers: Option<&mut Registers<'_>>, deadline: Instant) {
        if let Err(error) = self.try_pass(listed, registers, deadline) {
            tracing::debug!("pass over process {}: {error}", self.pid);
            self.has_failed = true;
        }
    }

    fn try_pass(
        &mut self,
        listed: Listed,
        registers: Option<&mut Registers<'_>>,
        deadline: Instant,
    ) -> io::Result<()> {
        let mappings = maps_of(self.pid)?;
        let freed = self.freed(&listed, &mappings);
        let reader = Reader::new(self.pid, self.pages(&mappings)?);
        let outside = Outside::read(self.pid, registers)?;
        let seen = Seen {
            memory: &reader,
            pages: reader.pages(),
            mappings: &mappings,
            outside: &outside,
            freed,
        };
        self.look(listed.blocks, &seen, self.known.is_still, deadline);
        self.has_read(reader.read(), reader.unreadable());
        self.check()
    }

    /// Memory that blocks were freed from. `listed` was made after everything else was seen, or before it in
    /// the first of several passes.
    pub(super) fn freed(&self, listed: &Listed, mappings: &[MapsEntry]) -> Freed {
        let Listed { blocks, notes } = listed;
        let freed = seen::find(notes, blocks, mappings, self.began, Moment::PRECISION);
        let unused = freed.unused.iter();
        let bytes: u64 = unused.map(|range| range.end.offset_from(range.start)).sum();
        tracing::debug!(
            "unused by frees that were seen: {bytes} B, of {} blocks freed and {} not noted, {} mappings since, all freed before {:?} \
             in doubt ({})",
            notes.freed.len(),
            notes.not_noted,
            notes.taken.len(),
            notes.void_before,
            notes
                .doubt
                .unwrap_or("all was seen since the probes are attached")
        );
        freed
    }

    /// Marks the blocks that the process reaches in `seen`. If none of its threads ran (`is_still`), or there
    /// were enough passes, blocks that none has reached are lost, and holders of the others are looked for
    /// until `deadline`.
    pub(super) fn look(&mut self, blocks: Vec<Block>, seen: &Seen<'_>, is_still: bool, deadline: Instant) {
        let &Seen {
            memory,
            pages,
            mappings,
            outside,
            ref freed,
        } = seen;
        self.hidden.clone_from(&outside.hidden);
        self.hidden_words = self.hidden_words.max(outside.hidden_words);
        let mut heap = Heap::new(blocks);
        heap.set_tags(self.known.tags);
        let mut unused = free::find(memory, mappings, &heap);
        tracing::debug!("unused memory of process {}: {:?}", self.pid, unused.facts);
        unused.add_slack(&freed.slack, &heap);
        heap.extend(&unused.usable, self.known.uses_slack);
        let threads: Vec<_> = outside.states.iter().map(thread).collect();
        let stacks = pages.with_guards(mappings);
        let ended = ended::stacks(memory, &stacks, &threads, usual_stack(self.pid));
        unused.add(
            ended.into_iter().chain(freed.unused.iter().cloned()).collect(),
            &heap,
        );
        let sight = Sight {
            memory,
            pages: pages.runs(),
            heap: &heap,
            unused: &unused.ranges,
            dead: &dead_stacks(&stacks, &threads),
            words: &outside.words(),
        };
        self.judge.pass(&sight);
        if !is_still && !self.judge.passes().are_enough() {
            return;
        }
        let found = holding::find(&Looked {
            pid: self.pid,
            sight: &sight,
            idle: self.judge.idle(),
            mappings: &stacks,
            threads: &threads,
            states: &outside.states,
            kept: &outside.kept,
            deadline,
        });
        // Blocks that this search has reached are not lost, either.
        let holding = found.map(|(holding, reached)| {
            self.judge.take_out(&heap, &reached);
            holding
        });
        let mut lost = self.judge.lost(&heap, memory);
        elsewhere::take_out(&mut lost, &heap, memory, self.hidden_words);
        self.lost = Some(lost);
        self.holding = Some(holding);
    }

    /// Lists the blocks by the allocator's structures in a copy; `None` with a trace. A block that was listed
    /// before can be free in the copy, and be followed later by another that cannot be told from it.
    pub(super) fn list_in_copy(&mut self, copy: &dyn Memory, mappings: &[MapsEntry]) -> Option<Vec<Block>> {
        if !self.known.is_untraced {
            return None;
        }
        let listing = free::blocks_in_use(copy, mappings).unwrap_or_default();
        self.in_copy = Some(listing.clone());
        Some(listing.blocks)
    }

    /// The listing in the last copy, if a verdict was made by that copy.
    pub(super) fn take_in_copy(&mut self) -> Option<Listing> {
        self.in_copy.take().filter(|_| self.lost.is_some())
    }

    /// Returns whether all lost blocks are `here`.
    pub(super) fn has_all_lost(&self, here: &HashSet<Identity>) -> bool {
        let lost = self.lost.iter();
        let mut lost = lost.flat_map(|lost| lost.definitely.iter().chain(&lost.indirectly));
        lost.all(|block| here.contains(&block.identity()))
    }

    /// Keeps of the lost blocks those that are still outstanding.
    pub(super) fn retain_lost(&mut self, is_outstanding: impl Fn(&Block) -> bool) {
        if let Some(lost) = &mut self.lost {
            lost.definitely.retain(&is_outstanding);
            lost.indirectly.retain(&is_outstanding);
            lost.perhaps.retain(&is_outstanding);
        }
    }

    /// Checks that the process still runs the same program: only then was everything read from it.
    pub(super) fn check(&self) -> io::Result<()> {
        self.resident.as_ref().map_or(Ok(()), ResidentPages::check)
    }

    /// Pages of `mappings`, which are the process's.
    pub(super) fn pages(&self, mappings: &[MapsEntry]) -> io::Result<Pages> {
        match &self.resident {
            Some(resident) => Pages::read(resident, mappings),
            None => Ok(Pages::default()),
        }
    }

    pub(super) fn was_stopped(&mut self, time: Option<Duration>) {
        self.stopped = self.stopped.max(time);
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

/// A process as it is seen at one moment, or in one pass.
pub(super) struct Seen<'a> {
    pub(super) memory: &'a dyn Memory,
    /// Pages that are in the memory.
    pub(super) pages: &'a Pages,
    pub(super) mappings: &'a [MapsEntry],
    pub(super) outside: &'a Outside,
    /// Memory that blocks were freed from.
    pub(super) freed: Freed,
}

/// Outstanding blocks, and the notes on freed memory that were read before the blocks were listed.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) blocks: Vec<Block>,
    pub(super) notes: Notes,
}

/// Registers and other words that a process has outside of its memory.
#[derive(Debug, Default)]
pub(super) struct Outside {
    states: Vec<ThreadState>,
    /// Words of vector registers.
    pub(super) vectors: Vec<u64>,
    /// Words that the kernel keeps.
    kept: Vec<u64>,
    hidden: BTreeMap<Hidden, u64>,
    hidden_words: u64,
}

impl Outside {
    pub(super) fn read(pid: u32, mut registers: Option<&mut Registers<'_>>) -> io::Result<Self> {
        let states = registers
            .as_mut()
            .map(|registers| registers.read(pid))
            .transpose();
        let in_kernel = registers.map(|registers| registers.kept(pid)).transpose();
        let in_kernel =
            in_kernel.inspect_err(|error| tracing::debug!("what the kernel keeps for {pid}: {error}"));
        let kept = kept::read(pid, in_kernel.ok().flatten().as_deref())?;
        Ok(Self {
            states: states.map_err(io::Error::other)?.unwrap_or_default(),
            vectors: Vec::new(),
            kept: kept.words,
            hidden: kept.hidden,
            hidden_words: kept.hidden_words,
        })
    }

    fn words(&self) -> Vec<u64> {
        let registers = self.states.iter().flat_map(|state| &state.words);
        let words = registers.chain(&self.vectors).chain(&self.kept);
        words.copied().collect()
    }
}

fn thread(state: &ThreadState) -> Thread {
    Thread {
        sp: state.sp,
        tp: state.tp,
        is_running: state.is_running,
    }
}
