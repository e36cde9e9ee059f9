//! The sum of what tracing took, from windows of statistics and the count of entries between them.

use std::collections::VecDeque;

use super::{real, whole};
use crate::bpf::{AllRuns, Runs};
use leak_report::model::{ProbeProgram, Spent, Traps, ratio};

/// Windows that are remembered.
const WINDOWS: usize = 8;
/// Runs that a window must have for a mean of it to be worth something.
const ENOUGH: u64 = 50;
/// What programs take, in nanoseconds, and how often they run for each entry of a function that allocates, where the
/// kernel does not tell: some 10 frames, each block freed. As measured on several machines.
const ASSUMED: [(ProbeProgram, f64, u64); 2] =
    [(ProbeProgram::Session, 2.0, 600), (ProbeProgram::Free, 1.0, 400)];

/// What the kernel's statistics showed of a short time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    /// How long it was.
    pub seconds: f64,
    /// Entries of functions that allocate, nested ones included.
    pub entries: u64,
    /// What ran.
    pub runs: AllRuns,
}

impl Window {
    /// What is taken for granted where there are no statistics.
    pub fn assumed(seconds: f64, entries: u64) -> Self {
        let mut runs = AllRuns::default();
        for (program, times, nanoseconds) in ASSUMED {
            let count = whole(real(entries) * times);
            runs[program as usize] = Runs {
                count,
                nanoseconds: count * nanoseconds,
            };
        }
        Self {
            seconds,
            entries,
            runs,
        }
    }
}

/// How many hits are at instructions that the kernel single-steps, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SlowShares {
    /// Of entries of functions that allocate.
    pub allocations: f64,
    /// Of entries of functions that free.
    pub frees: f64,
}

/// The account of a trace.
#[derive(Debug, Default)]
pub struct Account {
    traps: Traps,
    slow: SlowShares,
    /// The last first.
    windows: VecDeque<Window>,
    spent: Spent,
    /// Entries that were counted when it was last brought up to date.
    counted: u64,
    /// Entries since then that wait for a window that knows what follows one.
    waiting: f64,
}

impl Account {
    /// Of a trace that begins, by what traps take here.
    pub fn new(traps: Traps) -> Self {
        Self {
            traps,
            ..Self::default()
        }
    }

    /// What single-stepping takes, and how many hits do it.
    pub fn set_slow(&mut self, slow: SlowShares, stepped: Option<f64>) {
        self.slow = slow;
        self.traps.stepped = stepped.or(self.traps.stepped);
    }

    /// Traps take this, from now on.
    pub fn set_traps(&mut self, traps: Traps) {
        self.traps = traps;
    }

    /// What traps take.
    pub fn traps(&self) -> Traps {
        self.traps
    }

    /// Whether a window was seen since the last change.
    pub fn is_known(&self) -> bool {
        !self.windows.is_empty()
    }

    /// The target from now on does as in this window, which has just ended.
    pub fn see(&mut self, window: Window) {
        self.windows.push_front(window);
        self.windows.truncate(WINDOWS);
    }

    /// What programs do from now on is not what they did.
    pub fn forget(&mut self) {
        self.windows.clear();
    }

    /// Brings it up to date: `entries` were counted in all, and this is the trace's time in seconds. Without a window,
    /// everything waits for one.
    pub fn advance(&mut self, seconds: f64, entries: u64) {
        let Some(last) = self.windows.front().copied() else {
            return;
        };
        let new = real(entries.saturating_sub(self.counted));
        let time = (seconds - self.spent.seconds).max(0.0);
        self.counted = entries;
        self.spent.seconds = seconds;
        self.spent.entries += new;
        self.waiting += new;
        let frees = ratio(real(last.runs[ProbeProgram::Free as usize].count), last.seconds) * time;
        let mut runs = [0.0; ProbeProgram::ALL.len()];
        runs[ProbeProgram::Free as usize] = frees;
        let mut entered = 0.0;
        if let Some(per_entry) = self.per_entry() {
            entered = std::mem::take(&mut self.waiting);
            for (program, each) in ProbeProgram::ALL.into_iter().zip(per_entry) {
                if program != ProbeProgram::Free {
                    runs[program as usize] = entered * each;
                }
            }
        }
        self.spent.unmeasured = self.waiting;
        self.add(runs, entered);
    }

    fn add(&mut self, runs: [f64; ProbeProgram::ALL.len()], entered: f64) {
        for program in ProbeProgram::ALL {
            let number = program as usize;
            let time = &mut self.spent.programs[number];
            time.runs += runs[number];
            time.nanoseconds += runs[number] * per_run(&self.windows, number, self.traps.empty_program);
        }
        let [session, entry, returned, ret, free] = runs;
        // Of a program that runs at both, what is not an entry is a return.
        let session_entries = (entered - entry).clamp(0.0, session);
        let entries = entry + session_entries;
        let returns = returned + session - session_entries;
        let traps = self.traps;
        let stepped = traps.stepped.unwrap_or(traps.emulated);
        let at_entry = |slow: f64| traps.emulated + slow * (stepped - traps.emulated);
        self.spent.traps += entries + returns + ret + free;
        self.spent.trap_nanoseconds += entries * at_entry(self.slow.allocations)
            + returns * traps.returning
            + ret * stepped
            + free * at_entry(self.slow.frees);
    }

    /// Runs of each program for each entry; `None` if no window saw an entry.
    fn per_entry(&self) -> Option<[f64; ProbeProgram::ALL.len()]> {
        // The last one is the nearest, if there is enough in it.
        let last = self.windows.front().filter(|window| window.entries >= ENOUGH);
        let used: Vec<_> = match last {
            Some(last) => vec![last],
            None => self.windows.iter().collect(),
        };
        let entries: u64 = used.iter().map(|window| window.entries).sum();
        let runs = |number: usize| used.iter().map(|window| window.runs[number].count).sum::<u64>();
        (entries > 0).then(|| std::array::from_fn(|number| ratio(real(runs(number)), real(entries))))
    }

    /// The sum so far.
    pub fn spent(&self) -> &Spent {
        &self.spent
    }
}

/// Nanoseconds of a run of a program, without what the statistics themselves take.
///
/// The kernel's clock runs on when the machine has something else to do in the middle of a program. So it is the median
/// of the windows' means: most windows are too short for that.
fn per_run(windows: &VecDeque<Window>, number: usize, empty: f64) -> f64 {
    let runs = windows.iter().map(|window| window.runs[number]);
    let enough = runs.clone().filter(|runs| runs.count >= ENOUGH);
    let mut means: Vec<_> = enough
        .map(|runs| ratio(real(runs.nanoseconds), real(runs.count)))
        .collect();
    means.sort_by(f64::total_cmp);
    let mean = match means.get(means.len().saturating_sub(1) / 2) {
        Some(&median) => median,
        None => {
            let sum = |of: fn(Runs) -> u64| real(runs.clone().map(of).sum());
            ratio(sum(|runs| runs.nanoseconds), sum(|runs| runs.count))
        }
    };
    (mean - empty).max(0.0)
}

#[cfg(test)]
#[path = "account_tests.rs"]
mod tests;
