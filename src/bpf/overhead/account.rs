//! Sum of the cost of tracing, from windows of statistics and the count of entries between them.

use std::collections::VecDeque;

use super::{real, whole};
use crate::bpf::{AllRuns, Runs};
use leak_report::model::{ProbeProgram, Spent, Traps, ratio};

/// Maximum number of windows that are kept.
const WINDOWS: usize = 8;
/// Minimum number of runs for a mean to be meaningful.
const ENOUGH: u64 = 50;
/// Assumed runs per entry of an allocator function, and nanoseconds per run, where the kernel has no
/// statistics: stacks of some 10 frames, each block freed. As measured on several machines.
const ASSUMED: [(ProbeProgram, f64, u64); 2] =
    [(ProbeProgram::Session, 2.0, 600), (ProbeProgram::Free, 1.0, 400)];

/// Statistics of a short time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Window {
    pub seconds: f64,
    /// Entries of functions that allocate, including nested ones.
    pub entries: u64,
    pub runs: AllRuns,
}

impl Window {
    /// Splits off [`ProbeProgram::Ret`] from the program that handles `ret`s together with returns, given the
    /// probe hits of `ret`s. Their runs are taken to last as long as its other runs.
    pub fn split_rets(&mut self, hits: u64) {
        let [session, _, returned, ret, _] = &mut self.runs;
        let both = if session.count > 0 { session } else { returned };
        let nanoseconds = ratio(real(both.nanoseconds), real(both.count));
        let count = hits.min(both.count);
        *ret = Runs {
            count,
            nanoseconds: whole(real(count) * nanoseconds),
        };
        *both = both.since(*ret);
    }

    /// Estimates a window where there are no statistics.
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

/// Shares of probe hits at instructions that the kernel single-steps, from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SlowShares {
    /// Share of the entries of functions that allocate.
    pub allocations: f64,
    /// Share of the entries of functions that free.
    pub frees: f64,
}

/// Sum of the cost of a trace.
#[derive(Debug, Default)]
pub struct Account {
    traps: Traps,
    slow: SlowShares,
    /// The latest first.
    windows: VecDeque<Window>,
    spent: Spent,
    /// Count of entries at the last update.
    counted: u64,
    /// Entries counted since then that no window with entries covers yet.
    waiting: f64,
}

impl Account {
    pub fn new(traps: Traps) -> Self {
        Self {
            traps,
            ..Self::default()
        }
    }

    /// Sets the share of hits that are single-stepped, and their cost in nanoseconds if it is known.
    pub fn set_slow(&mut self, slow: SlowShares, stepped: Option<f64>) {
        self.slow = slow;
        self.traps.stepped = stepped.or(self.traps.stepped);
    }

    pub fn set_traps(&mut self, traps: Traps) {
        self.traps = traps;
    }

    pub fn traps(&self) -> Traps {
        self.traps
    }

    /// Returns whether there is a window since the last [`Self::forget`].
    pub fn is_known(&self) -> bool {
        !self.windows.is_empty()
    }

    /// Adds a window that has just ended; later costs are extrapolated from it.
    pub fn see(&mut self, window: Window) {
        self.windows.push_front(window);
        self.windows.truncate(WINDOWS);
    }

    /// Discards the windows, when programs will behave differently.
    pub fn forget(&mut self) {
        self.windows.clear();
    }

    /// Brings the sum up to date, given the total count of entries and the trace's time in seconds. Without a
    /// window, all of it is deferred.
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
        // A session program runs at entries and returns: its runs beyond the remaining entries are returns.
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

    /// Runs of each program per entry; `None` if no window has an entry.
    fn per_entry(&self) -> Option<[f64; ProbeProgram::ALL.len()]> {
        // The latest window is the most representative one, if it has enough entries.
        let last = self.windows.front().filter(|window| window.entries >= ENOUGH);
        let used: Vec<_> = match last {
            Some(last) => vec![last],
            None => self.windows.iter().collect(),
        };
        let entries: u64 = used.iter().map(|window| window.entries).sum();
        let runs = |number: usize| used.iter().map(|window| window.runs[number].count).sum::<u64>();
        (entries > 0).then(|| std::array::from_fn(|number| ratio(real(runs(number)), real(entries))))
    }

    pub fn spent(&self) -> &Spent {
        &self.spent
    }
}

/// Nanoseconds per run of a program, without the cost of the statistics themselves.
///
/// Time during which a program is interrupted is counted as well. So this is the median of the windows'
/// means: most windows are too short for an interruption.
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
