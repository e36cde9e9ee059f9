//! Quantities of stacks.

use super::{Change, Measure, Quantity, Spread, StackRef, Unit};

impl Quantity {
    /// Value for a stack; not below zero.
    pub fn of(self, stack: StackRef<'_>) -> u64 {
        let Self { measure, unit } = self;
        match (measure, unit) {
            (Measure::Outstanding, _) => unit.of(stack.shown()),
            (Measure::Allocated, _) => unit.of(stack.allocated.amount),
            (Measure::Growth, Unit::Bytes) => positive(stack.growth().net_bytes()),
            (Measure::Growth, Unit::Blocks) => positive(stack.growth().net_blocks()),
            (Measure::Peak, _) => unit.of(stack.peak),
            (Measure::DefinitelyLost, _) => unit.of(stack.judged().definitely_lost),
            (Measure::Pinned, _) => unit.of(stack.pins().amount),
        }
    }

    /// Variance of the value for a stack; zero if it is exact.
    pub fn spread_of(self, stack: StackRef<'_>) -> Spread {
        match self.measure {
            Measure::Outstanding => stack.shown_estimate().spread,
            Measure::Allocated => stack.allocated.spread,
            Measure::Growth => stack.growth().net_spread(),
            // Not stored: it would double the memory that each stack's peak takes.
            Measure::Peak => Spread::default(),
            Measure::DefinitelyLost => stack.definitely_lost().spread,
            Measure::Pinned => stack.pins().spread,
        }
    }
}

fn positive(net: i64) -> u64 {
    u64::try_from(net).unwrap_or(0)
}

impl StackRef<'_> {
    /// Net growth (allocated - freed) since the mark, or without one since the last report.
    fn growth(&self) -> &Change {
        match self.report().compared.marked {
            Some(_) => &self.recent.since_baseline,
            None => &self.recent.since_last,
        }
    }
}
