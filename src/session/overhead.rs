//! Measures the cost of tracing once a second or more often, and runs the governor, in a separate thread:
//! neither may wait while tables are built or a report is made.
//!
//! `bpf::overhead` defines the numbers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::MaxOverhead;
use super::background::{Background, Ending};
use super::live::Live;
use super::probes::{AllocatorProbes, SlowSites};
use crate::allocator::usdt::DISTANCES;
use crate::base::parallel::lock;
use crate::bpf::collect::{self, Hits};
use crate::bpf::overhead::{Account, Decision, Governor, Ladder, Measurement, Window};
use crate::bpf::{Calibration, ProbePrograms, Recorded, Statistics};
use leak_report::model::{Governed, Overhead, Sampling, Source, Spent, Traps};
use leak_report::render;

/// Length of one measurement, for which the kernel keeps statistics. They make each run of a program some 40
/// ns longer.
const WINDOW: Duration = Duration::from_millis(10);
/// Time between measurements with a governor, or until the cost at the start is logged.
const SHORT_PAUSE: Duration = Duration::from_millis(240);
/// Time between measurements otherwise.
const LONG_PAUSE: Duration = Duration::from_millis(990);
/// Period of the recent cost, and minimum time measured before the cost is logged.
const RECENT_PERIOD: Duration = Duration::from_millis(900);
/// Nanoseconds per trap that are assumed where they cannot be measured; typical of other machines.
const ASSUMED_TRAPS: Traps = Traps {
    emulated: 500.0,
    stepped: Some(16_000.0),
    returning: 250.0,
    empty_program: 0.0,
};

/// Measures the cost of tracing until it is dropped.
pub(super) struct Meter {
    shared: Arc<Shared>,
    _thread: Background,
}

/// State that the thread and the session share.
struct Shared {
    recorded: Arc<Recorded>,
    programs: ProbePrograms,
    started: Instant,
    state: Mutex<State>,
}

struct State {
    account: Account,
    slow: SlowSites,
    /// Totals at each of the last measurements, oldest first; the oldest is about a second old.
    recent_totals: VecDeque<Spent>,
    /// True if the kernel's statistics could be read.
    measured: bool,
    /// True if the cost at the start was logged.
    is_logged: bool,
    governing: Option<Governing>,
    /// True if every call is recorded.
    is_whole: bool,
}

struct Governing {
    policy: Policy,
    governed: Governed,
    /// Interval of the last decision.
    decided: u64,
    /// Interval decided on, until [`Meter::apply_decision`] has attached to its probes.
    pending: Option<u64>,
    /// Cost up to the last measurement.
    spent: Spent,
    /// Blocks recorded up to the last measurement.
    recorded: u64,
}

/// Intervals to choose from.
enum Policy {
    /// Any: the kernel side chooses the allocations.
    Any(Governor),
    /// A few, each with its own probes, by which processes announce the blocks that they choose; changing
    /// means attaching to others.
    Announced(Ladder),
}

impl Policy {
    fn decide(&mut self, measurement: Measurement) -> Decision {
        match self {
            Self::Any(governor) => governor.decide(measurement),
            Self::Announced(ladder) => ladder.decide(measurement),
        }
    }
}

impl Meter {
    /// Starts measuring a trace that has just begun; `None` with `--mmap` and `--faults`, which probe no
    /// allocator.
    pub(super) fn start(live: &Live<'_>, limit: Option<MaxOverhead>) -> anyhow::Result<Option<Self>> {
        if !live.accounting.probes_allocators() {
            return Ok(None);
        }
        let calibration = live.kernel.calibration();
        let calibration = calibration
            .inspect_err(|error| tracing::debug!("traps are not measured: {error:#}"))
            .ok();
        let governing = limit.map(|limit| Governing::new(limit, &live.kernel.recorded));
        let shared = Arc::new(Shared {
            recorded: Arc::clone(&live.kernel.recorded),
            programs: live.kernel.probe_programs().context("cannot measure probes")?,
            started: live.started,
            state: Mutex::new(State {
                account: Account::new(ASSUMED_TRAPS),
                slow: live.attach.probes().slow_sites().clone(),
                recent_totals: VecDeque::new(),
                measured: true,
                is_logged: false,
                governing,
                is_whole: live.kernel.recorded.sampling == Sampling::All,
            }),
        });
        let own = Arc::clone(&shared);
        let thread = Background::start("meter", move |ending| own.run(ending, calibration));
        Ok(Some(Self {
            shared,
            _thread: thread.context("cannot measure probes")?,
        }))
    }

    /// Attaches to the probes of another interval if the governor has decided on one and processes choose the
    /// blocks.
    pub(super) fn apply_decision(&self, live: &mut Live<'_>) {
        let pending = |state: &mut State| state.governing.as_mut()?.pending.take();
        let Some(distance) = pending(&mut lock(&self.shared.state)) else {
            return;
        };
        match live.change_distance(distance) {
            Ok(()) => lock(&self.shared.state).note_interval(distance),
            Err(error) => tracing::warn!("{error:#}: the interval stays as it is"),
        }
    }

    /// Cost of tracing so far. `probes` may have more than at the last call.
    pub(super) fn overhead(&self, probes: &AllocatorProbes) -> Overhead {
        let known = {
            let mut state = lock(&self.shared.state);
            state.slow = probes.slow_sites().clone();
            state.account.is_known()
        };
        if !known {
            self.shared.measure();
        }
        lock(&self.shared.state).overhead(&self.shared)
    }
}

impl Shared {
    /// Runs the thread. `calibration` is `None` if this program itself could not be probed.
    fn run(&self, ending: &Ending, calibration: Option<Calibration>) {
        if let Some(calibration) = &calibration {
            let traps = calibration.measure(lock(&self.state).slow.any);
            tracing::debug!("traps take {traps:?}");
            lock(&self.state).account.set_traps(traps);
        }
        // Detached by another thread, as that takes some tens of milliseconds, or more on a busy machine.
        thread::scope(|scope| {
            _ = thread::Builder::new().spawn_scoped(scope, move || drop(calibration));
            self.measure_until(ending);
        });
    }

    fn measure_until(&self, ending: &Ending) {
        self.measure();
        while !ending.comes_within(self.pause()) {
            self.measure();
        }
    }

    /// Time until the next measurement. It varies, so as not to keep step with the target.
    fn pause(&self) -> Duration {
        let state = lock(&self.state);
        let pause = match state.governing.is_some() || !state.is_logged {
            true => SHORT_PAUSE,
            false => LONG_PAUSE,
        };
        let jitter = self.started.elapsed().subsec_nanos() % 32;
        pause - Duration::from_millis(jitter.into())
    }

    /// Measures for [`WINDOW`], updates the account, and acts on it.
    fn measure(&self) {
        let (window, measured) = match self.window() {
            Ok(window) => (Some(window), true),
            Err(error) => {
                tracing::debug!("the kernel keeps no statistics: {error:#}");
                (None, false)
            }
        };
        let Ok(Hits { entries, .. }) = collect::hits(&self.recorded) else {
            return;
        };
        let seconds = self.started.elapsed().as_secs_f64();
        let by_function = collect::recorded_by_function(&self.recorded);
        let mut state = lock(&self.state);
        if state.measured && !measured {
            state.measured = false;
            tracing::warn!(
                "the cost of probes is assumed, not measured: reading the kernel's statistics needs \
                 CAP_SYS_ADMIN; try sudo"
            );
        }
        state.note_slow(&by_function);
        let window = window.unwrap_or_else(|| Window::assumed(1.0, 1000));
        state.account.see(window);
        state.account.advance(seconds, entries);
        state.note_spent();
        state.govern(by_function.iter().sum(), &self.recorded);
        state.log_forecast();
    }

    /// Reads what the kernel's statistics count in the next [`WINDOW`].
    fn window(&self) -> anyhow::Result<Window> {
        let statistics = Statistics::keep()?;
        let (began, runs) = (Instant::now(), self.programs.read()?);
        let hits = collect::hits(&self.recorded)?;
        thread::sleep(WINDOW);
        let after = self.programs.read()?;
        let hits = collect::hits(&self.recorded)?.since(hits);
        let seconds = began.elapsed().as_secs_f64();
        drop(statistics);
        let mut window = Window {
            seconds,
            entries: hits.entries,
            runs: std::array::from_fn(|number| after[number].since(runs[number])),
        };
        window.split_rets(hits.rets);
        Ok(window)
    }
}

impl State {
    fn note_slow(&mut self, by_function: &[u64]) {
        // A slow site came with a library after the start, when traps of slow sites were not measured.
        let missing = self.slow.any && self.account.traps().stepped.is_none();
        let stepped = ASSUMED_TRAPS.stepped.filter(|_| missing);
        self.account.set_slow(self.slow.shares(by_function), stepped);
    }

    fn note_spent(&mut self) {
        let now = *self.account.spent();
        self.recent_totals.push_back(now);
        let is_old = |spent: &Spent| now.seconds - spent.seconds >= RECENT_PERIOD.as_secs_f64();
        while self.recent_totals.get(1).is_some_and(is_old) {
            self.recent_totals.pop_front();
        }
    }

    /// Cost in about the last second, or since the start.
    fn recent(&self) -> Spent {
        let now = *self.account.spent();
        let first = self.recent_totals.front().copied().unwrap_or_default();
        match now.seconds > first.seconds {
            true => now.since(&first),
            false => now,
        }
    }

    /// Logs the forecast once: when the target was measured for [`RECENT_PERIOD`], is active, and at most
    /// half of its hits were not measured, as bursts may fall between the first windows.
    fn log_forecast(&mut self) {
        let recent = self.recent();
        let is_known = recent.entries > 0.0 && recent.unmeasured <= recent.entries / 2.0;
        if !self.is_logged && recent.seconds >= RECENT_PERIOD.as_secs_f64() && is_known {
            self.is_logged = true;
            tracing::info!("{}", render::forecast(&recent));
            if self.is_whole
                && let Some(ways) = render::cheaper_ways(&recent)
            {
                tracing::info!("{ways}");
            }
        }
    }

    fn govern(&mut self, blocks: u64, recorded: &Recorded) {
        let Some(governing) = &mut self.governing else {
            return;
        };
        let spent = *self.account.spent();
        let since = spent.since(&governing.spent);
        let new = blocks.saturating_sub(governing.recorded);
        (governing.spent, governing.recorded) = (spent, blocks);
        let measurement = Measurement {
            share: since.share(),
            recorded: if since.entries > 0.0 {
                (new as f64 / since.entries).min(1.0)
            } else {
                0.0
            },
        };
        let decision = governing.policy.decide(measurement);
        let limit = render::share(governing.governed.limit);
        if let Some(floor) = decision.floor {
            governing.governed.floor = Some(floor);
            let (rate, share) = (render::rate(since.rate()), render::share(floor));
            tracing::warn!(
                "--max-overhead {limit} cannot be kept: {}",
                match governing.policy {
                    Policy::Any(_) => format!(
                        "{rate} allocations/s cost {share} of one CPU by their probes alone, whatever is recorded"
                    ),
                    Policy::Announced(_) => format!(
                        "{rate} allocations/s are announced at the largest interval, which costs {share} of one CPU"
                    ),
                }
            );
        }
        let before = std::mem::replace(&mut governing.decided, decision.distance);
        if decision.distance == before {
            return;
        }
        tracing::debug!("{measurement:?}: distance {before} → {}", decision.distance);
        if governing.governed.changes == 0 && !self.is_logged {
            self.is_logged = true;
            tracing::info!(
                "{}: fewer are recorded from now on (limit {limit})",
                render::forecast(&since)
            );
        }
        match governing.policy {
            Policy::Any(_) => {
                recorded.distance.set(decision.distance);
                self.note_interval(decision.distance);
            }
            Policy::Announced(_) => governing.pending = Some(decision.distance),
        }
    }

    /// Notes that another sampling interval is used now.
    fn note_interval(&mut self, distance: u64) {
        if let Some(Governing { governed, .. }) = &mut self.governing {
            governed.now = distance;
            governed.least = governed.least.min(distance);
            governed.most = governed.most.max(distance);
            governed.changes += 1;
        }
        self.account.forget();
    }

    fn overhead(&mut self, shared: &Shared) -> Overhead {
        if let Ok(Hits { entries, .. }) = collect::hits(&shared.recorded) {
            self.account
                .advance(shared.started.elapsed().as_secs_f64(), entries);
        }
        Overhead {
            spent: *self.account.spent(),
            lately: self.recent().share(),
            traps: self.account.traps(),
            measured: self.measured,
            governed: self.governing.as_ref().map(|governing| governing.governed),
        }
    }
}

impl Governing {
    fn new(limit: MaxOverhead, recorded: &Recorded) -> Self {
        let least = match recorded.sampling {
            Sampling::Governed(least) => least,
            Sampling::All | Sampling::Calls(_) | Sampling::Bytes(_) | Sampling::Provider(_) => 1,
        };
        let larger = DISTANCES.into_iter().filter(|distance| *distance >= least);
        Self {
            policy: match recorded.source {
                Source::Usdt => Policy::Announced(Ladder::new(limit.share(), larger.collect())),
                Source::Uprobe | Source::Syscall | Source::Kernel | Source::Faults => {
                    Policy::Any(Governor::new(limit.share(), least))
                }
            },
            decided: least,
            pending: None,
            governed: Governed {
                limit: limit.share(),
                now: least,
                least,
                most: least,
                changes: 0,
                floor: None,
            },
            spent: Spent::default(),
            recorded: 0,
        }
    }
}
