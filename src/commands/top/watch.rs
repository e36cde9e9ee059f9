//! Memory of each process over a sliding window, and its growth. Pure.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use leak_report::model::leak::theil_sen::Interval;

use super::read::{Anonymous, Reading};
use crate::process::select::Found;

/// Maximum number of processes that are watched: those with most memory. Each takes about 2 KiB.
const MAX_PROCESSES: usize = 16384;
/// Number of points in a window. The work per process grows with its square.
pub(super) const POINTS: u32 = 60;
/// Maximum number of points, if they come a little closer than planned.
const MAX_POINTS: usize = 80;

/// All processes that are watched.
#[derive(Debug)]
pub(super) struct Watch {
    window: Duration,
    courses: HashMap<u32, Course>,
    /// Processes beyond the maximum number.
    pub(super) left_out: usize,
}

/// A process, and its memory over the window.
#[derive(Clone, Debug)]
pub(super) struct Course {
    pub(super) process: Found,
    pub(super) user: u32,
    pub(super) memory: Anonymous,
    points: VecDeque<Point>,
}

/// Bytes of anonymous memory at a time since the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    at: Duration,
    bytes: u64,
}

impl Watch {
    /// Creates a watch with a window of this length.
    pub(super) fn new(window: Duration) -> Self {
        Self {
            window,
            courses: HashMap::new(),
            left_out: 0,
        }
    }

    /// Adds the readings of all processes at one time. Processes without a reading have ended, and are
    /// dropped. The history of a process restarts if another one has its pid now, or if it has executed
    /// another program.
    pub(super) fn take(&mut self, at: Duration, mut readings: Vec<Reading>) {
        self.left_out = readings.len().saturating_sub(MAX_PROCESSES);
        if self.left_out > 0 {
            readings.sort_by_key(|reading| std::cmp::Reverse(reading.memory.bytes()));
            readings.truncate(MAX_PROCESSES);
        }
        let mut before = std::mem::take(&mut self.courses);
        for reading in readings {
            let Reading {
                process,
                user,
                memory,
            } = reading;
            let known = before.remove(&process.pid).filter(|known| {
                let Found {
                    start_time,
                    start_code,
                    ..
                } = known.process;
                (start_time, start_code) == (process.start_time, process.start_code)
            });
            let points = known.map(|known| known.points).unwrap_or_default();
            let mut course = Course {
                process,
                user,
                memory,
                points,
            };
            course.add(at, self.window);
            self.courses.insert(course.process.pid, course);
        }
    }

    pub(super) fn courses(&self) -> impl Iterator<Item = &Course> {
        self.courses.values()
    }
}

impl Course {
    fn add(&mut self, at: Duration, window: Duration) {
        let distance = window / POINTS;
        // Replaces the newest point while it is too close to the one before.
        let newest = self.points.iter().rev().map(|point| point.at);
        let is_close = newest
            .clone()
            .zip(newest.skip(1))
            .next()
            .is_some_and(|(last, before)| last.saturating_sub(before) < distance * 3 / 4);
        if is_close {
            self.points.pop_back();
        }
        let bytes = self.memory.bytes();
        self.points.push_back(Point { at, bytes });
        let oldest = at.saturating_sub(window + distance / 2);
        while self.points.len() > MAX_POINTS || self.points.front().is_some_and(|point| point.at < oldest) {
            self.points.pop_front();
        }
    }

    /// Number of points that growth is judged by.
    pub(super) fn samples(&self) -> usize {
        self.points.len()
    }

    /// Time over which growth is judged.
    pub(super) fn span(&self) -> Duration {
        let [first, last] =
            [self.points.front(), self.points.back()].map(|point| point.map(|point| point.at));
        last.unwrap_or_default().saturating_sub(first.unwrap_or_default())
    }

    /// Growth in bytes per minute.
    pub(super) fn growth(&self) -> Interval {
        let points = self.points.iter();
        let points = points.map(|point| (point.at.as_secs_f64() / 60.0, point.bytes as f64));
        Interval::of(&points.collect::<Vec<_>>())
    }

    /// Bytes at the points, oldest first.
    pub(super) fn history(&self) -> Vec<u64> {
        self.points.iter().map(|point| point.bytes).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::commands::top) fn reading(pid: u32, start_time: u64, bytes: u64) -> Reading {
        let process = Found {
            pid,
            start_time,
            start_code: 7,
            comm: format!("process{pid}"),
            reasons: Vec::new(),
        };
        let memory = Anonymous {
            resident: bytes / 2,
            swapped: bytes - bytes / 2,
        };
        Reading {
            process,
            user: 0,
            memory,
        }
    }

    fn second(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    /// A process that was replaced, or has executed another program, restarts its history; one that ended is
    /// dropped.
    #[test]
    fn replaced_processes_begin_anew() {
        let mut watch = Watch::new(second(60));
        for at in 0..20 {
            watch.take(
                second(at),
                vec![reading(1, 5, at * 1000), reading(2, 5, at * 1000)],
            );
        }
        let of = |watch: &Watch, pid| watch.courses.get(&pid).map(Course::samples);
        assert_eq!((of(&watch, 1), of(&watch, 2)), (Some(20), Some(20)));
        let mut executed = reading(2, 5, 0);
        executed.process.start_code = 8;
        watch.take(second(20), vec![reading(1, 6, 0), executed]);
        assert_eq!((of(&watch, 1), of(&watch, 2)), (Some(1), Some(1)));
        watch.take(second(21), vec![reading(1, 6, 0)]);
        assert_eq!((of(&watch, 1), of(&watch, 2)), (Some(2), None));
    }

    /// The number of points in a window and the time they cover are bounded, however often samples come, and
    /// a constant rate is found exactly.
    #[test]
    fn windows_are_bounded() {
        for (window, interval) in [(60, 1), (600, 1), (3600, 1), (60, 7), (60, 60)] {
            let mut watch = Watch::new(second(window));
            for at in (0..7200).step_by(interval) {
                watch.take(second(at), vec![reading(1, 5, at * 1000)]);
            }
            let course = &watch.courses[&1];
            assert!(
                course.samples() <= MAX_POINTS,
                "{window} {interval}: {}",
                course.samples()
            );
            let reach = course.span().as_secs();
            let expected = window - window % interval as u64;
            assert!(
                reach + window / 60 >= expected && reach <= window + window / 60,
                "{window} {interval}: {reach}"
            );
            let growth = course.growth();
            assert!((growth.slope - 60_000.0).abs() < 1e-3, "{growth:?}");
            assert_eq!(growth.low > 59_999.0, course.samples() >= Interval::MIN_POINTS);
        }
    }

    /// The smallest of too many processes are left out, and counted.
    #[test]
    fn very_many_processes() {
        let mut watch = Watch::new(second(60));
        let all = (0..MAX_PROCESSES + 3).map(|pid| u32::try_from(pid).expect("small"));
        watch.take(second(0), all.map(|pid| reading(pid, 1, pid.into())).collect());
        assert_eq!((watch.left_out, watch.courses.len()), (3, MAX_PROCESSES));
        assert!((0..3).all(|pid| !watch.courses.contains_key(&pid)));
    }
}
