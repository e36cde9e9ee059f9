//! Speedscope's file format (<https://github.com/jlfwong/speedscope/wiki/Importing-from-custom-sources>): one
//! weighted profile for each quantity, all over the same stacks and frames.

use std::collections::BTreeMap;
use std::io::{self, Write};

use indexmap::IndexSet;
use serde::Serialize;

use super::flame::{self, Caption, FlameFrame, Naming};
use crate::model::{Measure, Quantity, Report, Unit};

/// Additional quantity of reports with a verdict.
const LOST: Quantity = Quantity {
    measure: Measure::DefinitelyLost,
    unit: Unit::Bytes,
};

/// Additional quantity of reports that say what blocks pin.
const PINNED: Quantity = Quantity {
    measure: Measure::Pinned,
    unit: Unit::Bytes,
};

/// Quantities that are always included; the report's own is added last if it is another.
const QUANTITIES: [Quantity; 3] = [
    Quantity {
        measure: Measure::Outstanding,
        unit: Unit::Bytes,
    },
    Quantity {
        measure: Measure::Outstanding,
        unit: Unit::Blocks,
    },
    Quantity {
        measure: Measure::Allocated,
        unit: Unit::Bytes,
    },
];

#[derive(Serialize)]
struct FileJson<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    name: String,
    exporter: &'static str,
    #[serde(rename = "activeProfileIndex")]
    active: usize,
    shared: SharedJson<'a>,
    profiles: Vec<ProfileJson<'a>>,
}

#[derive(Serialize)]
struct SharedJson<'a> {
    frames: Vec<FrameJson<'a>>,
}

#[derive(Serialize)]
struct FrameJson<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
}

/// `weights[i]` is the weight of `samples[i]`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProfileJson<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    /// Frame indices, from the root on.
    samples: Vec<&'a [usize]>,
    weights: Vec<u64>,
}

/// Writes `report` as one file.
pub(super) fn render(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let mut quantities = QUANTITIES.to_vec();
    quantities.extend(report.judgement.as_ref().map(|_| LOST));
    quantities.extend(report.pinned().map(|_| PINNED));
    let shown = report.quantity;
    let active = quantities.iter().position(|&quantity| quantity == shown);
    let active = active.unwrap_or_else(|| {
        quantities.push(shown);
        quantities.len() - 1
    });
    let stacks = Stacks::of(report, &quantities);
    let profiles = quantities.iter().enumerate();
    let profiles = profiles
        .map(|(index, &quantity)| stacks.profile(flame::name(report, quantity), quantity.unit, index));
    let file = FileJson {
        schema: "https://www.speedscope.app/file-format-schema.json",
        name: Caption::of(report, shown).title,
        exporter: concat!("memleak@", env!("CARGO_PKG_VERSION")),
        active,
        shared: SharedJson {
            frames: stacks.frames.iter().map(FrameJson::from).collect(),
        },
        profiles: profiles.collect(),
    };
    super::json::write(&file, out)?;
    writeln!(out)
}

/// Distinct stacks, in the order of their frames, so that neighbours share their outer frames.
struct Stacks {
    frames: Vec<FlameFrame>,
    /// Amount of each quantity, by the stack's frame indices.
    amounts: BTreeMap<Vec<usize>, Vec<u64>>,
}

impl Stacks {
    fn of(report: &Report, quantities: &[Quantity]) -> Self {
        let naming = Naming::of(report);
        let mut numbered = IndexSet::new();
        let mut amounts = BTreeMap::new();
        for stack in report.suspects() {
            let frames = naming.frames(stack).into_iter();
            let key: Vec<_> = frames.map(|frame| numbered.insert_full(frame).0).collect();
            let sums = amounts
                .entry(key)
                .or_insert_with(|| vec![0_u64; quantities.len()]);
            for (sum, quantity) in sums.iter_mut().zip(quantities) {
                *sum = sum.saturating_add(quantity.of(stack));
            }
        }
        Self {
            frames: numbered.into_iter().collect(),
            amounts,
        }
    }

    /// The profile of the quantity with this index.
    fn profile(&self, name: String, unit: Unit, quantity: usize) -> ProfileJson<'_> {
        let weighted = self
            .amounts
            .iter()
            .map(|(stack, amounts)| (stack.as_slice(), amounts[quantity]));
        let (samples, weights): (Vec<_>, Vec<_>) = weighted.filter(|&(_, amount)| amount > 0).unzip();
        ProfileJson {
            kind: "sampled",
            name,
            unit: match unit {
                Unit::Bytes => "bytes",
                Unit::Blocks => "none",
            },
            start_value: 0,
            end_value: weights.iter().copied().fold(0, u64::saturating_add),
            samples,
            weights,
        }
    }
}

impl<'a> From<&'a FlameFrame> for FrameJson<'a> {
    fn from(frame: &'a FlameFrame) -> Self {
        Self {
            name: &frame.name,
            file: frame.file.as_deref(),
        }
    }
}
