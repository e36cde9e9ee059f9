//! What of a report conditions are decided by: kept from the last one, which is known to be the last only later.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use super::baseline::Baseline;
use super::site::{Site, counted};
use super::workspace::{Source, Workspace};
use leak_report::model::Report;
use leak_report::model::site_name::{SiteName, SiteNamer, SiteNames};
use leak_report::model::{Amount, Estimate, Events, Losses, NameStyle};

/// Sites that are named for a condition.
pub(super) const MAX_CULPRITS: usize = 3;

/// A report, as far as conditions are about it.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) elapsed: Duration,
    /// How names are written.
    pub(super) style: NameStyle,
    /// When it was made.
    pub(super) read_at: SystemTime,
    /// Nothing that was traced runs any more.
    pub(super) is_over: bool,
    pub(super) sites: Vec<SiteFacts>,
    /// By key, where among the sites.
    by_key: HashMap<SiteName, usize>,
    /// What was allocated by stacks that count.
    pub(super) allocated: Estimate,
    /// The stacks with most of it, in bytes and in blocks.
    pub(super) most_allocated: [Vec<SiteFacts>; 2],
    pub(super) events: Events,
    pub(super) losses: Losses,
    /// Bytes that were allocated and recorded, whether they count or not.
    pub(super) recorded_bytes: u64,
    /// Walks that were complete, and all.
    pub(super) walks: [u64; 2],
}

/// A site, as far as conditions are about it.
#[derive(Clone, Debug)]
pub(super) struct SiteFacts {
    pub(super) key: SiteName,
    /// What of it counts.
    pub(super) amount: Estimate,
    /// Where in the user's source it is.
    pub(super) source: Option<Source>,
}

impl Facts {
    /// Those of `report`. What sites hold counts as far as it is beyond the baseline.
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
                amount: beyond(baseline, &site.key, site.held),
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
                most(report, |amount| amount.bytes, names, workspace),
                most(report, |amount| amount.blocks, names, workspace),
            ],
            events: report.events,
            losses: report.losses.clone(),
            recorded_bytes: recorded.bytes,
            walks: report.completeness.complete_allocations(),
        }
    }

    /// A site that holds something.
    pub(super) fn site(&self, key: &SiteName) -> Option<&SiteFacts> {
        self.by_key.get(key).and_then(|&at| self.sites.get(at))
    }
}

/// What of a site's amount is beyond what it may hold.
pub(super) fn beyond(baseline: Option<&Baseline>, site: &SiteName, held: Estimate) -> Estimate {
    let accepted = baseline.map_or_else(Amount::default, |baseline| baseline.of(site));
    Estimate {
        amount: held.amount.less(accepted),
        ..held
    }
}

/// The stacks that allocated most.
fn most(
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
        source: workspace.locate(stack),
    });
    facts.collect()
}
