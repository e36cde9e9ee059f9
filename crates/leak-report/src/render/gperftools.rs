//! gperftools' heap profile in text, with symbols: the only format that google-pprof and jeprof read. (They
//! do not read the protobuf format of `pprof`.)
//!
//! Frames are innermost first. Addresses stand for functions, not for places in a process: one report can
//! have several processes, and readers take one name for each address. Each function has two addresses, and
//! frames have the higher one: jeprof looks up a caller one byte before its address, where the call would be,
//! and google-pprof at the address itself. As in all flame graphs, only stacks that can be leaks are
//! included.

use std::collections::BTreeMap;
use std::io::{self, Write};

use indexmap::IndexSet;

use super::flame::Naming;
use crate::model::{Measure, Quantity, Report, Unit};

/// Amounts in the order of a line.
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

/// Writes `report` as one profile.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let (names, stacks) = numbered(report);
    writeln!(out, "--- symbol")?;
    if let [target] = report.targets.as_slice() {
        writeln!(out, "binary={}", one_name(&target.comm))?;
    }
    for (number, name) in names.iter().enumerate() {
        let (address, name) = (address(number), one_name(name));
        writeln!(out, "{:#x} {name}\n{address:#x} {name}", address - 1)?;
    }
    writeln!(out, "---")?;
    let mut totals = Amounts::default();
    stacks.values().for_each(|amounts| add(&mut totals, amounts));
    // With this profile type readers do not scale the amounts, which are already estimates of the total.
    writeln!(out, "heap profile: {} @ heapprofile", line(&totals))?;
    for (frames, amounts) in &stacks {
        let frames = frames.iter().map(|number| format!("{:#x}", address(*number)));
        writeln!(
            out,
            "{} @ {}",
            line(amounts),
            frames.collect::<Vec<_>>().join(" ")
        )?;
    }
    Ok(())
}

/// Higher of a function's two addresses.
fn address(number: usize) -> usize {
    2 * number + 2
}

/// Names, and the amounts of each distinct stack by the numbers of its frames; stacks without amounts
/// are omitted.
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
        let key: Vec<_> = frames.map(|frame| names.insert_full(frame.name).0).collect();
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

/// Breaks up double hyphens, which would end the name and begin that of an inlined function.
fn one_name(name: &str) -> String {
    name.replace("--", "- -")
}
