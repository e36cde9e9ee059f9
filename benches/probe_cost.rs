//! What tracing costs the target: nanoseconds added to each pair of malloc and free, by depth of the stack and
//! by how it is walked. Needs root.
//!
//! `cargo bench --bench probe_cost` measures all of it; `-- --quick` (and `cargo test --bench probe_cost`) less
//! of it, more coarsely. Both fail if the cost with `--unwind dwarf` is over [`LIMIT`] times that of probes
//! that do not walk, or if a walk did not find the frames that are there: a broken walk must not look fast.
//!
//! One process of `probe_target.c` is measured in all ways in turn, in an order that changes with each round;
//! costs are differences within a round. The program that reports, which sleeps meanwhile, costs nothing here.

use std::fmt;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use memleak::allocator::Selection;
use memleak::bpf::{AttachPath, Sampling, Walk};
use memleak::collect::Snapshot;
use memleak::config::{Config, View};
use memleak::preflight;
use memleak::report::Format;
use memleak::session::{Session, storages};
use unwind_tables::walk::End;

/// The most that walking may cost, as a multiple of the same probes without it, at [`LIMIT_DEPTH`].
const LIMIT: f64 = 2.0;
const LIMIT_DEPTH: u32 = 10;

/// Ways to trace; the first is what costs are added to, the second what they are compared with.
const TRACINGS: [Tracing; 4] = [
    Tracing {
        name: "untraced",
        walk: None,
    },
    Tracing {
        name: "probes, no walk",
        walk: Some(Walk::Off),
    },
    Tracing {
        name: "--unwind fp",
        walk: Some(Walk::Fp),
    },
    Tracing {
        name: "--unwind dwarf",
        walk: Some(Walk::Dwarf),
    },
];
const UNTRACED: usize = 0;
const NO_WALK: usize = 1;

struct Tracing {
    name: &'static str,
    walk: Option<Walk>,
}

/// Builds of the target.
const BUILDS: [Build; 2] = [
    Build {
        name: "without frame pointers",
        flag: "-fomit-frame-pointer",
        frame_pointers: false,
    },
    Build {
        name: "with frame pointers",
        flag: "-fno-omit-frame-pointer",
        frame_pointers: true,
    },
];

#[derive(Clone, Copy)]
struct Build {
    name: &'static str,
    flag: &'static str,
    frame_pointers: bool,
}

/// What the target is asked to do.
#[derive(Clone, Copy)]
struct Load {
    mode: &'static str,
    depth: u32,
}

impl Load {
    /// Frames of its shallowest stack.
    fn least_frames(self) -> u32 {
        if self.mode == "hot" {
            self.depth
        } else {
            self.depth - 3
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.mode, self.depth)
    }
}

/// How much is measured.
struct Plan {
    builds: &'static [Build],
    depths: &'static [u32],
    rounds: usize,
    pairs: u32,
}

const WHOLE: Plan = Plan {
    builds: &BUILDS,
    depths: &[10, 40, 100],
    rounds: 9,
    pairs: 100_000,
};
const QUICK: Plan = Plan {
    builds: &[BUILDS[0]],
    depths: &[10, 40],
    rounds: 5,
    pairs: 20_000,
};

impl Plan {
    fn loads(&self) -> Vec<Load> {
        let load = |mode| move |&depth| Load { mode, depth };
        let modes = ["hot", "varied"].into_iter();
        modes
            .flat_map(|mode| self.depths.iter().map(load(mode)))
            .collect()
    }
}

fn main() -> ExitCode {
    // Cargo passes --bench when benchmarks are asked for, and nothing when tests are.
    let asked = |flag| std::env::args().any(|argument| argument == flag);
    let plan = if asked("--quick") || !asked("--bench") {
        QUICK
    } else {
        WHOLE
    };
    match run(&plan, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to tell if standard error is gone too.
            _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(plan: &Plan, out: &mut dyn Write) -> anyhow::Result<()> {
    preflight::check()?;
    writeln!(
        out,
        "CPU time added to each malloc+free pair: median of {} rounds [least .. most], {} pairs each;\n\
         how many times that of probes without a walk; frames per stack and allocations with a complete one.",
        plan.rounds, plan.pairs
    )?;
    let loads = plan.loads();
    let mut over = Vec::new();
    for build in plan.builds {
        writeln!(out, "\ntarget {}", build.name)?;
        let rounds = measure(plan, build, &loads)?;
        for (index, &load) in loads.iter().enumerate() {
            let table: Vec<_> = rounds
                .iter()
                .map(|round| round.iter().map(|row| &row[index]).collect())
                .collect();
            let dwarf = print_load(load, &table, out)?;
            if load.depth == LIMIT_DEPTH && dwarf > LIMIT {
                over.push(format!("{dwarf:.2} times at {load} {}", build.name));
            }
        }
    }
    ensure!(
        over.is_empty(),
        "--unwind dwarf costs more than {LIMIT} times what probes alone do: {}",
        over.join(", ")
    );
    Ok(())
}

/// One load measured in one way.
struct Sample {
    nanoseconds: f64,
    seen: Seen,
}

/// By tracing, then by load.
type Round = Vec<Vec<Sample>>;

fn measure(plan: &Plan, build: &Build, loads: &[Load]) -> anyhow::Result<Vec<Round>> {
    let program = compile(build)?;
    let mut rounds = Vec::new();
    for number in 0..plan.rounds {
        let mut target = Target::start(&program)?;
        let mut round: Round = TRACINGS.iter().map(|_| Vec::new()).collect();
        for turn in 0..TRACINGS.len() {
            let way = (number + turn) % TRACINGS.len();
            round[way] = measure_tracing(&TRACINGS[way], build, &mut target, loads, plan.pairs)?;
        }
        rounds.push(round);
    }
    Ok(rounds)
}

fn measure_tracing(
    tracing: &Tracing,
    build: &Build,
    target: &mut Target,
    loads: &[Load],
    pairs: u32,
) -> anyhow::Result<Vec<Sample>> {
    let mut storages = storages();
    let session = match tracing.walk {
        None => None,
        Some(walk) => Some(Session::start(&mut storages, &config(target.child.id(), walk))?),
    };
    let snapshot = || {
        session
            .as_ref()
            .map_or(Ok(Snapshot::default()), Session::snapshot)
    };
    let mut samples = Vec::new();
    for &load in loads {
        // New stacks, pages and caches are not what each pair costs.
        target.ask(load, pairs / 10)?;
        let before = Seen::of(&snapshot()?);
        let nanoseconds = target.ask(load, pairs)?;
        let seen = Seen::of(&snapshot()?).since(&before);
        if let Some(walk) = tracing.walk {
            seen.check(walk, build, load, pairs)
                .with_context(|| format!("{load} {}", build.name))?;
        }
        samples.push(Sample { nanoseconds, seen });
    }
    Ok(samples)
}

fn config(pid: u32, walk: Walk) -> Config {
    Config {
        kernel: None,
        pids: vec![pid],
        program: Vec::new(),
        allocators: Selection::default(),
        follow_fork: false,
        mmap: false,
        table_memory: None,
        walk,
        format: Format::Text,
        top: 0,
        view: View::default(),
        sampling: Sampling::All,
        max_overhead: None,
        sizes: None,
        max_blocks: Some(1 << 20),
        max_stacks: 1 << 16,
        attach: AttachPath::ALL.to_vec(),
        interval: Duration::from_secs(1),
        count: None,
    }
}

/// What a trace recorded of a load.
#[derive(Clone, Copy)]
struct Seen {
    allocations: u64,
    frames: u64,
    complete: u64,
    lost: u64,
}

impl Seen {
    fn of(snapshot: &Snapshot) -> Self {
        let mut seen = Self {
            allocations: 0,
            frames: 0,
            complete: 0,
            lost: snapshot.losses.blocks,
        };
        for stack in &snapshot.stacks {
            let blocks = stack.allocated.blocks;
            seen.allocations += blocks;
            seen.frames += blocks * stack.frames.len() as u64;
            seen.complete += if stack.end == End::Complete { blocks } else { 0 };
        }
        seen
    }

    fn since(self, before: &Self) -> Self {
        Self {
            allocations: self.allocations - before.allocations,
            frames: self.frames - before.frames,
            complete: self.complete - before.complete,
            lost: self.lost - before.lost,
        }
    }

    fn frames_per_stack(&self) -> f64 {
        self.frames as f64 / self.allocations.max(1) as f64
    }

    /// Whether all pairs were traced, and as deep as they are.
    fn check(&self, walk: Walk, build: &Build, load: Load, pairs: u32) -> anyhow::Result<()> {
        let Self {
            allocations,
            complete,
            lost,
            ..
        } = *self;
        ensure!(
            allocations == u64::from(pairs),
            "{allocations} of {pairs} allocations were recorded"
        );
        ensure!(lost == 0, "{lost} allocations were lost");
        let least = match walk {
            Walk::Off => 0,
            Walk::Dwarf => load.least_frames(),
            // The functions that call main keep no frame pointers.
            Walk::Fp if build.frame_pointers => load.least_frames() - 3,
            Walk::Fp => 1,
        };
        let frames = self.frames_per_stack();
        ensure!(
            frames >= f64::from(least),
            "{walk:?} found {frames:.1} frames per stack, of at least {least}"
        );
        let whole = walk != Walk::Dwarf || complete == allocations;
        ensure!(
            whole,
            "{complete} of {allocations} allocations have a complete stack"
        );
        Ok(())
    }
}

/// Prints how one load did in all rounds, by tracing. Returns how much dwarf costs as a multiple of no walk.
fn print_load(load: Load, rounds: &[Vec<&Sample>], out: &mut dyn Write) -> anyhow::Result<f64> {
    let over_rounds =
        |value: &dyn Fn(&[&Sample]) -> f64| Spread::of(rounds.iter().map(|round| value(round)).collect());
    let mut last_ratio = 0.0;
    for (way, tracing) in TRACINGS.iter().enumerate() {
        let title = if way == UNTRACED {
            load.to_string()
        } else {
            String::new()
        };
        if way == UNTRACED {
            let alone = over_rounds(&|round| round[way].nanoseconds);
            writeln!(out, "  {title:<11} {:<16} {alone}", tracing.name)?;
            continue;
        }
        let cost = |round: &[&Sample], way: usize| round[way].nanoseconds - round[UNTRACED].nanoseconds;
        let added = over_rounds(&|round| cost(round, way));
        let ratio = over_rounds(&|round| cost(round, way) / cost(round, NO_WALK));
        let seen = rounds.last().context("a plan has rounds")?[way].seen;
        let complete = 100.0 * seen.complete as f64 / seen.allocations as f64;
        let frames = seen.frames_per_stack();
        last_ratio = ratio.median;
        writeln!(
            out,
            "  {title:<11} {:<16} {added} {last_ratio:5.2}x {frames:6.1} frames {complete:4.0}% complete",
            tracing.name
        )?;
    }
    Ok(last_ratio)
}

/// A median and the range that it is the median of.
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Self {
            least: at(0),
            median: at(values.len() / 2),
            most: at(values.len().saturating_sub(1)),
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:7.0} ns [{:5.0} .. {:5.0}]",
            self.median, self.least, self.most
        )
    }
}

fn compile(build: &Build) -> anyhow::Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/probe_target.c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("probe_target{}", build.flag));
    let mut compiler = Command::new("gcc");
    compiler
        .args(["-O2", "-Wall", "-Wextra", "-Werror", build.flag, "-o"])
        .arg(&program)
        .arg(source);
    let status = compiler
        .status()
        .context("cannot run gcc (apt-get install gcc)")?;
    ensure!(status.success(), "gcc could not compile the target");
    Ok(program)
}

/// A running target; ended when dropped.
struct Target {
    child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Target {
    fn start(program: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let commands = child.stdin.take().context("a pipe was asked for")?;
        let answers = BufReader::new(child.stdout.take().context("a pipe was asked for")?).lines();
        let mut target = Self {
            child,
            commands,
            answers,
        };
        // Everything that standard input and output allocate is there after the first command.
        target.ask(
            Load {
                mode: "hot",
                depth: LIMIT_DEPTH,
            },
            1,
        )?;
        Ok(target)
    }

    /// Nanoseconds per pair.
    fn ask(&mut self, load: Load, pairs: u32) -> anyhow::Result<f64> {
        writeln!(self.commands, "{load} {pairs}")?;
        let Some(answer) = self.answers.next() else {
            bail!("the target ended")
        };
        answer?.parse().context("the target answers with a number")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}
