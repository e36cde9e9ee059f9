//! What is different between two reports, site by site.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::identity::{Builds, MatchedSite};
use super::manner::Manner;
use crate::model::Report;
use crate::model::site_name::SiteNames;
use crate::model::{Amount, Estimate, Sampling, StackRef, StandardError};

/// What a site has in a report: of all its stacks, whichever processes they are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Allocated and not freed, without what is young: what people are shown.
    pub shown: Estimate,
    /// Allocated and not freed.
    pub outstanding: Estimate,
    /// Everything that was allocated.
    pub allocated: Estimate,
}

impl Held {
    pub(super) fn of(stack: StackRef<'_>) -> Self {
        Self {
            shown: stack.shown_estimate(),
            outstanding: stack.outstanding,
            allocated: stack.allocated,
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        let Self {
            shown,
            outstanding,
            allocated,
        } = other;
        self.shown = self.shown + shown;
        self.outstanding = self.outstanding + outstanding;
        self.allocated = self.allocated + allocated;
    }
}

/// What became of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It held nothing before.
    New,
    /// It holds more.
    Grown,
    /// It holds as much.
    Unchanged,
    /// It holds less.
    Shrunk,
    /// It holds nothing any more.
    Gone,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 5] = [Self::New, Self::Grown, Self::Unchanged, Self::Shrunk, Self::Gone];

    /// The word for it.
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

/// A site in both reports.
#[derive(Clone, Debug)]
pub struct Difference<'a> {
    /// One of its stacks, the largest of the later report if it is in that.
    pub stack: StackRef<'a>,
    /// What it held before.
    pub before: Held,
    /// What it holds after.
    pub after: Held,
}

impl Difference<'_> {
    /// Bytes that it holds more than before.
    pub fn bytes(&self) -> i128 {
        i128::from(self.after.shown.amount.bytes) - i128::from(self.before.shown.amount.bytes)
    }

    /// Blocks that it holds more than before.
    pub fn blocks(&self) -> i128 {
        i128::from(self.after.shown.amount.blocks) - i128::from(self.before.shown.amount.blocks)
    }

    /// How far these can be off at most, where amounts are estimates: what is in both reports cancels out.
    pub fn standard_error(&self) -> StandardError {
        (self.before.shown.spread + self.after.shown.spread).standard_error()
    }

    /// What became of it.
    pub fn state(&self) -> State {
        let holds = |held: &Held| held.shown.amount != Amount::default();
        match (holds(&self.before), holds(&self.after)) {
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

/// One of two reports.
#[derive(Clone, Debug)]
pub struct Side<'a> {
    /// What the user calls it.
    pub name: String,
    /// The report.
    pub report: &'a Report,
}

/// Two reports, the earlier one first.
#[derive(Clone, Debug)]
pub struct Comparison<'a> {
    /// The earlier one.
    pub before: Side<'a>,
    /// The later one.
    pub after: Side<'a>,
    /// Sites that hold what can be a leak, what grew most first.
    pub sites: Vec<Difference<'a>>,
    /// Why the two may not be comparable, a sentence each.
    pub notes: Vec<String>,
}

impl<'a> Comparison<'a> {
    /// Compares two reports, of whose modules these builds are common.
    pub fn of(before: Side<'a>, after: Side<'a>, builds: &Builds) -> Self {
        let mut sites: Vec<Difference<'a>> = Vec::new();
        let mut known: HashMap<MatchedSite, usize> = HashMap::new();
        let mut names = SiteNames::default();
        let mut place_of = |stack: StackRef<'a>, site: MatchedSite, sites: &mut Vec<Difference<'a>>| {
            *known.entry(site).or_insert_with(|| {
                sites.push(Difference {
                    stack,
                    before: Held::default(),
                    after: Held::default(),
                });
                sites.len() - 1
            })
        };
        // In the order of reports, which is that of amounts, so that a site's first stack is its largest.
        for (stack, site) in builds.sites(after.report, &mut names) {
            let at = place_of(stack, site, &mut sites);
            sites[at].after.add(Held::of(stack));
        }
        for (stack, site) in builds.sites(before.report, &mut names) {
            let at = place_of(stack, site, &mut sites);
            sites[at].before.add(Held::of(stack));
        }
        sites
            .sort_by_cached_key(|site| Reverse((site.bytes(), site.blocks(), site.after.shown.amount.bytes)));
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

    /// All sites together.
    pub fn total(&self) -> (Held, Held) {
        let (mut before, mut after) = (Held::default(), Held::default());
        for site in &self.sites {
            before.add(site.before);
            after.add(site.after);
        }
        (before, after)
    }

    /// How many sites are in this state.
    pub fn count(&self, state: State) -> usize {
        self.sites.iter().filter(|site| site.state() == state).count()
    }

    /// Whether amounts of either are estimates.
    pub fn is_estimate(&self) -> bool {
        [&self.before, &self.after]
            .iter()
            .any(|side| side.report.sampling != Sampling::All)
    }
}
