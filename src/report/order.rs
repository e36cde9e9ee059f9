//! The order of a report's stacks.

use std::cmp::Reverse;

use super::Report;
use crate::leak::Order;

impl Report {
    /// Puts the stacks that are first by `order` first.
    ///
    /// What ended programs held is no longer anybody's to free, and pages that hold what is counted by itself are no leak
    /// of their own: both come last. Stacks that `order` does not tell apart stay as they are.
    pub fn sort(&mut self, order: Order) {
        let Self {
            stacks,
            kernel,
            compared,
            ..
        } = self;
        stacks.sort_by_cached_key(|stack| {
            let grown = match compared.marked {
                Some(_) => &stack.recent.since_baseline,
                None => &stack.recent.since_last,
            };
            let holds_others = kernel
                .as_ref()
                .is_some_and(|kernel| kernel.holds_others(&stack.allocator));
            let is_last = stack.ended.is_some() || holds_others;
            (is_last, Reverse(order.key(stack.shown(), grown)))
        });
    }
}
