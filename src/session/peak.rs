//! Looks for the peak in a separate thread: a report takes seconds, in which the total can rise and fall.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;

use super::background::{Background, Ending};
use super::live::Live;
use crate::base::parallel::lock;
use crate::bpf::collect::{Look, PeakFinder};
use leak_report::model::Snapshot;

/// Minimum time between two looks.
const SHORTEST: Duration = Duration::from_millis(1);
/// Maximum time between two looks, unless they take long.
const LONGEST: Duration = Duration::from_millis(10);
/// Time between two looks as a multiple of the CPU time of one: they take at most 1 % of a core.
const PAUSE_PER_COST: u32 = 100;
/// Inverse of the share of the peak that may be allocated between two looks. The true peak is then at most
/// some 2 % above the highest total that was seen.
const PARTS: u64 = 50;
/// Bytes that may be allocated between two looks in any case.
const NEGLIGIBLE: u64 = 16 << 10;

/// Looks for the peak until it is dropped.
pub(super) struct PeakWatch {
    shared: Arc<Shared>,
    _thread: Background,
}

struct Shared {
    finder: Mutex<PeakFinder>,
    started: Instant,
}

impl PeakWatch {
    /// Starts with a trace that has just begun; `None` with `--mmap` and `--faults`, which have no totals in
    /// the kernel.
    pub(super) fn start(live: &Live<'_>) -> anyhow::Result<Option<Self>> {
        if !live.accounting.probes_allocators() {
            return Ok(None);
        }
        let shared = Arc::new(Shared {
            finder: Mutex::new(PeakFinder::new(&live.kernel)),
            started: live.started,
        });
        let own = Arc::clone(&shared);
        let thread = Background::start("peak", move |ending| own.run(ending));
        Ok(Some(Self {
            shared,
            _thread: thread.context("cannot look for the peak")?,
        }))
    }

    /// Enters the peak so far into `snapshot`, which was just taken.
    pub(super) fn describe(&self, snapshot: &mut Snapshot) {
        let mut finder = lock(&self.shared.finder);
        finder.look(self.shared.started.elapsed());
        finder.describe(snapshot);
    }
}

impl Shared {
    fn run(&self, ending: &Ending) {
        let mut pause = SHORTEST;
        let mut last = Instant::now();
        loop {
            let look = lock(&self.finder).look(self.started.elapsed());
            let since = last.elapsed();
            last = Instant::now();
            pause = next_pause(since.max(pause), look);
            if ending.comes_within(pause) {
                return;
            }
        }
    }
}

/// Time until the next look, given one and the time since the look before it.
fn next_pause(since: Duration, look: Look) -> Duration {
    let allowed = (look.peak.bytes / PARTS).max(NEGLIGIBLE);
    // At most twice as long: bursts begin small.
    let by_flow = match look.allocated {
        0 => 2 * since,
        allocated => {
            #[allow(
                clippy::cast_precision_loss,
                reason = "a time needs no more than a few digits"
            )]
            let factor = allowed as f64 / allocated as f64;
            since.mul_f64(factor.min(2.0))
        }
    };
    by_flow.clamp(SHORTEST, LONGEST).max(look.cost * PAUSE_PER_COST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leak_report::model::Amount;

    /// Looks are as far apart as little is allocated, within limits, and never cost more than their share.
    #[test]
    fn pauses() {
        let micros = Duration::from_micros;
        let look = |allocated, peak, cost| Look {
            allocated,
            peak: Amount {
                bytes: peak,
                blocks: 1,
            },
            cost: micros(cost),
        };
        for (since, look, expected) in [
            // Nothing, and little: twice as long, up to the longest.
            (2000, look(0, 0, 1), 4000),
            (8000, look(0, 0, 1), 10_000),
            (2000, look(100, 0, 1), 4000),
            // A fiftieth of the peak is allowed; twice as much halves the pause.
            (4000, look(1 << 20, 50 << 20, 1), 4000),
            (4000, look(2 << 20, 50 << 20, 1), 2000),
            (4000, look(1 << 30, 50 << 20, 1), 1000),
            (4000, look(u64::MAX, 50 << 20, 1), 1000),
            // Many stacks.
            (4000, look(1 << 30, 50 << 20, 300), 30_000),
        ] {
            assert_eq!(
                next_pause(micros(since), look),
                micros(expected),
                "{since} {look:?}"
            );
        }
    }
}
