//! The reports that a page is made of: sites with their stacks, and their amounts at each moment.
//!
//! Names and mappings can change when more is known; those of the last report are used.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use indexmap::IndexMap;

use super::data::{PeakRow, PinnedRow, Trace, VerdictRow, verdict_numbers};
use super::health::Health;
use super::rows::{Row, Rows};
use super::snapshot::{Resident, Snapshot, Snapshots};
use super::visible::visible;
use crate::model::dictionary::Import;
use crate::model::leak::Suspicion;
use crate::model::owner::{Owner, owner};
use crate::model::{
    AGE_BOUNDS, Amount, Dictionary, Excerpt, NameStyle, Report, Sampling, SiteKey, Stack, StackRef,
    StepStacks, TargetFacts, Verdict,
};
use crate::render::estimates::whole;
use crate::render::holders::{chain, holder_lines};
use crate::render::{DiagnosisText, makeup, peak, pinned, verdict};

/// Number of age classes.
pub(super) const AGES: usize = AGE_BOUNDS.len() + 1;

/// Position of the responsible function in a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnerAt {
    /// Number of its frame, from the innermost on.
    pub(super) frame: usize,
    /// 0 for the frame's own function, 1 for the innermost inlined one, and so on.
    pub(super) level: usize,
}

impl OwnerAt {
    /// Position in `stack`; the innermost frame if there is no responsible function.
    fn of(stack: StackRef<'_>) -> Self {
        let Some(Owner { frame, at, .. }) = owner(stack) else {
            return Self::default();
        };
        let (number_of_frame, inlined) = at;
        let is_own = inlined == frame.inlined().len();
        Self {
            frame: number_of_frame,
            level: if is_own { 0 } else { inlined + 1 },
        }
    }
}

/// A site as in the last report that has it.
#[derive(Clone, Debug)]
pub(super) struct Site {
    /// One of its stacks, with numbers of the page's dictionary.
    pub(super) stack: Stack,
    /// True if it can be a leak, is not suppressed, and its blocks are not counted elsewhere too.
    pub(super) is_suspect: bool,
    /// The responsible function.
    pub(super) owner: OwnerAt,
    pub(super) lost: Amount,
    /// Amount of it at the peak of the last report.
    pub(super) peak: Amount,
    /// Free memory that its blocks pin, by the last report.
    pub(super) pinned: Amount,
    /// Outstanding blocks by age, if ages were recorded.
    pub(super) ages: Option<[Amount; AGES]>,
    /// Suspicion of the site: how much it behaves like a leak.
    pub(super) suspicion: Option<Suspicion>,
    /// Verdict on the outstanding blocks, if the last report has one.
    pub(super) verdict: Option<Verdict>,
    /// Holders of the blocks, if the last report has them.
    pub(super) holders: Holders,
}

/// Holders of the blocks of a site, in words.
#[derive(Clone, Debug, Default)]
pub(super) struct Holders {
    pub(super) lines: Vec<String>,
    /// Root and sites of each chain, with what it holds.
    pub(super) chains: Vec<(Vec<String>, Amount)>,
    pub(super) retained: Option<Amount>,
}

impl Holders {
    fn of(stack: StackRef<'_>, stacks: &StepStacks<'_>) -> Self {
        let held = stack.get().held.as_deref();
        let chains = held.into_iter().flat_map(|held| &held.by);
        let chains = chains.map(|holder| (chain(holder, stack.report(), stacks), holder.amount));
        Self {
            lines: [makeup::lines(stack), holder_lines(stack, stacks, true)].concat(),
            chains: chains.collect(),
            retained: held.and_then(|held| held.retained),
        }
    }
}

impl Site {
    fn new(stack: StackRef<'_>, renumbered: Stack) -> Self {
        Self {
            stack: renumbered,
            is_suspect: stack.is_suspect(),
            owner: OwnerAt::of(stack),
            lost: Amount::default(),
            peak: Amount::default(),
            pinned: Amount::default(),
            ages: None,
            suspicion: None,
            verdict: None,
            holders: Holders::default(),
        }
    }

    /// Adds the losses, suspicion and ages of one of its stacks in the last report.
    fn add(&mut self, stack: StackRef<'_>) {
        self.lost = self.lost + stack.lost;
        self.peak = self.peak + stack.peak;
        self.pinned = self.pinned + stack.pins().amount;
        // The most suspicious of the merged stacks counts.
        let suspicion = stack.recent.suspicion.filter(Suspicion::is_known);
        let rank = |suspicion: Option<Suspicion>| suspicion.unwrap_or_default().rank();
        if rank(suspicion) > rank(self.suspicion) {
            self.suspicion = suspicion;
        }
        if let Some(verdict) = stack.verdict {
            self.verdict = Some(self.verdict.unwrap_or_default() + verdict);
        }
        if let Some(ages) = stack.recent.ages {
            let known = self.ages.get_or_insert_default();
            for (known, (_, class)) in known.iter_mut().zip(ages.classes()) {
                *known = *known + class.amount;
            }
        }
    }
}

/// The content of a page.
#[derive(Default)]
pub(super) struct Model {
    /// Texts, modules, frames and paths of the sites.
    pub(super) dictionary: Arc<Dictionary>,
    pub(super) sites: IndexMap<SiteKey, Site>,
    /// Processes by instance, as in the last report that had them.
    pub(super) processes: BTreeMap<u32, TargetFacts>,
    pub(super) snapshots: Snapshots,
    /// True if any amount is an estimate.
    pub(super) are_estimates: bool,
    /// Time of the baseline mark, since the attach.
    marked_at: Option<Duration>,
    /// Style of names, by the last report.
    pub(super) style: NameStyle,
    /// Subject and settings of the trace, by the last report.
    pub(super) trace: Trace,
    /// Lines of source by file and line, of all reports.
    pub(super) sources: BTreeMap<(String, u32), Excerpt>,
    /// Accuracy of stacks and amounts, by the last report.
    pub(super) health: Option<Health>,
    /// Peak and verdict of the last report.
    pub(super) peak: Option<PeakRow>,
    pub(super) verdict: Option<VerdictRow>,
    /// Diagnosis of the last report.
    pub(super) diagnosis: Option<DiagnosisText>,
    /// Free memory that all blocks pin, by the last report.
    pub(super) pinned: Option<PinnedRow>,
}

impl Model {
    /// Adds the next report; keeps at most `max` snapshots.
    pub(super) fn add(&mut self, report: &Report, max: usize) {
        let are_estimates = report.sampling != Sampling::All;
        self.are_estimates |= are_estimates;
        for target in &report.targets {
            let facts = TargetFacts {
                memory: None,
                fragmentation: None,
                ..target.clone()
            };
            self.processes.insert(target.instance, facts);
        }
        let sites = self.add_sites(report);
        let rows = |row: fn(&Stack) -> Row| {
            let of_sites = sites.iter().zip(&report.stacks);
            let rows = of_sites.map(|(&site, stack)| (site, row(stack))).collect();
            Rows::pack(rows, are_estimates)
        };
        if let Some((time, elapsed)) = self.new_mark(report) {
            let snapshot = Snapshot {
                time,
                elapsed,
                marked: true,
                rows: rows(row_at_baseline),
                ..Snapshot::default()
            };
            self.snapshots.add(snapshot, max);
        }
        let snapshot = Snapshot {
            time: report.time,
            read_at_ms: since_1970(report.read_at),
            elapsed: report.elapsed,
            marked: false,
            reason: report.reason.as_ref().map(|reason| visible(&reason.to_string())),
            rows: rows(row_of),
            memory: residents(report),
        };
        self.snapshots.add(snapshot, max);
        self.style = report.names;
        self.trace = Trace::from(report);
        let excerpts = report.excerpts.iter().flat_map(|excerpts| &excerpts.known);
        self.sources
            .extend(excerpts.map(|(place, excerpt)| (place.clone(), excerpt.clone())));
        self.health = Some(Health::of(report));
        self.peak = report.peak.as_ref().map(|peak| PeakRow {
            all: [peak.total.bytes, peak.total.blocks],
            elapsed_ns: u64::try_from(peak.elapsed.as_nanos()).unwrap_or(u64::MAX),
            words: peak::in_words(peak, report.sampling),
        });
        self.verdict = report.verdict().map(|of_all| VerdictRow {
            all: verdict_numbers(&of_all),
            lines: verdict::lines(report),
        });
        self.diagnosis = report
            .diagnosis
            .as_deref()
            .map(|diagnosis| DiagnosisText::from(diagnosis).map(visible));
        self.pinned = report.asks_for_pinned().then(|| PinnedRow {
            all: report
                .pinned()
                .map(|pinned| [pinned.amount.bytes, pinned.amount.blocks]),
            lines: pinned::lines(report),
        });
    }

    /// Time of day and time since the attach of a baseline that is new in this report and has no snapshot
    /// yet.
    fn new_mark(&mut self, report: &Report) -> Option<(crate::model::TimeOfDay, Duration)> {
        let time = report.compared.marked?;
        let elapsed = report.elapsed.saturating_sub(report.compared.since_baseline);
        let is_new = self.marked_at.replace(elapsed) != Some(elapsed);
        (is_new && !self.snapshots.mark(elapsed)).then_some((time, elapsed))
    }

    /// Adds the report's stacks; returns the number of the site of each.
    fn add_sites(&mut self, report: &Report) -> Vec<u32> {
        for site in self.sites.values_mut() {
            (site.ages, site.lost, site.suspicion, site.verdict) = (None, Amount::default(), None, None);
            (site.peak, site.pinned) = (Amount::default(), Amount::default());
            site.holders = Holders::default();
        }
        let stacks = StepStacks::of(report);
        let mut import = Import::merge(&report.dictionary, &mut self.dictionary);
        let sites = report.stacks().map(|stack| {
            let mut site = Site::new(stack, stack.renumbered(&mut import));
            site.holders = Holders::of(stack, &stacks);
            let number = match self.sites.entry(stack.key()) {
                indexmap::map::Entry::Occupied(mut known) => {
                    let Site {
                        lost,
                        peak,
                        pinned,
                        ages,
                        suspicion,
                        verdict,
                        ..
                    } = *known.get();
                    (site.lost, site.peak, site.pinned) = (lost, peak, pinned);
                    (site.ages, site.suspicion, site.verdict) = (ages, suspicion, verdict);
                    if site.holders.lines.is_empty() {
                        site.holders = std::mem::take(&mut known.get_mut().holders);
                    }
                    site.add(stack);
                    known.insert(site);
                    known.index()
                }
                indexmap::map::Entry::Vacant(vacant) => {
                    site.add(stack);
                    vacant.insert_entry(site).index()
                }
            };
            // Sites are in memory, so there are fewer than 2³².
            u32::try_from(number).unwrap_or(u32::MAX)
        });
        sites.collect()
    }
}

fn since_1970(time: SystemTime) -> u64 {
    let time = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn row_of(stack: &Stack) -> Row {
    Row {
        outstanding: stack.outstanding,
        allocated: stack.allocated,
        young: stack.recent.young.unwrap_or_default().amount,
    }
}

/// Amounts of the stack at the baseline: its current amounts less the changes since.
fn row_at_baseline(stack: &Stack) -> Row {
    let change = &stack.recent.since_baseline;
    let freed = stack.allocated.less(stack.outstanding).less(change.freed);
    let allocated = stack.allocated.less(change.allocated);
    Row {
        outstanding: allocated.less(freed),
        allocated,
        young: Amount::default(),
    }
}

fn residents(report: &Report) -> Vec<Resident> {
    let running = report.targets.iter().filter_map(|target| {
        let error = report.tracked_error(target.instance);
        Some(Resident {
            instance: target.instance,
            parts: target.memory.clone()?,
            error: error.map_or(0, whole),
        })
    });
    running.collect()
}
