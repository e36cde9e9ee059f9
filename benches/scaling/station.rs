//! One process at one point of an axis, and how it is traced.

use std::process::Command;

use anyhow::{Context, ensure};
use leak_report::model::Snapshot;
use memleak::bpf::Walk;
use memleak::session::TraceConfig;
use memleak::session::{Session, storages};
use unwind_tables::walk::End;

use crate::common::{Target, compile, own_libc};
use crate::point::Point;

/// A way to trace.
pub(crate) struct Tracing {
    pub(crate) name: &'static str,
    walk: Option<Walk>,
    /// True if `LIMIT` applies to its cost.
    pub(crate) limited: bool,
}

/// Ways to trace. Costs are relative to the first.
pub(crate) const TRACINGS: [Tracing; 3] = [
    Tracing {
        name: "untraced",
        walk: None,
        limited: false,
    },
    Tracing {
        name: "probes, no walk",
        walk: Some(Walk::Off),
        limited: false,
    },
    Tracing {
        name: "--unwind dwarf",
        walk: Some(Walk::Dwarf),
        limited: true,
    },
];
pub(crate) const UNTRACED: usize = 0;

/// Minimum capacity of the block table, as in a trace of a small process.
const MIN_BLOCKS: u32 = 1 << 20;
/// Allocations that starting a thread takes, at most.
const BLOCKS_PER_THREAD: u32 = 4;
/// Allocations that a command makes besides its pairs, at most.
const BLOCKS_PER_COMMAND: u32 = 2;

/// A target that is traced in one way from before its first command until it ends.
pub(crate) struct Station {
    target: Target,
    session: Option<Session<'static>>,
    walk: Option<Walk>,
}

impl Station {
    /// Starts the target and the trace, and brings it to `point`: all blocks live, all stacks known.
    pub(crate) fn start(name: &str, point: &Point, tracing: &Tracing) -> anyhow::Result<Self> {
        let program = compile("scaling/target.c", "scaling_target")?;
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", own_libc(&format!("scaling-{name}"))?);
        let mut target = Target::start(&mut command)?;
        // Makes standard input and output allocate all they need, and as many threads their stacks.
        target.ask(&format!("pair 1 {0} {0}", point.threads))?;
        let session = match tracing.walk {
            None => None,
            // A session borrows its storage, which is leaked to be `'static`.
            Some(walk) => Some(Session::start(
                Box::leak(Box::new(storages())),
                &config(target.pid(), walk, point),
            )?),
        };
        let mut station = Self {
            target,
            session,
            walk: tracing.walk,
        };
        station.target.ask(&point.visit_all())?;
        station.target.ask(&point.command(1000))?;
        Ok(station)
    }

    /// Returns nanoseconds per pair. Fails if not all pairs were recorded as they should be.
    pub(crate) fn measure(&mut self, point: &Point, pairs: u32) -> anyhow::Result<f64> {
        let snapshot = |session: &Option<Session<'_>>| session.as_ref().map(Session::snapshot).transpose();
        // Warm the caches, which other processes have used since the last turn.
        self.target.ask(&point.command(pairs / 10))?;
        let before = snapshot(&self.session)?;
        let nanoseconds = self.target.ask(&point.command(pairs))?;
        if let (Some(before), Some(after)) = (before, snapshot(&self.session)?) {
            self.check(point, pairs, &before, &after)
                .with_context(|| format!("{:?}, `{}`", self.walk, point.command(pairs)))?;
        }
        Ok(nanoseconds)
    }

    fn check(&self, point: &Point, pairs: u32, before: &Snapshot, after: &Snapshot) -> anyhow::Result<()> {
        let recorded = allocations(after, |_| true) - allocations(before, |_| true);
        let min = u64::from(pairs / point.threads * point.threads);
        let max = min + u64::from(BLOCKS_PER_COMMAND + BLOCKS_PER_THREAD * point.threads);
        ensure!(
            (min..=max).contains(&recorded),
            "{recorded} allocations were recorded, where {min} to {max} were made"
        );
        let losses = &after.losses;
        ensure!(
            losses.blocks == 0,
            "{} blocks were lost: {:?}",
            losses.blocks,
            losses.causes
        );
        if self.walk == Some(Walk::Dwarf) {
            let incomplete = |end: End| end != End::Complete;
            let cut = allocations(after, incomplete) - allocations(before, incomplete);
            let ends: Vec<End> = after
                .stacks
                .iter()
                .map(|stack| stack.end)
                .filter(|&end| incomplete(end))
                .collect();
            ensure!(cut == 0, "{cut} stacks are not complete: {ends:?}");
            ensure!(
                after.stacks.len() >= point.stacks as usize,
                "{} stacks are known, of at least {}",
                after.stacks.len(),
                point.stacks
            );
        }
        Ok(())
    }
}

/// Returns the number of blocks allocated by stacks whose end is `wanted`.
fn allocations(snapshot: &Snapshot, wanted: impl Fn(End) -> bool) -> u64 {
    let stacks = snapshot.stacks.iter().filter(|stack| wanted(stack.end));
    stacks.map(|stack| stack.allocated.amount.blocks).sum()
}

fn config(pid: u32, walk: Walk, point: &Point) -> TraceConfig {
    let mut config = TraceConfig::of_process(pid);
    config.stacks.walk = walk;
    // Half as many again as are live, about what the process's resident memory would give by default.
    config.limits.blocks = Some(MIN_BLOCKS.max(point.live + point.live / 2));
    config
}
