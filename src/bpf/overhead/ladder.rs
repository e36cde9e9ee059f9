//! Governor for processes that choose and announce blocks by themselves, at one of a few intervals: goes from
//! one interval to the next.
//!
//! The cost falls as the interval grows, at most in proportion. So the interval shrinks only when the cost
//! would stay under the limit even if it rose in proportion.

use super::governor::{Decision, Floor, Measurement, PATIENCE};
use super::real;

/// Share of the limit under which the expected cost of the next smaller interval must stay.
const LOW: f64 = 0.75;
/// Measurements that are not judged after a step: probes of the next interval are attached meanwhile.
const SETTLING: u32 = 2;

/// Keeps the cost under a limit by a choice of intervals.
#[derive(Clone, Debug)]
pub struct Ladder {
    limit: f64,
    /// Intervals that may be used, ascending.
    distances: Vec<u64>,
    current: usize,
    settling: u32,
    /// Consecutive measurements far enough under the limit.
    calm: u32,
    floor: Floor,
}

impl Ladder {
    /// Creates a governor for `limit`, a share of one CPU. It begins with the first of the intervals, which
    /// ascend; there is at least one.
    pub fn new(limit: f64, distances: Vec<u64>) -> Self {
        Self {
            limit,
            distances,
            current: 0,
            settling: 0,
            calm: 0,
            floor: Floor::default(),
        }
    }

    /// Decides after a measurement. To be called about four times a second.
    pub fn decide(&mut self, Measurement { share, .. }: Measurement) -> Decision {
        let mut floor = None;
        if self.settling > 0 {
            self.settling -= 1;
        } else if share > self.limit {
            self.calm = 0;
            if self.current + 1 < self.distances.len() {
                self.step_to(self.current + 1);
            } else {
                floor = self.floor.next(share);
            }
        } else {
            self.floor.end();
            self.calm = match self.share_below(share) {
                Some(expected) if expected < LOW * self.limit => self.calm + 1,
                _ => 0,
            };
            if self.calm >= PATIENCE {
                self.step_to(self.current - 1);
            }
        }
        Decision {
            distance: self.distances[self.current],
            floor,
        }
    }

    /// Maximum cost at the next smaller interval; `None` if there is none.
    fn share_below(&self, share: f64) -> Option<f64> {
        let below = self.distances[self.current.checked_sub(1)?];
        Some(share * real(self.distances[self.current]) / real(below))
    }

    fn step_to(&mut self, next: usize) {
        self.current = next;
        self.settling = SETTLING;
        self.calm = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISTANCES: [u64; 3] = [64 << 10, 512 << 10, 4 << 20];

    fn ladder(limit: f64) -> Ladder {
        Ladder::new(limit, DISTANCES.to_vec())
    }

    /// Decisions during `seconds` for a process whose cost at the smallest interval is `share`.
    fn run(ladder: &mut Ladder, seconds: usize, share: impl Fn(usize) -> f64) -> Vec<Decision> {
        let mut distance = ladder.distances[ladder.current];
        (0..4 * seconds)
            .map(|number| {
                let share = share(number) * real(DISTANCES[0]) / real(distance);
                let decision = ladder.decide(Measurement { share, recorded: 1.0 });
                distance = decision.distance;
                decision
            })
            .collect()
    }

    /// The smallest interval that keeps to the limit is found within two seconds, and stays; noise of a fifth
    /// does not change it.
    #[test]
    fn interval_settles() {
        for (share, settled) in [(0.04, 0), (0.2, 1), (0.39, 1), (1.0, 2), (3.0, 2)] {
            let noise = |number: usize| share * [0.8, 1.0, 1.2, 0.9][number * 7 / 3 % 4];
            let decisions = run(&mut ladder(0.05 * 1.21), 60, noise);
            assert!(
                decisions[8..]
                    .iter()
                    .all(|decision| decision.distance == DISTANCES[settled] && decision.floor.is_none()),
                "{share}: {decisions:?}"
            );
        }
    }

    /// A burst makes the interval larger at once; some seconds after it, the interval is small again.
    #[test]
    fn interval_follows_a_change_of_rate() {
        let mut ladder = ladder(0.05);
        let decisions = run(&mut ladder, 40, |number| {
            if (40..80).contains(&number) { 1.0 } else { 0.001 }
        });
        let at = |number: usize| decisions[number].distance;
        assert_eq!(
            (at(39), at(47), at(79)),
            (DISTANCES[0], DISTANCES[2], DISTANCES[2])
        );
        assert_eq!(at(100), DISTANCES[0]);
    }

    /// If even the largest interval costs too much, that is reported once.
    #[test]
    fn unreachable_limits_are_reported_once() {
        let decisions = run(&mut ladder(0.01), 20, |_| 1.28);
        let floors: Vec<_> = decisions.iter().filter_map(|decision| decision.floor).collect();
        assert_eq!(floors, [0.02]);
        assert_eq!(decisions[79].distance, DISTANCES[2]);
    }
}
