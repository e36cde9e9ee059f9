//! Folded stacks: `main;caller;LeakLib::slowMemoryLeak() 480`, one line for each stack, as flame graph tools
//! read them.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::names::{FlameFrame, Naming};
use crate::model::{Quantity, Report};

/// Distinct stacks, root first unless they are reversed, with `;` between frames, each with its amount, which
/// is never 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folded(BTreeMap<String, u64>);

impl Folded {
    /// Amounts of `quantity` of the stacks of `report`; several processes have separate roots.
    pub fn of(report: &Report, quantity: Quantity) -> Self {
        Self::with(&Naming::of(report), report, quantity)
    }

    /// Amounts of `quantity` with the stacks of all processes merged, for comparison with reports of other
    /// processes.
    pub fn of_all_processes(report: &Report, quantity: Quantity) -> Self {
        Self::with(&Naming::of_one_process(report), report, quantity)
    }

    fn with(naming: &Naming, report: &Report, quantity: Quantity) -> Self {
        let mut stacks = BTreeMap::new();
        for stack in report.suspects() {
            let amount = quantity.of(stack);
            if amount > 0 {
                let sum: &mut u64 = stacks.entry(joined(&naming.frames(stack))).or_default();
                *sum = sum.saturating_add(amount);
            }
        }
        Self(stacks)
    }

    /// Sum over all stacks; saturates.
    pub fn total(&self) -> u64 {
        self.0.values().copied().fold(0, u64::saturating_add)
    }

    /// Stacks in the order of their text.
    pub fn stacks(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(stack, &amount)| (stack.as_str(), amount))
    }

    pub(super) fn into_stacks(self) -> impl Iterator<Item = (String, u64)> {
        self.0.into_iter()
    }

    /// Amount of `stack`; 0 if it is not present.
    pub fn get(&self, stack: &str) -> u64 {
        self.0.get(stack).copied().unwrap_or(0)
    }
}

fn joined(frames: &[FlameFrame]) -> String {
    let names: Vec<_> = frames.iter().map(|frame| frame.name.as_str()).collect();
    names.join(";")
}

/// Writes the folded stacks of `report`.
pub(crate) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let folded = Folded::of(report, report.quantity);
    folded
        .stacks()
        .try_for_each(|(stack, amount)| writeln!(out, "{stack} {amount}"))
}
