//! One process that a verdict is made on.

use std::io;

use crate::bpf::{Registers, ThreadState};
use crate::process::touched::ResidentPages;
use crate::process::{kept, maps_of};
use crate::reach::free;
use crate::reach::heap::{Block, Heap};
use crate::reach::judge::{Judge, LostBlocks, Sight};
use crate::reach::pages::Pages;
use crate::reach::passes::Identity;
use crate::reach::reader::Reader;
use crate::reach::roots::{Thread, dead_stacks};

/// An instance, and what the passes so far have found.
#[derive(Debug)]
pub(super) struct Subject {
    instance: u32,
    pid: u32,
    /// Bound to the memory of the instance: after an exec or its end, nothing is read.
    resident: Option<ResidentPages>,
    judge: Judge,
    /// True if nothing of it runs: then one pass says everything.
    is_still: bool,
    /// Set once enough passes were made.
    lost: Option<LostBlocks>,
    has_failed: bool,
    read: u64,
    unreadable: u64,
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
    /// Process `pid`, as long as it is the instance. `is_still`: nothing of it runs.
    pub(super) fn new(instance: u32, pid: u32, is_still: bool) -> Self {
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
            is_still,
            lost: None,
            read: 0,
            unreadable: 0,
        }
    }

    pub(super) fn instance(&self) -> u32 {
        self.instance
    }

    /// True if nothing of it runs.
    pub(super) fn is_still(&self) -> bool {
        self.is_still
    }

    /// Returns whether another pass is needed.
    pub(super) fn needs_more(&self) -> bool {
        self.lost.is_none() && !self.has_failed
    }

    /// Number of passes.
    pub(super) fn passes(&self) -> u32 {
        self.judge.passes().count()
    }

    /// Bytes read, in all passes.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    /// Bytes that the last pass could not read.
    pub(super) fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Makes a pass, in which `blocks` are all that are outstanding.
    pub(super) fn pass(&mut self, blocks: Vec<Block>, registers: Option<&mut Registers<'_>>) {
        if let Err(error) = self.try_pass(blocks, registers) {
            tracing::debug!("pass over process {}: {error}", self.pid);
            self.has_failed = true;
        }
    }

    fn try_pass(&mut self, blocks: Vec<Block>, registers: Option<&mut Registers<'_>>) -> io::Result<()> {
        let Some(resident) = &self.resident else {
            return Ok(());
        };
        let mut heap = Heap::new(blocks);
        let mappings = maps_of(self.pid)?;
        let reader = Reader::new(self.pid, Pages::read(resident, &mappings)?);
        let unused = free::find(&reader, &mappings, &heap);
        tracing::debug!("unused memory of process {}: {:?}", self.pid, unused.facts);
        heap.extend(&unused.usable);
        let states = registers.map(|registers| registers.read(self.pid)).transpose();
        let states = states.map_err(io::Error::other)?.unwrap_or_default();
        let kept = kept::read(self.pid)?;
        let threads: Vec<_> = states.iter().map(thread).collect();
        let mut words: Vec<u64> = states.into_iter().flat_map(|state| state.words).collect();
        words.extend(kept.words);
        let sight = Sight {
            memory: &reader,
            pages: reader.pages().runs(),
            heap: &heap,
            unused: &unused.ranges,
            dead: &dead_stacks(&mappings, &threads),
            words: &words,
        };
        self.judge.pass(&sight);
        let lost = match self.is_still || self.judge.passes().are_enough() {
            true => Some(self.judge.lost(&heap, &reader)),
            false => None,
        };
        // Only if it is the same program still, all of this was its.
        resident.check()?;
        self.read = self.read.saturating_add(reader.read());
        self.unreadable = reader.unreadable();
        self.lost = lost;
        Ok(())
    }

    pub(super) fn end(self) -> End {
        match (self.lost, self.has_failed) {
            (Some(lost), _) => End::Settled(lost),
            (None, false) => End::NotSettled(self.judge.passes().missed().to_vec()),
            (None, true) => End::Failed,
        }
    }
}

fn thread(state: &ThreadState) -> Thread {
    Thread {
        sp: state.sp,
        tp: state.tp,
        is_running: state.is_running,
    }
}
