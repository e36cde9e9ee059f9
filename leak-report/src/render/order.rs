//! The order of a report's stacks.

use std::cmp::Reverse;

use crate::model::leak::Order;
use crate::model::{Report, StackRef};

impl Report {
    /// Sorts the stacks by `order`, by default with the largest outstanding amounts first.
    ///
    /// Blocks of ended programs can no longer be freed, and pages that contain separately counted blocks are not leaks of
    /// their own: both come last. The sort is stable.
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

    /// Stacks for people: those that hold blocks that are not young, in the requested order, or the most suspicious
    /// first.
    pub fn ranked(&self) -> Vec<StackRef<'_>> {
        let mut ranked: Vec<_> = self.outstanding_suspects().collect();
        if self.order.is_none() {
            ranked.sort_by_cached_key(|&stack| rank(stack, Order::Suspicion));
        }
        ranked
    }
}

fn rank(stack: StackRef<'_>, order: Order) -> (bool, Reverse<[i128; 4]>) {
    let grown = match stack.report().compared.marked {
        Some(_) => &stack.recent.since_baseline,
        None => &stack.recent.since_last,
    };
    let is_last = stack.ended.is_some() || stack.holds_others();
    let key = order.key(stack.shown(), grown, stack.recent.suspicion);
    (is_last, Reverse(key))
}
