//! The order of a report's stacks.

use std::cmp::Reverse;

use crate::model::leak::Order;
use crate::model::{Report, Stack};

impl Report {
    /// Puts the stacks that are first by `order` first; without one, those that hold most.
    ///
    /// What ended programs held is no longer anybody's to free, and pages that hold what is counted by itself are no leak
    /// of their own: both come last. Stacks that `order` does not tell apart stay as they are.
    pub fn sort(&mut self, order: Option<Order>) {
        let mut stacks = std::mem::take(&mut self.stacks);
        stacks.sort_by_cached_key(|stack| self.rank(stack, order.unwrap_or_default()));
        self.stacks = stacks;
        self.order = order;
    }

    /// Stacks for people: those that hold anything that is not young, in the order asked for, or else the most suspicious
    /// first.
    pub(crate) fn ranked(&self) -> Vec<&Stack> {
        let mut ranked: Vec<_> = self.holders().collect();
        if self.order.is_none() {
            ranked.sort_by_cached_key(|stack| self.rank(stack, Order::Suspicion));
        }
        ranked
    }

    fn rank(&self, stack: &Stack, order: Order) -> (bool, Reverse<[i128; 4]>) {
        let grown = match self.compared.marked {
            Some(_) => &stack.recent.since_baseline,
            None => &stack.recent.since_last,
        };
        let kernel = self.kernel.as_ref();
        let holds_others = kernel.is_some_and(|kernel| kernel.holds_others(&stack.allocator));
        let is_last = stack.ended.is_some() || holds_others;
        let key = order.key(stack.shown(), grown, stack.recent.suspicion);
        (is_last, Reverse(key))
    }
}
