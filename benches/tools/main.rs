//! Slowdown of the same programs under memleak and under the tools that a user would pick instead. Needs
//! root.
//!
//! `cargo bench --bench tools` measures all; `-- malloc`, `-- redis`, `-- faults`, `-- clang` one kind of
//! program; `-- --quick` does less of it, `--rounds=15` more, `--tools=libmemleak,heaptrack` with some tools
//! only. `cargo test --bench tools` measures memleak alone, briefly, and says which of the other tools are
//! missing. A tool that is not there or fails is named with the reason. Fails if memleak misses or loses an
//! allocation of those that the program is known to make, or walks one of their stacks incompletely: a trace
//! that misses events is fast.
//!
//! All tools have their turn in each round, in an order that changes. A ratio is a tool's time per unit of
//! work, divided by that of the untraced program in the same round. The program has its own copy of its
//! allocator's library, so that tools that place probes in all processes disturb no other program.

#[path = "../common/mod.rs"]
mod common;
mod measure;
mod observed;
mod subject;
mod table;
mod tool;
mod tracer;

use std::io::Write;
use std::process::ExitCode;

use anyhow::ensure;
use common::{Selection, run_bench};
use measure::measure;
use memleak::bpf::preflight;
use subject::{SUBJECTS, Subject, Work, find};
use table::{Row, print};
use tool::{FAULTS, TOOLS, Tool, ToolKind, UNTRACED};

/// Extent of a measurement.
struct Plan {
    rounds: usize,
    pairs: u32,
    /// Requests of each kind.
    requests: u32,
    smoke: bool,
}

impl Plan {
    /// Returns the number of rounds with a program: differences of some per cent take more of them.
    fn rounds_of(&self, subject: &Subject) -> usize {
        match subject.part {
            FAULTS => 4 * self.rounds,
            _ => self.rounds,
        }
    }

    /// Returns the number of requests of each kind: those of a pipeline take a tenth of the time.
    fn requests_of(&self, subject: &Subject, pipeline: u32) -> u32 {
        match (subject.part, pipeline) {
            (FAULTS, 1) => 2 * self.requests,
            (FAULTS, _) => 10 * self.requests,
            _ => self.requests,
        }
    }
}

const WHOLE: Plan = Plan {
    rounds: 5,
    pairs: 200_000,
    requests: 10_000,
    smoke: false,
};
const QUICK: Plan = Plan {
    rounds: 2,
    pairs: 20_000,
    requests: 4_000,
    smoke: false,
};
const SMOKE: Plan = Plan {
    rounds: 1,
    pairs: 5_000,
    requests: 0,
    smoke: true,
};

/// Slowness from which a tool is measured in the first round only, where the work cannot be divided.
const SLOW: u32 = 4;

fn main() -> ExitCode {
    run_bench(&["malloc", "redis", FAULTS, "clang"], run)
}

fn run(selection: &Selection, out: &mut dyn Write) -> anyhow::Result<()> {
    preflight::check()?;
    let plan = match (selection.whole, selection.bench) {
        (true, _) => WHOLE,
        (false, true) => QUICK,
        (false, false) => SMOKE,
    };
    writeln!(
        out,
        "Times that the program takes, untraced = 1: median of {} rounds [least .. most]; `cpu` is the program's own CPU \
         time,\n`wall` the time from start to end, `tool` the CPU time of the tool's own process beside it.",
        selection.rounds.unwrap_or(plan.rounds)
    )?;
    let mut wrong = Vec::new();
    for subject in SUBJECTS.iter().filter(|subject| selection.selects(subject.part)) {
        if plan.smoke && !subject.in_smoke {
            continue;
        }
        writeln!(out, "\n{}", subject.title)?;
        let (programs, package) = subject.work.needs();
        if let Some(missing) = programs.iter().find(|program| find(program).is_none()) {
            writeln!(out, "  not measured: no {missing}: apt-get install {package}")?;
            continue;
        }
        let rows = measure_all(&plan, selection, subject)?;
        print(subject, &rows, out)?;
        wrong.extend(wrong_rows(subject, &rows));
        out.flush()?;
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    Ok(())
}

/// Measures a subject with all tools. Returns a row for each tool.
fn measure_all(plan: &Plan, selection: &Selection, subject: &Subject) -> anyhow::Result<Vec<Row>> {
    let is_measured = |tool: &Tool| tool.kind == ToolKind::Untraced || selection.selects_tool(tool.name);
    let tools = TOOLS
        .iter()
        .filter(|tool| tool.is_for(subject.part) && is_measured(tool));
    let mut rows: Vec<Row> = tools.map(Row::new).collect();
    let rounds = selection.rounds.unwrap_or(plan.rounds_of(subject));
    for row in &mut rows {
        row.obstacle = row.tool.obstacle(subject.work);
        if plan.smoke
            && row.obstacle.is_none()
            && !row.tool.is_memleak()
            && row.tool.name != TOOLS[UNTRACED].name
        {
            row.obstacle = Some("not part of the smoke test".to_owned());
        }
    }
    for round in 0..rounds {
        for turn in 0..rows.len() {
            let step = if round % 2 == 0 {
                turn
            } else {
                rows.len() - 1 - turn
            };
            let index = (step + round) % rows.len();
            let row = &mut rows[index];
            let once = subject.work == Work::Clang;
            if row.obstacle.is_some() || (once && round > 0 && row.tool.slowness >= SLOW) {
                continue;
            }
            let units = match subject.work {
                Work::Pairs { .. } => plan.pairs,
                Work::Redis { pipeline } => plan.requests_of(subject, pipeline),
                Work::Clang => 1,
            };
            match measure(subject.work, row.tool, (units / row.tool.slowness).max(1)) {
                Ok(measured) => row.rounds.push((round, measured)),
                Err(error) if row.tool.is_memleak() || index == UNTRACED => return Err(error),
                Err(error) => row.failures.push(format!("{error:#}")),
            }
        }
    }
    Ok(rows)
}

/// Lists the allocations and stacks that memleak should have seen in full and did not.
fn wrong_rows(subject: &Subject, rows: &[Row]) -> Vec<String> {
    let mut wrong = Vec::new();
    for row in rows.iter().filter(|row| row.tool.is_memleak()) {
        for (_, measured) in &row.rounds {
            let seen = &measured.observed;
            let in_row = |problem: String| format!("{}, {}: {problem}", row.tool.name, subject.title);
            if seen.lost != Some(0.0) {
                wrong.push(in_row(format!("{:?} allocations were lost", seen.lost)));
            }
            let Work::Pairs { .. } = subject.work else {
                continue;
            };
            let allocations = seen.allocations.unwrap_or(0.0);
            if !row.tool.samples && allocations < measured.units {
                wrong.push(in_row(format!(
                    "{allocations} of {} allocations were seen",
                    measured.units
                )));
            }
            let complete = seen.complete.unwrap_or(0.0);
            if row.tool.name.contains("dwarf") && complete < 1.0 {
                wrong.push(in_row(format!(
                    "{:.2} % of stacks are complete",
                    100.0 * complete
                )));
            }
        }
    }
    wrong
}
