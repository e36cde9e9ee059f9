//! Ways to trace that are compared, and what a trace must have seen.

use anyhow::ensure;
use leak_report::model::{Sampling, Snapshot};
use memleak::bpf::{FastPaths, SizeFilter, Walk};
use memleak::session::TraceConfig;
use memleak::session::{Session, storages};
use unwind_tables::walk::End;

use crate::bare::Bare;
use crate::target::{Build, Cost, Load, Target};

/// A way to trace. Costs of all others are relative to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tracing {
    Untraced,
    /// Three empty programs, at entry and return of `malloc` and at `free`.
    Bare,
    /// Two empty programs: the return of `malloc` is refused.
    BareEntries,
    NoWalk,
    Kernel,
    Fp,
    Dwarf,
    /// Walks by CFI without the walk memo.
    NoMemo,
    /// Walks by CFI without any fast path: nothing is remembered or read ahead.
    Plain,
    /// Walks by CFI, but of sizes that the program does not ask for: nothing is recorded.
    Filtered,
    /// Walks by CFI, but hardly any allocation is chosen by sampling.
    Unsampled,
    /// Walks by CFI, with probes on first instructions.
    FirstInstructions,
}

impl Tracing {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Untraced => "untraced",
            Self::Bare => "bare probes",
            Self::BareEntries => "bare entry and free",
            Self::NoWalk => "no walk",
            Self::Kernel => "kernel fp",
            Self::Fp => "--unwind fp",
            Self::Dwarf => "--unwind dwarf",
            Self::NoMemo => "dwarf, no memo",
            Self::Plain => "dwarf, plain",
            Self::Filtered => "filtered by size",
            Self::Unsampled => "not sampled",
            Self::FirstInstructions => "dwarf, offset 0",
        }
    }

    /// Returns the number of pairs to measure: a tenth where each takes ten times as long.
    pub(crate) fn pairs(self, pairs: u32) -> u32 {
        if self == Self::FirstInstructions {
            pairs / 10
        } else {
            pairs
        }
    }

    fn walk(self) -> Option<Walk> {
        match self {
            Self::Untraced | Self::Bare | Self::BareEntries => None,
            Self::NoWalk => Some(Walk::Off),
            Self::Kernel => Some(Walk::Kernel),
            Self::Fp => Some(Walk::Fp),
            Self::Dwarf
            | Self::NoMemo
            | Self::Plain
            | Self::Filtered
            | Self::Unsampled
            | Self::FirstInstructions => Some(Walk::Dwarf),
        }
    }

    /// Returns whether each pair is recorded.
    fn records(self) -> bool {
        !matches!(self, Self::Filtered | Self::Unsampled)
    }

    fn fast_paths(self) -> FastPaths {
        let all = FastPaths::default();
        let is_plain = self == Self::Plain;
        FastPaths {
            cache: !is_plain,
            window: !is_plain,
            memo: !is_plain && self != Self::NoMemo,
            ..all
        }
    }

    fn config(self, pid: u32, walk: Walk) -> TraceConfig {
        let mut config = TraceConfig::of_process(pid);
        config.stacks.walk = walk;
        config.tuning.fast_paths = self.fast_paths();
        config.tuning.first_instructions = self == Self::FirstInstructions;
        if self == Self::Unsampled {
            config.count.sampling = Sampling::Bytes(Sampling::MAX_BYTES);
        }
        config.count.sizes = (self == Self::Filtered).then_some(SizeFilter {
            min: 1 << 30,
            max: u64::MAX,
        });
        config.limits.blocks = Some(1 << 20);
        config
    }
}

/// Measures loads in one way. Returns, by load, the cost of a pair and the counts of the trace.
pub(crate) fn measure(
    tracing: Tracing,
    build: &Build,
    target: &mut Target,
    loads: &[Load],
    pairs: u32,
) -> anyhow::Result<Vec<(Cost, Seen)>> {
    let mut storages = storages();
    let is_bare = matches!(tracing, Tracing::Bare | Tracing::BareEntries);
    let bare = is_bare
        .then(|| Bare::attach(target.pid(), tracing == Tracing::Bare))
        .transpose()?;
    let session = match tracing.walk() {
        Some(walk) => Some(Session::start(
            &mut storages,
            &tracing.config(target.pid(), walk),
        )?),
        None => None,
    };
    let pairs = tracing.pairs(pairs);
    let mut measured = Vec::new();
    for &load in loads {
        // Warm up: new stacks, pages and caches are not part of each pair's cost.
        target.ask(load, (pairs / 2).max(10_000))?;
        let before = Seen::of(session.as_ref())?;
        let cost = target.ask(load, pairs)?;
        let seen = Seen::of(session.as_ref())?.since(&before);
        if let Some(walk) = tracing.walk() {
            seen.check(walk, tracing.records(), build, (load, pairs * load.threads))?;
        }
        measured.push((cost, seen));
    }
    drop(bare);
    Ok(measured)
}

/// Counts of a trace.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seen {
    allocations: u64,
    frames: u64,
    complete: u64,
    lost: u64,
}

impl Seen {
    fn of(session: Option<&Session<'_>>) -> anyhow::Result<Self> {
        let snapshot = session.map_or_else(|| Ok(Snapshot::default()), Session::snapshot)?;
        let mut seen = Self {
            lost: snapshot.losses.blocks,
            ..Self::default()
        };
        for stack in &snapshot.stacks {
            let blocks = stack.allocated.amount.blocks;
            seen.allocations += blocks;
            let left_out = stack.left_out.map_or(0, |left_out| u64::from(left_out.frames));
            seen.frames += blocks * (stack.frames.len() as u64 + left_out);
            seen.complete += if stack.end == End::Complete { blocks } else { 0 };
        }
        Ok(seen)
    }

    fn since(self, before: &Self) -> Self {
        Self {
            allocations: self.allocations - before.allocations,
            frames: self.frames - before.frames,
            complete: self.complete - before.complete,
            lost: self.lost - before.lost,
        }
    }

    pub(crate) fn frames_per_stack(&self) -> f64 {
        self.frames as f64 / self.allocations.max(1) as f64
    }

    /// Checks that all pairs were recorded, with all frames of their stacks: a broken walk must not look
    /// fast.
    fn check(
        &self,
        walk: Walk,
        records: bool,
        build: &Build,
        (load, pairs): (Load, u32),
    ) -> anyhow::Result<()> {
        let Self {
            allocations,
            complete,
            lost,
            ..
        } = *self;
        let expected = if records { u64::from(pairs) } else { 0 };
        ensure!(
            allocations == expected,
            "{load} {}, {walk:?}: {allocations} of {expected} allocations were recorded",
            build.name
        );
        ensure!(
            lost == 0,
            "{load} {}, {walk:?}: {lost} allocations were lost",
            build.name
        );
        if !records {
            return Ok(());
        }
        let min_frames = match walk {
            Walk::Off | Walk::Kernel => 0,
            Walk::Dwarf => load.least_frames(),
            // The functions that start a thread keep no frame pointers.
            Walk::Fp if build.frame_pointers => load.least_frames() - 3,
            Walk::Fp => 1,
        };
        let frames = self.frames_per_stack();
        ensure!(
            frames >= f64::from(min_frames),
            "{load} {}: {walk:?} found {frames:.1} frames per stack, of at least {min_frames}",
            build.name
        );
        ensure!(
            walk != Walk::Dwarf || complete == allocations,
            "{load} {}: {complete} of {allocations} allocations have a complete stack",
            build.name
        );
        Ok(())
    }
}
