//! Growth of the cost of tracing with the number of live blocks, distinct stacks and threads: it must stay
//! nearly the same. Needs root.
//!
//! `cargo bench --bench scaling` measures all axes, `-- resting`, `-- live`, `-- stacks` or `-- threads` one;
//! it fails if tracing adds more than [`LIMIT`] times as much to a pair of malloc and free as at the first
//! point of the axis. `-- --quick` measures one point of each axis coarsely, `cargo test --bench scaling` one
//! point of one axis; both check only that all pairs were recorded, with complete stacks, and that nothing
//! was lost.
//!
//! A cost is CPU time that tracing adds: that of a traced process less that of an untraced one at the same
//! point, within one round. Each point is measured in three processes (untraced, probes without a walk,
//! `--unwind dwarf`) that live as long as the axis is measured, each with its own copy of the C library, so
//! that each runs into its own probes only. All are asked in turn, in an order that changes with each round.

#[path = "../common/mod.rs"]
mod common;
mod point;
mod station;

use std::io::Write;
use std::process::ExitCode;

use anyhow::ensure;
use common::{Selection, Spread, run_bench};
use memleak::bpf::preflight;
use point::{AXES, Axis, Point};
use station::{Station, TRACINGS, UNTRACED};

/// Upper limit of the cost at any point of an axis, as a multiple of the cost at the first.
const LIMIT: f64 = 1.3;

/// Extent of a measurement.
struct Plan {
    whole: bool,
    rounds: usize,
    pairs: u32,
}

const WHOLE: Plan = Plan {
    whole: true,
    rounds: 9,
    pairs: 200_000,
};
const QUICK: Plan = Plan {
    whole: false,
    rounds: 3,
    pairs: 5_000,
};
/// The only axis under `cargo test`, where most of the time goes into attaching.
const SMOKE_AXIS: &str = "live";

fn main() -> ExitCode {
    run_bench(&AXES.map(|axis| axis.name), run)
}

fn run(selection: &Selection, out: &mut dyn Write) -> anyhow::Result<()> {
    preflight::check()?;
    let plan = if selection.whole { WHOLE } else { QUICK };
    writeln!(
        out,
        "CPU time added to each malloc+free pair: median of {} rounds [least .. most], {} pairs each;\n\
         how many times that of the axis's first point.",
        plan.rounds, plan.pairs
    )?;
    let mut steep = Vec::new();
    for axis in AXES.iter().filter(|axis| selection.selects(axis.name)) {
        if !selection.bench && axis.name != SMOKE_AXIS {
            continue;
        }
        writeln!(out, "\n{}", axis.title)?;
        steep.extend(measure_axis(&plan, axis, out)?);
    }
    ensure!(
        steep.is_empty() || !plan.whole,
        "a pair costs more than {LIMIT} times what it does at the first point: {}",
        steep.join(", ")
    );
    Ok(())
}

/// Nanoseconds per pair, by point, then by tracing.
type Round = Vec<Vec<f64>>;

/// Measures and prints an axis. Returns its points that are over [`LIMIT`].
fn measure_axis(plan: &Plan, axis: &Axis, out: &mut dyn Write) -> anyhow::Result<Vec<String>> {
    let points: Vec<Point> = axis.points(plan.whole);
    let rounds = measure(plan, &points)?;
    let mut steep = Vec::new();
    for (number, point) in points.iter().enumerate() {
        let alone = Spread::of(rounds.iter().map(|round| round[number][UNTRACED]));
        writeln!(out, "  {:>9} {:<17}{alone:8.0} ns", point.to_string(), "untraced")?;
        for (way, tracing) in TRACINGS.iter().enumerate().filter(|&(way, _)| way != UNTRACED) {
            let added = |round: &Round, point: usize| round[point][way] - round[point][UNTRACED];
            let cost = Spread::of(rounds.iter().map(|round| added(round, number)));
            let ratio = Spread::of(rounds.iter().map(|round| added(round, number) / added(round, 0)));
            writeln!(
                out,
                "  {:>9} {:<17}{cost:8.0} ns {ratio:6.2} times",
                "", tracing.name
            )?;
            if tracing.limited && ratio.median > LIMIT {
                steep.push(format!("{:.2} times at {point} {}", ratio.median, axis.title));
            }
        }
        out.flush()?;
    }
    Ok(steep)
}

fn measure(plan: &Plan, points: &[Point]) -> anyhow::Result<Vec<Round>> {
    let mut stations = Vec::new();
    for (number, point) in points.iter().enumerate() {
        for (way, tracing) in TRACINGS.iter().enumerate() {
            let name = format!("{number}-{way}");
            stations.push(Station::start(&name, point, tracing)?);
        }
    }
    let mut rounds = Vec::new();
    for number in 0..plan.rounds {
        let mut round: Round = vec![vec![0.0; TRACINGS.len()]; points.len()];
        for turn in 0..stations.len() {
            // Vary which station comes first in a round, and which follows which.
            let step = if number % 2 == 0 {
                turn
            } else {
                stations.len() - 1 - turn
            };
            let index = (step + number * TRACINGS.len()) % stations.len();
            let (point, way) = (index / TRACINGS.len(), index % TRACINGS.len());
            round[point][way] = stations[index].measure(&points[point], plan.pairs)?;
        }
        rounds.push(round);
    }
    Ok(rounds)
}
