//! The order of a report's stacks.

use std::cmp::Reverse;

use crate::model::leak::Order;
use crate::model::{Report, StackRef};

impl Report {
    /// Sorts the stacks by `order`, by default with the largest outstanding amounts first.
    ///
    /// Blocks of ended programs can no longer be freed, and pages that contain separately counted blocks are
    /// not leaks of their own: both come last. In the order of the peak, ended programs rank like running
    /// ones. The sort is stable.
    pub fn sort(&mut self, order: Option<Order>) {
        let ranks = self.stacks().map(|stack| rank(stack, order.unwrap_or_default()));
        let mut ranked: Vec<_> = ranks.zip(0..).collect();
        ranked.sort();
        let mut stacks: Vec<_> = std::mem::take(&mut self.stacks).into_iter().map(Some).collect();
        let in_order = ranked
            .into_iter()
            .filter_map(|(_, at): (_, usize)| stacks.get_mut(at)?.take());
        self.stacks = in_order.collect();
        self.order = order;
    }

    /// Stacks for people: those with blocks that are not young, or with lost blocks; in the order of the
    /// peak, also those with blocks at the peak, and in the order of what is pinned, those that pin. They are
    /// in the requested order; without one, stacks that lost most come first, then the most suspicious.
    pub fn ranked(&self) -> Vec<StackRef<'_>> {
        let by_peak = self.order == Some(Order::Peak);
        let by_pinned = self.order == Some(Order::Pinned);
        let is_shown = |stack: &StackRef<'_>| {
            let has_most = by_peak && stack.peak.blocks > 0 || by_pinned && stack.pins().amount.blocks > 0;
            stack.shown().blocks > 0 || stack.judged().has_lost() || has_most
        };
        let mut ranked: Vec<_> = self.suspects().filter(is_shown).collect();
        if self.order.is_none() {
            let lost = |stack: StackRef<'_>| Reverse(stack.judged().rank());
            ranked.sort_by_cached_key(|&stack| (lost(stack), rank(stack, Order::Suspicion)));
        }
        ranked
    }
}

fn rank(stack: StackRef<'_>, order: Order) -> (bool, Reverse<[i128; 4]>) {
    let grown = match stack.report().compared.marked {
        Some(_) => &stack.recent.since_baseline,
        None => &stack.recent.since_last,
    };
    let has_ended = stack.ended.is_some() && order != Order::Peak;
    let is_last = has_ended || stack.holds_others();
    let key = order.key(
        [stack.shown(), stack.peak, stack.pins().amount],
        grown,
        stack.recent.suspicion,
    );
    (is_last, Reverse(key))
}
