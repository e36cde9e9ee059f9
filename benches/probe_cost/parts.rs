//! Cost of the parts that a probe is made of: `cargo bench --bench probe_cost -- parts`.
//!
//! Each part runs [`REPEATS`] times in the program at `free`, beside an empty one at `malloc` (`is_return`:
//! the other way round). The time that a pair takes more than with empty programs, divided by [`REPEATS`], is
//! the part's cost.

use std::io::Write;

use crate::bare::Bare;
use crate::ratios::Spread;
use crate::target::{self, Load, PLAIN, Stacks, Target};

/// Number of times that a program runs its part: `REPEATS` of `parts.bpf.c`.
const REPEATS: f64 = 32.0;
const ROUNDS: usize = 11;
const PAIRS: u32 = 20_000;

/// Programs of `parts.bpf.c`, the empty one first.
const PARTS: [&str; 18] = [
    "nothing",
    "cookie",
    "current_task",
    "pid_tgid",
    "cpu",
    "task_storage",
    "ktime",
    "jiffies",
    "hash_lookup",
    "array_lookup",
    "percpu_lookup",
    "add",
    "atomic_add",
    "exchange_if",
    "call",
    "read_8",
    "read_256",
    "is_return",
];

pub(crate) fn run(out: &mut dyn Write) -> anyhow::Result<()> {
    let program = target::compile(&PLAIN)?;
    let load = Load::new(Stacks::Hot, 10);
    let mut rounds = Vec::new();
    let mut references = Vec::new();
    for number in 0..ROUNDS {
        let mut target = Target::start(&program)?;
        let mut round = [0.0; PARTS.len()];
        for turn in 0..PARTS.len() {
            let part = (number + turn) % PARTS.len();
            let name = format!("part_{}", PARTS[part]);
            let is_session = PARTS[part] == "is_return";
            let (entry, release) = if is_session {
                (name.as_str(), "part_nothing")
            } else {
                ("part_entry", name.as_str())
            };
            let _attached = Bare::attach_programs(target.pid(), "parts", entry, release)?;
            target.ask(load, 2_000)?;
            let cost = target.ask(load, PAIRS)?;
            round[part] = cost.round_trips;
            references.push(cost.reference);
        }
        rounds.push(round);
    }
    let reference = Spread::of(references).median();
    writeln!(out, "ns of each part: median of {ROUNDS} rounds [least .. most]")?;
    for (part, name) in PARTS.iter().enumerate().skip(1) {
        let costs = rounds
            .iter()
            .map(|round| (round[part] - round[0]) * reference / REPEATS);
        writeln!(out, "  {name:<16} {:.1}", Spread::of(costs.collect()))?;
    }
    Ok(())
}
