//! Data for deciding conditions. It is extracted from each report, because only later it is known which
//! report was the last.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use super::baseline::Baseline;
use super::site::{Site, counted};
use super::workspace::{Source, Workspace};
use leak_report::model::Report;
use leak_report::model::diagnosis::Diagnosis;
use leak_report::model::site_name::{SiteName, SiteNamer, SiteNames};
use leak_report::model::{Amount, Estimate, Events, Judgement, Losses, NameStyle, Unjudged};

/// Maximum number of sites named for a condition.
pub(super) const MAX_CULPRITS: usize = 3;

/// The data of a report that conditions need.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) elapsed: Duration,
    /// Style in which function names are printed.
    pub(super) style: NameStyle,
    pub(super) read_at: SystemTime,
    /// True if all traced processes have ended.
    pub(super) is_over: bool,
    pub(super) sites: Vec<SiteFacts>,
    /// Index into `sites`.
    by_key: HashMap<SiteName, usize>,
    /// Allocated by the stacks that count.
    pub(super) allocated: Estimate,
    /// The stacks that allocated most, by bytes and by blocks.
    pub(super) most_allocated: [Vec<SiteFacts>; 2],
    pub(super) events: Events,
    pub(super) losses: Losses,
    /// Bytes of all recorded allocations, including those that do not count.
    pub(super) recorded_bytes: u64,
    /// Number of allocations with a complete stack, and of all.
    pub(super) walks: [u64; 2],
    /// Facts about the verdict; `None` if none was made.
    pub(super) verdict: Option<VerdictFacts>,
    /// Answer to why memory grows; `None` if the report has none.
    pub(super) diagnosis: Option<Box<Diagnosis>>,
}

/// Evidence of errors and gaps in a verdict.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VerdictFacts {
    /// Blocks that an earlier verdict called lost, and that were freed since.
    pub(super) freed_later: Amount,
    /// Blocks that could not be judged, except those that came or went while the verdict was made.
    pub(super) unjudged: Amount,
}

impl VerdictFacts {
    fn of(report: &Report) -> Option<Self> {
        let running = Self::judged(report.judgement.as_ref()?);
        // Unjudged blocks of ended instances are counted at their stacks. Instances that ended with an exec,
        // which discards their memory, do not count.
        let ended = counted(report).filter(|stack| stack.ended.is_some());
        let ended: Amount = ended.map(|stack| stack.judged().unknown).sum();
        Some(Self {
            unjudged: running.unjudged + ended,
            ..running
        })
    }

    /// Data of a verdict on running processes.
    pub(super) fn judged(judgement: &Judgement) -> Self {
        let reasons = [Unjudged::NotSettled, Unjudged::Unreadable, Unjudged::InKernel].into_iter();
        let unjudged = reasons.filter_map(|reason| judgement.unjudged.get(&reason));
        Self {
            freed_later: judgement.freed_later,
            unjudged: unjudged.copied().sum(),
        }
    }
}

/// The data of a site that conditions need.
#[derive(Clone, Debug)]
pub(super) struct SiteFacts {
    pub(super) key: SiteName,
    /// The amount that counts.
    pub(super) amount: Estimate,
    /// Definitely and indirectly lost; the baseline is not subtracted.
    pub(super) lost: [Estimate; 2],
    /// The site's innermost line in the user's source.
    pub(super) source: Option<Source>,
}

impl Facts {
    /// Extracts the data of `report`. A site counts only with its amount beyond the baseline.
    pub(super) fn of(
        report: &Report,
        sites: &[Site<'_>],
        baseline: Option<&Baseline>,
        names: &mut SiteNames,
        workspace: &mut Workspace,
    ) -> Self {
        let sites: Vec<_> = sites
            .iter()
            .map(|site| SiteFacts {
                amount: above_baseline(baseline, &site.key, site.outstanding),
                lost: site.lost,
                source: workspace.locate(site.stack),
                key: site.key.clone(),
            })
            .collect();
        let by_key = sites.iter().zip(0..).map(|(site, at)| (site.key.clone(), at));
        let recorded: Amount = report.stacks().map(|stack| stack.allocated.amount).sum();
        Self {
            elapsed: report.elapsed,
            style: report.names,
            read_at: report.read_at,
            is_over: report.targets.iter().all(|target| target.ended.is_some()),
            by_key: by_key.collect(),
            sites,
            allocated: counted(report).map(|stack| stack.allocated).sum(),
            most_allocated: [
                most_allocating(report, |amount| amount.bytes, names, workspace),
                most_allocating(report, |amount| amount.blocks, names, workspace),
            ],
            events: report.events,
            losses: report.losses.clone(),
            recorded_bytes: recorded.bytes,
            walks: report.completeness.complete_allocations(),
            verdict: VerdictFacts::of(report),
            diagnosis: report.diagnosis.clone(),
        }
    }

    /// The data of a site, if it has outstanding or lost memory.
    pub(super) fn site(&self, key: &SiteName) -> Option<&SiteFacts> {
        self.by_key.get(key).and_then(|&at| self.sites.get(at))
    }
}

/// Subtracts the amount that the baseline accepts for a site.
pub(super) fn above_baseline(
    baseline: Option<&Baseline>,
    site: &SiteName,
    outstanding: Estimate,
) -> Estimate {
    let accepted = baseline.map_or_else(Amount::default, |baseline| baseline.of(site));
    Estimate {
        amount: outstanding.amount.less(accepted),
        ..outstanding
    }
}

/// The stacks that allocated most by `order`.
fn most_allocating(
    report: &Report,
    order: impl Fn(&Amount) -> u64,
    names: &mut SiteNames,
    workspace: &mut Workspace,
) -> Vec<SiteFacts> {
    let mut worst: Vec<_> = counted(report).collect();
    worst.sort_by_key(|stack| Reverse(order(&stack.allocated.amount)));
    let mut keys = SiteNamer::new(names);
    let facts = worst.into_iter().take(MAX_CULPRITS).map(|stack| SiteFacts {
        key: keys.site(stack),
        amount: stack.allocated,
        lost: [stack.definitely_lost(), stack.indirectly_lost()],
        source: workspace.locate(stack),
    });
    facts.collect()
}
