//! Verdicts on outstanding blocks: which of them the processes can still reach. A separate thread makes them,
//! while the processes run and are followed.

mod at_once;
mod finding;
mod holding;
mod in_use;
mod roots;
mod subject;
mod vtables;
mod watch;

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::lack::Killable;
use super::{Session, Signals, VerdictSettings, View};
use crate::bpf::collect::{self, BlockTable, Judged, Moment};
use crate::bpf::{FreeNotes, Registers, Storage};
use crate::process::is_stopped;
use crate::process::modules::Module;
use crate::reach::heap::Block;
use leak_report::model::Judgement;

use finding::Finding;
pub(super) use holding::{FIRST_BYTES, Holding, OfStack, classes_by_word};
pub use in_use::{InUse, InUseError, LostBlock, judge_in_use};
use subject::{Known, Listed, Subject};
pub(super) use watch::Watch;

/// A verdict while a report is made, with the blocks that are watched because of it and of earlier ones.
#[derive(Debug)]
pub(super) struct Judging {
    finding: Finding,
    watch: Watch,
}

impl Judging {
    /// Returns the verdict on an outstanding block, and notes for the watch that it is outstanding.
    pub(super) fn see(&mut self, block: &collect::Block) -> Judged {
        self.watch
            .see(&(block.instance, block.address, block.allocated_at));
        self.finding.of(block)
    }
}

/// Time for which blocks that are called lost are watched before they are reported.
const WATCH_TIME: Duration = Duration::from_secs(1);

impl Session<'_> {
    /// Makes a verdict, if `view` has one for this report; `ending`: no other follows.
    pub(super) fn judge(
        &mut self,
        view: &View,
        ending: bool,
        signals: &Signals,
    ) -> anyhow::Result<Option<Judging>> {
        let Some(settings) = self.asked(view, ending, signals) else {
            return Ok(None);
        };
        // Copies of the processes' memory are made.
        let _killable = Killable::begin();
        // So that a child that has just begun is judged, too, and blocks are listed with the stacks that they
        // have in the report, to which holders are assigned.
        self.live.finish_all_walks()?;
        let table = BlockTable::of(&self.live.kernel).context("cannot read the block table")?;
        let live = self.live.roster.running();
        let is_held = self.live.stops.is_at_end();
        let uses_slack = self.live.code.modules().iter().any(Module::asks_usable_size);
        let subjects = live.map(|process| {
            let pid = process.facts.pid;
            let known = Known {
                is_still: is_held && process.is_given && is_stopped(pid),
                uses_slack,
                tags: settings.tags,
                is_untraced: false,
            };
            Subject::new(process.facts.instance, pid, known)
        });
        let subjects: Vec<_> = subjects.collect();
        let notes = self.live.kernel.free_notes.clone();
        let notes = notes.filter(|_| !self.live.attach.probes().misses_some());
        if notes.is_none() {
            let why = match self.live.attach.probes().misses_some() {
                true => "some functions that allocate are not probed, or may not be",
                false => "not all blocks are recorded, or mapping calls cannot be followed",
            };
            tracing::debug!("traced frees cannot show which memory is free: {why}");
        }
        let is_still = subjects.iter().all(Subject::is_still);
        let watch_time = if is_still { Duration::ZERO } else { WATCH_TIME };
        let judge = move || {
            let since = (!is_still).then(|| {
                // So that no block that was allocated until now is taken for younger, though timestamps are
                // imprecise.
                std::thread::sleep(Moment::PRECISION);
                Moment::now()
            });
            let finding = judge((&table, notes.as_deref()), since, subjects, settings);
            std::thread::sleep(watch_time);
            finding
        };
        let finding = self.meanwhile(signals, judge)??;
        tracing::debug!("verdict made: {:?}", finding.facts);
        let mut watch = std::mem::take(&mut self.watch);
        watch.begin(&finding);
        Ok(Some(Judging { finding, watch }))
    }

    /// Settings for the verdict of this report; `None` if it gets none.
    fn asked(&self, view: &View, ending: bool, signals: &Signals) -> Option<VerdictSettings> {
        if signals.want_verdicts() && view.older.is_none() {
            tracing::warn!(
                "no verdict: this trace does not track single blocks (as with -C, --mmap or --faults)"
            );
            signals.refuse_verdicts();
        }
        let asked = view.verdict.filter(|settings| settings.each || ending);
        asked.or_else(|| signals.want_verdicts().then(|| view.verdict.unwrap_or_default()))
    }

    /// Facts about a verdict, after all blocks were seen, and the holders of blocks.
    pub(super) fn judgement(&mut self, judging: Judging) -> (Judgement, Vec<Holding>) {
        let Judging { finding, watch } = judging;
        self.watch = watch;
        let roster = &self.live.roster;
        let is_live = |instance| roster.is_running(instance);
        let facts = Judgement {
            freed_later: self.watch.freed(is_live),
            ..finding.facts
        };
        (facts, finding.holdings)
    }
}

/// Makes passes until they are enough for each of `subjects`, or time is over. Blocks allocated `since` are
/// too young for a verdict.
fn judge(
    (table, notes): (&BlockTable, Option<&FreeNotes>),
    since: Option<Moment>,
    mut subjects: Vec<Subject>,
    settings: VerdictSettings,
) -> anyhow::Result<Finding> {
    let began = Instant::now();
    let mut storage = Storage::uninit();
    let mut registers = Registers::open(&mut storage)
        .inspect_err(|error| {
            tracing::warn!("blocks that are reachable only from registers will be called lost: {error}")
        })
        .ok();
    if settings.stops {
        for subject in &mut subjects {
            let instance = subject.instance();
            let mut list = || {
                Ok(list(table, notes, &[instance])?
                    .remove(&instance)
                    .unwrap_or_default())
            };
            subject.judge_at_once(&mut list, registers.as_mut(), began + settings.limit);
        }
    }
    while subjects.iter().any(Subject::needs_more) {
        let asked = subjects.iter().filter(|subject| subject.needs_more());
        let asked: Vec<_> = asked.map(Subject::instance).collect();
        let mut listed = list(table, notes, &asked)?;
        for subject in subjects.iter_mut().filter(|subject| subject.needs_more()) {
            let listed = listed.remove(&subject.instance()).unwrap_or_default();
            subject.pass(listed, registers.as_mut(), began + settings.limit);
        }
        if began.elapsed() >= settings.limit {
            break;
        }
    }
    Ok(Finding::new(since, began.elapsed(), subjects))
}

/// Lists the blocks of some instances, and the notes on their freed memory.
fn list(
    table: &BlockTable,
    notes: Option<&FreeNotes>,
    instances: &[u32],
) -> io::Result<HashMap<u32, Listed>> {
    // In this order: a block that is allocated meanwhile in freed memory is then among the blocks.
    let noted = notes
        .map(|notes| notes.read(instances.iter().copied()))
        .transpose();
    let mut noted = noted
        .map_err(|error| failed("what was freed", &error))?
        .unwrap_or_default();
    let mut listed: HashMap<u32, Listed> = HashMap::new();
    for &instance in instances {
        let notes = noted.remove(&instance).unwrap_or_default();
        let blocks = Vec::new();
        listed.insert(instance, Listed { blocks, notes });
    }
    let visited = table.visit(|block| {
        if let Some(listed) = listed.get_mut(&block.instance) {
            listed.blocks.push(Block {
                address: block.address,
                size: block.size,
                allocated_at: block.allocated_at,
                stack: block.stack,
            });
        }
    });
    visited.map_err(|error| failed("the block table", &error))?;
    Ok(listed)
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("cannot read {what}: {error}"))
}
