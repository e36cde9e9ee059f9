//! gperftools' heap profile in text, with names: what google-pprof and jeprof read, which know nothing of pprof's own format.
//!
//! Innermost frames first. Addresses stand for functions here, not for places in a process: those of several processes
//! can be in one report, and readers take a name for each address. As in all flame graphs, what can be a leak.

use std::collections::BTreeMap;
use std::io::{self, Write};

use indexmap::IndexSet;

use super::flame::Naming;
use crate::model::{Measure, Quantity, Report, Unit};

/// In the order of a line.
const QUANTITIES: [Quantity; 4] = [
    quantity(Measure::Outstanding, Unit::Blocks),
    quantity(Measure::Outstanding, Unit::Bytes),
    quantity(Measure::Allocated, Unit::Blocks),
    quantity(Measure::Allocated, Unit::Bytes),
];

const fn quantity(measure: Measure, unit: Unit) -> Quantity {
    Quantity { measure, unit }
}

type Amounts = [u64; QUANTITIES.len()];

/// Writes `report`.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let (names, stacks) = numbered(report);
    writeln!(out, "--- symbol")?;
    if let [target] = report.targets.as_slice() {
        writeln!(out, "binary={}", one_name(&target.comm))?;
    }
    for (number, name) in (1..).zip(&names) {
        writeln!(out, "{number:#x} {}", one_name(name))?;
    }
    writeln!(out, "---")?;
    let mut totals = Amounts::default();
    stacks.values().for_each(|amounts| add(&mut totals, amounts));
    // By this type readers know that nothing is left to be scaled: amounts are estimates of all already.
    writeln!(out, "heap profile: {} @ heapprofile", line(&totals))?;
    for (frames, amounts) in &stacks {
        let numbers: Vec<_> = frames.iter().map(|number| format!("{number:#x}")).collect();
        writeln!(out, "{} @ {}", line(amounts), numbers.join(" "))?;
    }
    Ok(())
}

/// All names, numbered from 1, and equal stacks as one by the numbers of their frames: those that have something.
fn numbered(report: &Report) -> (Vec<String>, BTreeMap<Vec<usize>, Amounts>) {
    let naming = Naming::exact(report);
    let mut names = IndexSet::new();
    let mut stacks = BTreeMap::new();
    for stack in report.suspects() {
        let amounts = QUANTITIES.map(|quantity| quantity.of(stack));
        if amounts == Amounts::default() {
            continue;
        }
        let frames = naming.frames(stack).into_iter().rev();
        let key: Vec<_> = frames.map(|frame| names.insert_full(frame.name).0 + 1).collect();
        add(stacks.entry(key).or_default(), &amounts);
    }
    (names.into_iter().collect(), stacks)
}

fn add(sums: &mut Amounts, amounts: &Amounts) {
    for (sum, amount) in sums.iter_mut().zip(amounts) {
        *sum = sum.saturating_add(*amount);
    }
}

fn line([blocks, bytes, all_blocks, all_bytes]: &Amounts) -> String {
    format!("{blocks}: {bytes} [{all_blocks}: {all_bytes}]")
}

/// Two hyphens would end the name, and begin that of a function inlined into it.
fn one_name(name: &str) -> String {
    name.replace("--", "- -")
}
