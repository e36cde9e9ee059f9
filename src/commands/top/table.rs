//! The processes as rows, those with certain growth first, and their numbers in words.

use std::cmp::Reverse;
use std::time::Duration;

use leak_report::model::leak::theil_sen::Interval;
use leak_report::render::signed;

use super::read::{Anonymous, Machine};
use crate::process::select::MemoryLimit;

/// Time beyond which no limit is shown: it would be a guess about years.
const MAX_TIME: Duration = Duration::from_secs(3 * 365 * 24 * 3600);

/// Tendency of a process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trend {
    /// Too few samples.
    Early,
    /// The confidence interval of growth contains 0.
    None,
    Grows,
    Shrinks,
}

impl Trend {
    /// Stable name, in JSON.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Early => "early",
            Self::None => "none",
            Self::Grows => "grows",
            Self::Shrinks => "shrinks",
        }
    }
}

/// Time until a limit is reached if growth goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) after: Duration,
    /// The cgroup's; `None` for the machine's memory and swap.
    pub(super) limit: Option<MemoryLimit>,
}

impl Full {
    /// The limit that is reached first at `bytes_per_minute`; `None` if that is far away.
    pub(super) fn at(bytes_per_minute: f64, machine: &Machine, limit: Option<MemoryLimit>) -> Option<Self> {
        let after = |room: u64| {
            let seconds = room as f64 / bytes_per_minute * 60.0;
            let after = Duration::try_from_secs_f64(seconds).ok();
            after.filter(|after| *after < MAX_TIME)
        };
        let of_machine = after(machine.available.saturating_add(machine.swap_free));
        let of_machine = of_machine.map(|after| Self { after, limit: None });
        let of_cgroup = limit.and_then(|limit| {
            let after = after(limit.room)?;
            let limit = Some(limit);
            Some(Self { after, limit })
        });
        [of_cgroup, of_machine]
            .into_iter()
            .flatten()
            .min_by_key(|full| full.after)
    }

    pub(super) fn time_in_words(&self) -> String {
        time_in_words(self.after)
    }

    /// Kind of the limit: a cgroup's, or the machine's.
    pub(super) fn what(&self) -> &'static str {
        match self.limit {
            Some(_) => "cgroup",
            None => "machine",
        }
    }
}

/// A process.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) pid: u32,
    /// In clock ticks since boot.
    pub(super) start_time: u64,
    pub(super) comm: String,
    pub(super) uid: u32,
    /// `None` if no user has this ID.
    pub(super) user: Option<String>,
    pub(super) memory: Anonymous,
    /// Number of samples that growth is judged by.
    pub(super) samples: usize,
    /// Time from the first to the last of these samples.
    pub(super) span: Duration,
    /// In bytes per minute.
    pub(super) growth: Interval,
    /// Bytes at the samples, oldest first.
    pub(super) history: Vec<u64>,
    /// `None` if the process does not grow, or no limit is near.
    pub(super) full: Option<Full>,
}

impl Row {
    pub(super) fn trend(&self) -> Trend {
        let Interval { low, high, .. } = self.growth;
        match self.samples < Interval::MIN_POINTS {
            true => Trend::Early,
            false if low > 0.0 => Trend::Grows,
            false if high < 0.0 => Trend::Shrinks,
            false => Trend::None,
        }
    }

    /// Certain growth in bytes per minute: the limit of the confidence interval that is nearer to 0; negative
    /// if the process shrinks.
    fn certain(&self) -> f64 {
        match self.trend() {
            Trend::Grows => self.growth.low,
            Trend::Shrinks => self.growth.high,
            Trend::Early | Trend::None => 0.0,
        }
    }

    pub(super) fn user_name(&self) -> String {
        self.user.clone().unwrap_or_else(|| self.uid.to_string())
    }

    /// Share of the machine's memory, in percent.
    pub(super) fn share(&self, machine: &Machine) -> f64 {
        match machine.total {
            0 => 0.0,
            total => 100.0 * self.memory.resident as f64 / total as f64,
        }
    }

    /// Growth per minute in words.
    pub(super) fn growth_in_words(&self) -> String {
        match self.trend() {
            Trend::Early => "-".to_owned(),
            Trend::None => "no trend".to_owned(),
            Trend::Grows | Trend::Shrinks => signed(self.growth.slope),
        }
    }

    /// Limits of growth per minute in words.
    pub(super) fn limits_in_words(&self) -> String {
        let Interval { low, high, .. } = self.growth;
        match (self.trend(), low.is_finite() && high.is_finite()) {
            (Trend::Early, _) => format!("{} of {} samples", self.samples, Interval::MIN_POINTS),
            (_, false) => "not certain".to_owned(),
            (_, true)
                if self
                    .history
                    .iter()
                    .all(|bytes| Some(bytes) == self.history.first()) =>
            {
                "constant".to_owned()
            }
            (_, true) => between(&signed(low), &signed(high)),
        }
    }

    /// Time until a limit in words; empty if none is near.
    pub(super) fn full_in_words(&self) -> String {
        let words = self
            .full
            .as_ref()
            .map(|full| format!("{} {}", full.time_in_words(), full.what()));
        words.unwrap_or_default()
    }
}

/// Range of two amounts; a common unit is written once.
fn between(low: &str, high: &str) -> String {
    match (low.split_once(' '), high.split_once(' ')) {
        (Some((number, unit)), Some((_, other))) if unit == other => format!("{number} … {high}"),
        _ => format!("{low} … {high}"),
    }
}

/// A time in one unit, rounded down.
fn time_in_words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86400),
    }
}

/// All processes at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Table {
    /// Time since the first sample.
    pub(super) elapsed: Duration,
    /// Time between two samples.
    pub(super) interval: Duration,
    /// Maximum time over which growth is judged.
    pub(super) window: Duration,
    pub(super) machine: Machine,
    /// Sorted by certain growth.
    pub(super) rows: Vec<Row>,
    /// Processes beyond the maximum number.
    pub(super) left_out: usize,
    /// True if `/proc` does not show other users' processes.
    pub(super) hides_processes: bool,
}

impl Table {
    /// Sorts by certain growth, then by memory, both descending.
    pub(super) fn sort(&mut self) {
        self.rows.sort_by(|a, b| {
            let by_growth = b.certain().total_cmp(&a.certain());
            by_growth
                .then_with(|| (Reverse(a.memory.bytes()), a.pid).cmp(&(Reverse(b.memory.bytes()), b.pid)))
        });
    }

    /// Number of processes with a trend.
    pub(super) fn count(&self, trend: Trend) -> usize {
        self.rows.iter().filter(|row| row.trend() == trend).count()
    }

    /// Numbers of processes by their trend, in words.
    pub(super) fn counts(&self) -> String {
        let [grow, shrink, none, early] =
            [Trend::Grows, Trend::Shrinks, Trend::None, Trend::Early].map(|trend| self.count(trend));
        let early = match early {
            0 => String::new(),
            early => format!(", {early} too new"),
        };
        format!("{grow} growing, {shrink} shrinking, {none} without a trend{early}")
    }

    /// Notes about processes that are not shown.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.hides_processes {
            notes.push(
                "/proc hides the processes of other users (hidepid): only your own are shown; try sudo"
                    .to_owned(),
            );
        }
        if self.left_out > 0 {
            notes.push(format!(
                "{} processes with less memory than these are not watched",
                self.left_out
            ));
        }
        notes
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::commands::top) fn row(pid: u32, bytes: u64, low: f64, high: f64) -> Row {
        Row {
            pid,
            start_time: 1,
            comm: format!("process{pid}"),
            uid: 0,
            user: Some("root".to_owned()),
            memory: Anonymous {
                resident: bytes,
                swapped: 0,
            },
            samples: 20,
            span: Duration::from_secs(19),
            growth: Interval {
                slope: f64::midpoint(low, high),
                low,
                high,
            },
            history: vec![1, 2],
            full: None,
        }
    }

    /// Certain growth comes first, whatever the estimate; then processes without a trend, by size; shrinking
    /// ones come last.
    #[test]
    fn order() {
        let early = Row {
            samples: 3,
            ..row(6, 1 << 30, f64::NEG_INFINITY, f64::INFINITY)
        };
        let mut table = Table {
            rows: vec![
                row(1, 10, -5.0, -3.0),
                row(2, 500, -1e9, 9e9),
                row(3, 10, 5.0, 900.0),
                row(4, 20, 50.0, 60.0),
                row(5, 9000, -1.0, 0.0),
                early,
            ],
            ..Table::default()
        };
        table.sort();
        let order: Vec<_> = table.rows.iter().map(|row| row.pid).collect();
        assert_eq!(order, [4, 3, 6, 5, 2, 1]);
        assert_eq!(
            table.counts(),
            "2 growing, 1 shrinking, 2 without a trend, 1 too new"
        );
        let words: Vec<_> = table
            .rows
            .iter()
            .map(|row| (row.growth_in_words(), row.limits_in_words()))
            .collect();
        let words: Vec<_> = words
            .iter()
            .map(|(growth, limits)| (growth.as_str(), limits.as_str()))
            .collect();
        let expected = [
            ("+55.0 B", "+50.0 … +60.0 B"),
            ("+452.5 B", "+5.0 … +900.0 B"),
            ("-", "3 of 10 samples"),
            ("no trend", "-1.0 … +0.0 B"),
            ("no trend", "-953.7 MiB … +8.4 GiB"),
            ("-4.0 B", "-5.0 … -3.0 B"),
        ];
        assert_eq!(words, expected);
    }

    /// The limit that is reached first counts; a limit that is years away does not.
    #[test]
    fn times_until_limits() {
        let machine = Machine {
            total: 1 << 30,
            available: 500 << 20,
            swap_free: 100 << 20,
        };
        let limit = |room| {
            Some(MemoryLimit {
                cgroup: "/a".to_owned(),
                limit: 1 << 40,
                room,
            })
        };
        let mebibyte = f64::from(1 << 20);
        for (rate, limit, expected) in [
            (mebibyte, None, "10 h machine"),
            (mebibyte, limit(30 << 20), "30 min cgroup"),
            (mebibyte, limit(0), "0 s cgroup"),
            (mebibyte, limit(1 << 40), "10 h machine"),
            (1.0, limit(1 << 20), "728 d cgroup"),
            (0.001, None, ""),
        ] {
            let full = Full::at(rate, &machine, limit);
            let row = Row {
                full,
                ..row(1, 1, 1.0, 1.0)
            };
            assert_eq!(row.full_in_words(), expected, "{rate}");
        }
    }
}
