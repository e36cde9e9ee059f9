//! Cost of tracing for the target: nanoseconds of CPU time added to each pair of malloc and free, by depth
//! and number of its stacks, and by how they are walked; and ratios of such costs, which have limits. Needs
//! root and Linux 6.13.
//!
//! `cargo bench --bench probe_cost` measures all of it; `-- --quick` (and `cargo test --bench probe_cost`)
//! measures less of it, more coarsely, with wider limits; `-- hot` measures one load in more rounds,
//! `-- deep` deep stacks, `-- parts` the parts of a probe. All but the last fail if a ratio exceeds its
//! limit, or if a walk missed frames: a broken walk must not look fast.
//!
//! One process of `target.c` is measured in all ways in turn, in an order that changes with each round; costs
//! are differences and ratios within a round. The speed of processors changes from second to second, so pairs
//! are measured in round trips through a pipe, made before and after each fraction of a millisecond of pairs.
//! The reporting program sleeps meanwhile and adds no cost here.

mod bare;
mod parts;
mod ratios;
mod target;
mod tracings;

use std::io::Write;
use std::process::ExitCode;

use anyhow::ensure;
use memleak::bpf::preflight;

use ratios::{RATIOS, Spread, Verdict};
use target::{Build, Cost, FRAME_POINTERS, LARGE_FRAMES, Load, PLAIN, Stacks, Target};
use tracings::{Seen, Tracing};

/// Ways and loads that are compared with one another on one build of the target.
struct Comparison {
    build: Build,
    tracings: &'static [Tracing],
    loads: Vec<Load>,
}

/// Extent of a measurement.
struct Plan {
    comparisons: Vec<Comparison>,
    rounds: usize,
    pairs: u32,
    /// Factor by which a ratio may exceed its limit.
    leeway: f64,
}

impl Plan {
    fn whole() -> Self {
        use Tracing::{
            Bare, BareEntries, Dwarf, Filtered, FirstInstructions, Fp, Kernel, NoMemo, NoWalk, Plain,
            Unsampled, Untraced,
        };
        let all = [Stacks::Hot, Stacks::Varied, Stacks::Distinct].iter();
        let mut loads: Vec<_> = all
            .flat_map(|&stacks| [10, 40].map(|depth| Load::new(stacks, depth)))
            .collect();
        loads.push(Load::new(Stacks::Hot, 100));
        loads.extend([10, 40].map(|depth| Load {
            threads: 2,
            ..Load::new(Stacks::Hot, depth)
        }));
        let few = [10, 40].map(|depth| Load::new(Stacks::Hot, depth)).to_vec();
        let apart = [Stacks::Hot, Stacks::Varied, Stacks::Distinct].map(|stacks| Load::new(stacks, 40));
        Self {
            comparisons: vec![
                Comparison {
                    build: PLAIN,
                    tracings: &[Untraced, Bare, NoWalk, Dwarf, Filtered, Unsampled, BareEntries],
                    loads,
                },
                Comparison {
                    build: FRAME_POINTERS,
                    tracings: &[Untraced, NoWalk, Kernel, Fp, Dwarf],
                    loads: [few.clone(), vec![Load::new(Stacks::Varied, 40)]].concat(),
                },
                Comparison {
                    build: PLAIN,
                    tracings: &[Untraced, NoWalk, Dwarf, NoMemo, Plain],
                    loads: apart.to_vec(),
                },
                Comparison {
                    build: LARGE_FRAMES,
                    tracings: &[Untraced, NoWalk, Dwarf],
                    loads: few.clone(),
                },
                Comparison {
                    build: PLAIN,
                    tracings: &[Untraced, Dwarf, FirstInstructions],
                    loads: few[..1].to_vec(),
                },
            ],
            rounds: 9,
            pairs: 40_000,
            leeway: 1.0,
        }
    }

    /// One hot load and the ways that show the cost of tracing itself, in more rounds: to compare one build
    /// with another.
    fn hot() -> Self {
        use Tracing::{Bare, BareEntries, Dwarf, NoWalk, Untraced};
        Self {
            comparisons: vec![Comparison {
                build: PLAIN,
                tracings: &[Untraced, Bare, NoWalk, Dwarf, BareEntries],
                loads: vec![Load::new(Stacks::Hot, 10)],
            }],
            rounds: 15,
            ..Self::whole()
        }
    }

    /// Stacks too deep for the walk memo, some of them with more frames than are kept.
    fn deep() -> Self {
        use Tracing::{Dwarf, NoWalk, Untraced};
        let loads = [40, 500, 1000, 4000].map(|depth| Load::new(Stacks::Recursive, depth));
        Self {
            comparisons: vec![Comparison {
                build: PLAIN,
                tracings: &[Untraced, NoWalk, Dwarf],
                loads: loads.to_vec(),
            }],
            rounds: 5,
            pairs: 8_000,
            ..Self::whole()
        }
    }

    fn quick() -> Self {
        use Tracing::{Bare, BareEntries, Dwarf, Filtered, Fp, Kernel, NoWalk, Untraced};
        let depths = [10, 40].map(|depth| Load::new(Stacks::Hot, depth));
        Self {
            comparisons: vec![
                Comparison {
                    build: PLAIN,
                    tracings: &[Untraced, Bare, NoWalk, Dwarf, Filtered, BareEntries],
                    loads: depths.to_vec(),
                },
                Comparison {
                    build: FRAME_POINTERS,
                    tracings: &[Untraced, NoWalk, Kernel, Fp, Dwarf],
                    loads: depths.to_vec(),
                },
            ],
            rounds: 3,
            pairs: 8_000,
            leeway: 1.8,
        }
    }
}

fn main() -> ExitCode {
    // Cargo passes --bench when benchmarks are asked for, and nothing when tests are.
    let asked = |flag| std::env::args().any(|argument| argument == flag);
    if asked("parts") {
        return told(parts::run(&mut std::io::stdout().lock()));
    }
    let plan = if asked("hot") {
        Plan::hot()
    } else if asked("deep") {
        Plan::deep()
    } else if asked("--quick") || !asked("--bench") {
        Plan::quick()
    } else {
        Plan::whole()
    };
    told(run(&plan, &mut std::io::stdout().lock()))
}

/// Prints an error, if there is one, and returns the exit code.
fn told(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing more can be done if standard error is gone, too.
            _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(plan: &Plan, out: &mut dyn Write) -> anyhow::Result<()> {
    preflight::check()?;
    writeln!(
        out,
        "CPU time added to each malloc+free pair: median of {} rounds [least .. most], {} pairs each; frames per stack.",
        plan.rounds, plan.pairs
    )?;
    let mut beyond = Vec::new();
    let mut verdicts: Vec<Verdict> = Vec::new();
    for comparison in &plan.comparisons {
        writeln!(out, "\ntarget {}", comparison.build.name)?;
        let rounds = measure(plan, comparison)?;
        for (index, load) in comparison.loads.iter().enumerate() {
            print_load(*load, index, comparison.tracings, &rounds, out)?;
            // A ratio that several comparisons measure is judged in the first.
            for verdict in judge(plan, comparison, *load, index, &rounds) {
                if verdicts
                    .iter()
                    .all(|judged| judged.description != verdict.description)
                {
                    verdicts.push(verdict);
                }
            }
        }
    }
    writeln!(
        out,
        "\nratios of what is added, within each round: median [least .. most]"
    )?;
    for verdict in verdicts {
        writeln!(out, "{verdict}")?;
        if verdict.is_beyond() {
            beyond.push(verdict.to_string());
        }
    }
    ensure!(
        beyond.is_empty(),
        "beyond the limit (with a leeway of {}):\n{}",
        plan.leeway,
        beyond.join("\n")
    );
    Ok(())
}

/// Measurements of one round, by way, then by load.
type Round = Vec<Vec<(Cost, Seen)>>;

fn measure(plan: &Plan, comparison: &Comparison) -> anyhow::Result<Vec<Round>> {
    let Comparison {
        build,
        tracings,
        loads,
    } = comparison;
    let program = target::compile(build)?;
    let mut rounds = Vec::new();
    for number in 0..plan.rounds {
        let mut target = Target::start(&program)?;
        let mut round: Round = tracings.iter().map(|_| Vec::new()).collect();
        for turn in 0..tracings.len() {
            let tracing = (number + turn) % tracings.len();
            round[tracing] = tracings::measure(tracings[tracing], build, &mut target, loads, plan.pairs)?;
        }
        rounds.push(round);
    }
    Ok(rounds)
}

/// Returns the cost that a way added to a load in a round, in round trips: its own less that of the first
/// way.
fn added(round: &Round, tracing: usize, load: usize) -> f64 {
    round[tracing][load].0.round_trips - round[0][load].0.round_trips
}

/// Returns the duration of a round trip in nanoseconds, which converts costs: the median of all rounds.
fn reference(rounds: &[Round]) -> f64 {
    let all = rounds.iter().flatten().flatten();
    Spread::of(all.map(|(cost, _)| cost.reference).collect()).median()
}

/// Prints the results of one load over all rounds, by way.
fn print_load(
    load: Load,
    index: usize,
    tracings: &[Tracing],
    rounds: &[Round],
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let reference = reference(rounds);
    let over_rounds = |value: &dyn Fn(&Round) -> f64| {
        Spread::of(rounds.iter().map(|round| value(round) * reference).collect())
    };
    for (number, tracing) in tracings.iter().enumerate() {
        if *tracing == Tracing::Untraced {
            let alone = over_rounds(&|round| round[number][index].0.round_trips);
            writeln!(
                out,
                "  {:<20} {:<20} {alone:.0} ns",
                load.to_string(),
                tracing.name()
            )?;
            continue;
        }
        let cost = over_rounds(&|round| added(round, number, index));
        let frames = rounds
            .last()
            .map_or(0.0, |round| round[number][index].1.frames_per_stack());
        writeln!(
            out,
            "  {:<20} {:<20} {cost:.0} ns {frames:6.1} frames",
            "",
            tracing.name()
        )?;
    }
    Ok(())
}

/// Judges the ratios of one load that have a limit.
fn judge(plan: &Plan, comparison: &Comparison, load: Load, index: usize, rounds: &[Round]) -> Vec<Verdict> {
    let position = |tracing| {
        comparison
            .tracings
            .iter()
            .position(|&candidate| candidate == tracing)
    };
    let mut verdicts = Vec::new();
    for ratio in RATIOS {
        let (Some(over), Some(under)) = (position(ratio.over), position(ratio.under)) else {
            continue;
        };
        if ratio.build != comparison.build.name || load != Load::new(ratio.stacks, ratio.depth) {
            continue;
        }
        let values = rounds
            .iter()
            .map(|round| added(round, over, index) / added(round, under, index));
        verdicts.push(ratio.judge(Spread::of(values.collect()), plan.leeway));
    }
    verdicts
}
