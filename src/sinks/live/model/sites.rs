//! Selection, order and filter of the listed sites.

use std::cmp::Reverse;

use super::Model;
use crate::sinks::live::sample::{NetGrowth, Order, Sample, Site};
use leak_report::model::{FrameRef, ModuleRef};

impl Model {
    /// Lists the sites again. The selected site stays selected; if it is gone, the one in its row is
    /// selected.
    pub(in crate::sinks::live) fn list(&mut self) {
        let Some(sample) = self.sample() else {
            return self.changed();
        };
        let (order, unit) = (self.order(), self.unit());
        let wanted = self.shell.filter().to_lowercase();
        let mut listed: Vec<_> = (0..sample.sites.len())
            .filter(|&at| is_listed(&sample.sites[at], order) && matches(&sample.sites[at], sample, &wanted))
            .collect();
        listed.sort_by_cached_key(|&at| Reverse(sample.sites[at].rank(order, unit)));
        let is_selected = |&at: &usize| Some(sample.sites[at].key) == self.selected;
        let place = match self.selected {
            None => 0,
            Some(_) => listed.iter().position(is_selected).unwrap_or(self.row),
        };
        let row = place.min(listed.len().saturating_sub(1));
        let selected = listed.get(row).map(|&at| sample.sites[at].key);
        (self.listed, self.row) = (listed, row);
        self.selected = self.selected.and(selected);
        self.changed();
    }

    /// Selects the site in this row, or the last.
    pub(super) fn select(&mut self, row: usize) {
        self.row = row.min(self.listed.len().saturating_sub(1));
        let key = self.selected().map(|site| site.key);
        // In the first row, no site is selected: whatever is first stays highlighted.
        self.selected = key.filter(|_| self.row > 0);
        self.scrolled = (0, 0);
        self.changed();
    }

    /// Counts the sites that the filter, the order and the sample's limit leave out.
    pub(in crate::sinks::live) fn left_out(&self) -> LeftOut {
        let Some(sample) = self.sample() else {
            return LeftOut::default();
        };
        let listed = |site: &&Site| is_listed(site, self.order());
        let of_order = sample.sites.iter().filter(listed).count();
        LeftOut {
            filtered: of_order.saturating_sub(self.listed.len()),
            unlisted: sample.unlisted,
        }
    }
}

/// Numbers of sites that are not shown, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sinks::live) struct LeftOut {
    /// Sites that the filter excludes.
    pub(in crate::sinks::live) filtered: usize,
    /// Sites that the sample does not keep, as they are among the first in none of the orders.
    pub(in crate::sinks::live) unlisted: u64,
}

/// Returns whether a site has anything of the quantity that it is ordered by.
fn is_listed(site: &Site, order: Order) -> bool {
    match order {
        Order::Suspicion | Order::Outstanding | Order::Blocks => site.shown.blocks > 0,
        Order::Growth => site.shown.blocks > 0 || site.growth != NetGrowth::default(),
        Order::Allocated => true,
    }
}

/// Returns whether the site or a frame of its stack matches a filter.
fn matches(site: &Site, sample: &Sample, wanted: &str) -> bool {
    let holds = |text: &str| text.to_lowercase().contains(wanted);
    wanted.is_empty()
        || holds(&site.name)
        || holds(&site.allocator)
        || site.pid.to_string() == wanted
        || site.end.name() == wanted
        || sample
            .dictionary
            .frames(site.path)
            .any(|frame| frame_matches(frame, holds))
}

fn frame_matches(frame: FrameRef<'_>, holds: impl Fn(&str) -> bool) -> bool {
    let inlined = frame.inlined().map(|inlined| inlined.symbol);
    let names = inlined.chain([
        frame.function(),
        frame.module().map(ModuleRef::path),
        frame.file(),
    ]);
    names.flatten().any(holds)
}
