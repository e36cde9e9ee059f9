//! Differences between two reports, by site.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::identity::{Builds, MatchedSite};
use super::manner::Manner;
use crate::model::Report;
use crate::model::site_name::SiteNames;
use crate::model::{Amount, Estimate, Sampling, StackRef, StandardError};

/// Amounts of a site in a report: sums over its stacks in all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteAmounts {
    /// Allocated and not freed, without young blocks, as shown to people.
    pub shown: Estimate,
    /// Allocated and not freed.
    pub outstanding: Estimate,
    /// Allocated since the attach.
    pub allocated: Estimate,
    /// Definitely lost by the report's verdict; `None` if it has none.
    pub definitely_lost: Option<Amount>,
    /// Free memory that its blocks pin; `None` if the report does not say.
    pub pinned: Option<Amount>,
}

impl SiteAmounts {
    pub(super) fn of(stack: StackRef<'_>) -> Self {
        Self {
            shown: stack.shown_estimate(),
            outstanding: stack.outstanding,
            allocated: stack.allocated,
            definitely_lost: stack.verdict.map(|verdict| verdict.definitely_lost),
            pinned: stack.pinned.map(|pinned| pinned.amount),
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        let Self {
            shown,
            outstanding,
            allocated,
            definitely_lost,
            pinned,
        } = other;
        self.shown = self.shown + shown;
        self.outstanding = self.outstanding + outstanding;
        self.allocated = self.allocated + allocated;
        let sum = |one: Option<Amount>, other: Option<Amount>| match (one, other) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        self.definitely_lost = sum(self.definitely_lost, definitely_lost);
        self.pinned = sum(self.pinned, pinned);
    }

    /// Amounts of a site in a report that does not have it.
    pub(super) fn none_in(report: &Report) -> Self {
        Self {
            definitely_lost: report.judgement.as_ref().map(|_| Amount::default()),
            pinned: report.pinned().map(|_| Amount::default()),
            ..Self::default()
        }
    }
}

/// Change of a site between two reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Nothing outstanding before.
    New,
    /// More outstanding than before.
    Grown,
    /// As much outstanding as before.
    Unchanged,
    /// Less outstanding than before.
    Shrunk,
    /// Nothing outstanding now.
    Gone,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 5] = [Self::New, Self::Grown, Self::Unchanged, Self::Shrunk, Self::Gone];

    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Grown => "grown",
            Self::Unchanged => "unchanged",
            Self::Shrunk => "shrunk",
            Self::Gone => "gone",
        }
    }
}

/// Site with its amounts in both reports.
#[derive(Clone, Debug)]
pub struct Difference<'a> {
    /// Largest of its stacks in the later report, or in the earlier one if the later has none.
    pub stack: StackRef<'a>,
    /// Amounts in the earlier report.
    pub before: SiteAmounts,
    /// Amounts in the later report.
    pub after: SiteAmounts,
}

impl Difference<'_> {
    /// Net growth in bytes, without young blocks.
    pub fn bytes(&self) -> i128 {
        i128::from(self.after.shown.amount.bytes) - i128::from(self.before.shown.amount.bytes)
    }

    /// Net growth in blocks, without young blocks.
    pub fn blocks(&self) -> i128 {
        i128::from(self.after.shown.amount.blocks) - i128::from(self.before.shown.amount.blocks)
    }

    /// Net growth of the definitely lost amount, in bytes and blocks; `None` unless both reports have a
    /// verdict.
    pub fn lost(&self) -> Option<[i128; 2]> {
        let (before, after) = (self.before.definitely_lost?, self.after.definitely_lost?);
        Some([
            i128::from(after.bytes) - i128::from(before.bytes),
            i128::from(after.blocks) - i128::from(before.blocks),
        ])
    }

    /// Net growth of the free bytes that its blocks pin; 0 unless both reports say what these are.
    fn pinned(&self) -> i128 {
        match (self.before.pinned, self.after.pinned) {
            (Some(before), Some(after)) => i128::from(after.bytes) - i128::from(before.bytes),
            (None, _) | (_, None) => 0,
        }
    }

    /// Net growth that sites are ranked by: definitely lost bytes and blocks, then outstanding bytes and
    /// blocks, then pinned bytes.
    pub(super) fn rank(&self) -> [i128; 5] {
        let [lost_bytes, lost_blocks] = self.lost().unwrap_or_default();
        [
            lost_bytes,
            lost_blocks,
            self.bytes(),
            self.blocks(),
            self.pinned(),
        ]
    }

    /// Upper bound of the standard error of the net growth, if amounts are estimates. The true error is lower
    /// where blocks are in both reports, since these cancel out.
    pub fn standard_error(&self) -> StandardError {
        (self.before.shown.spread + self.after.shown.spread).standard_error()
    }

    /// Change of the site.
    pub fn state(&self) -> State {
        let is_outstanding = |amounts: &SiteAmounts| amounts.shown.amount != Amount::default();
        match (is_outstanding(&self.before), is_outstanding(&self.after)) {
            (false, false) => State::Unchanged,
            (false, true) => State::New,
            (true, false) => State::Gone,
            (true, true) => match (self.bytes(), self.blocks()) {
                (0, 0) => State::Unchanged,
                (bytes, blocks) if (bytes, blocks) > (0, 0) => State::Grown,
                _ => State::Shrunk,
            },
        }
    }
}

/// One of two compared reports.
#[derive(Clone, Debug)]
pub struct Side<'a> {
    /// Name given by the user.
    pub name: String,
    /// The report.
    pub report: &'a Report,
}

/// Two reports and their differences.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    /// Earlier report.
    pub before: Side<'a>,
    /// Later report.
    pub after: Side<'a>,
    /// Sites that are possible leaks, largest net growth first; with two verdicts, largest growth of the
    /// definitely lost amount first.
    pub sites: Vec<Difference<'a>>,
    /// Reasons why the reports may not be comparable, one sentence each.
    pub notes: Vec<String>,
}

impl<'a> Comparison<'a> {
    /// Compares two reports; `builds` are the builds that they have in common.
    pub fn of(before: Side<'a>, after: Side<'a>, builds: &Builds) -> Self {
        let mut sites: Vec<Difference<'a>> = Vec::new();
        let mut known: HashMap<MatchedSite, usize> = HashMap::new();
        let mut names = SiteNames::default();
        let mut place_of = |stack: StackRef<'a>, site: MatchedSite, sites: &mut Vec<Difference<'a>>| {
            *known.entry(site).or_insert_with(|| {
                sites.push(Difference {
                    stack,
                    before: SiteAmounts::none_in(before.report),
                    after: SiteAmounts::none_in(after.report),
                });
                sites.len() - 1
            })
        };
        // Reports order stacks by amount, so that a site's first stack is its largest.
        for (stack, site) in builds.sites(after.report, &mut names) {
            let at = place_of(stack, site, &mut sites);
            sites[at].after.add(SiteAmounts::of(stack));
        }
        for (stack, site) in builds.sites(before.report, &mut names) {
            let at = place_of(stack, site, &mut sites);
            sites[at].before.add(SiteAmounts::of(stack));
        }
        sites.sort_by_cached_key(|site| Reverse((site.rank(), site.after.shown.amount.bytes)));
        let notes = match builds.same_trace() {
            true => Vec::new(),
            false => Manner::of(before.report).notes(&Manner::of(after.report)),
        };
        Self {
            before,
            after,
            sites,
            notes,
        }
    }

    /// Sums over all sites, before and after.
    pub fn total(&self) -> (SiteAmounts, SiteAmounts) {
        self.sum(&self.sites)
    }

    /// Sums over some of the sites, before and after.
    pub(super) fn sum<'b>(
        &self,
        sites: impl IntoIterator<Item = &'b Difference<'b>>,
    ) -> (SiteAmounts, SiteAmounts) {
        let [mut before, mut after] =
            [&self.before, &self.after].map(|side| SiteAmounts::none_in(side.report));
        for site in sites {
            before.add(site.before);
            after.add(site.after);
        }
        (before, after)
    }

    /// Number of sites in this state.
    pub fn count(&self, state: State) -> usize {
        self.sites.iter().filter(|site| site.state() == state).count()
    }

    /// Returns whether amounts of either report are estimates.
    pub fn is_estimate(&self) -> bool {
        [&self.before, &self.after]
            .iter()
            .any(|side| side.report.sampling != Sampling::All)
    }
}
