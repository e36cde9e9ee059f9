//! The governor: adapts the sampling interval so that the cost stays under a limit.
//!
//! The cost falls as the interval grows, at most in proportion, down to the cost of the probes themselves. So
//! a step by the factor by which the cost is too large never overshoots, and the steps converge. The interval
//! grows at once, by the whole factor; it shrinks only after the cost was well under the limit for a second,
//! and slowly.

use super::{real, whole};
use leak_report::model::Sampling;

/// Target of a change, as a share of the limit; from `LOW` of the limit on, the interval does not shrink.
const AIM: f64 = 0.9;
const LOW: f64 = 0.75;
/// Maximum factors of one step.
const MAX_UP: f64 = 8.0;
const MAX_DOWN: f64 = 1.5;
/// Share recorded above which intervals are far below the sizes of blocks, so that small steps would change
/// nothing.
const NEARLY_ALL: f64 = 0.9;
const UP_FROM_ALL: f64 = 4.0;
/// Consecutive measurements before the interval shrinks, or before the floor is reported.
pub(super) const PATIENCE: u32 = 4;
/// Smallest interval that has an effect: with any below, allocations of 16 bytes and more are nearly all
/// recorded.
const FIRST: f64 = 16.0;
/// Share recorded below which the cost of recording is not what exceeds the limit.
const FEW: f64 = 1.0 / 64.0;

/// Measurements since the last decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measurement {
    /// Share of one CPU that tracing took.
    pub share: f64,
    /// Share of the allocations that were recorded, from 0 to 1.
    pub recorded: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// The new interval, in bytes.
    pub distance: u64,
    /// Share of one CPU that tracing takes at least, if it exceeds the limit. Set once.
    pub floor: Option<f64>,
}

/// Keeps the cost under a limit.
#[derive(Clone, Debug)]
pub struct Governor {
    limit: f64,
    min_distance: f64,
    distance: f64,
    /// Consecutive measurements well under the limit.
    calm: u32,
    floor: Floor,
}

/// Consecutive measurements above the limit at which a larger interval would not help.
#[derive(Clone, Debug, Default)]
pub(super) struct Floor {
    measurements: u32,
    is_known: bool,
}

impl Floor {
    /// Counts one more, and returns its share once there are enough of them, for the first time only.
    pub(super) fn next(&mut self, share: f64) -> Option<f64> {
        self.measurements += 1;
        let is_new = self.measurements >= PATIENCE && !self.is_known;
        self.is_known |= is_new;
        is_new.then_some(share)
    }

    /// Begins to count anew.
    pub(super) fn end(&mut self) {
        self.measurements = 0;
    }
}

impl Governor {
    /// Creates a governor for `limit`, a share of one CPU. Intervals are at least `min_distance`, which is
    /// the first.
    pub fn new(limit: f64, min_distance: u64) -> Self {
        let min_distance = real(min_distance.clamp(1, Sampling::MAX_BYTES));
        Self {
            limit,
            min_distance,
            distance: min_distance,
            calm: 0,
            floor: Floor::default(),
        }
    }

    /// Decides after a measurement. To be called about four times a second.
    pub fn decide(&mut self, measurement: Measurement) -> Decision {
        let Measurement { share, recorded } = measurement;
        let mut floor = None;
        self.calm = if share < LOW * self.limit {
            self.calm + 1
        } else {
            0
        };
        if share > self.limit && recorded >= FEW {
            self.floor.end();
            let factor = share / (AIM * self.limit);
            let factor = factor.max(if recorded > NEARLY_ALL { UP_FROM_ALL } else { 1.0 });
            let factor = factor.min(MAX_UP);
            let max = real(Sampling::MAX_BYTES);
            self.distance = (self.distance.max(FIRST) * factor).min(max);
        } else if share > self.limit {
            floor = self.floor.next(share);
        } else {
            self.floor.end();
            if self.calm >= PATIENCE {
                self.calm = 0;
                self.go_down(measurement);
            }
        }
        Decision {
            distance: whole(self.distance),
            floor,
        }
    }

    fn go_down(&mut self, Measurement { share, recorded }: Measurement) {
        let factor = match share > 0.0 {
            true => (AIM * self.limit / share).min(MAX_DOWN),
            false => MAX_DOWN,
        };
        let distance = (self.distance / factor).max(self.min_distance);
        // For small blocks, the step to an interval of 1 is large; the current cost predicts what it leads
        // to.
        let is_all = whole(distance) == 1;
        self.distance = if is_all && share > recorded * self.limit {
            2.0
        } else {
            distance
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target with `rate` allocations per second, all of `size` bytes, each of which costs `probe`
    /// nanoseconds, and `record` more if it is recorded.
    #[derive(Clone, Copy)]
    struct Plant {
        rate: f64,
        size: f64,
        probe: f64,
        record: f64,
    }

    impl Plant {
        fn measurement(&self, distance: u64) -> Measurement {
            let recorded = match distance {
                0 | 1 => 1.0,
                more => -(-self.size / real(more)).exp_m1(),
            };
            let share = self.rate * (self.probe + recorded * self.record) / 1e9;
            Measurement { share, recorded }
        }
    }

    const SMALL: Plant = Plant {
        rate: 20_000.0,
        size: 64.0,
        probe: 1300.0,
        record: 3000.0,
    };

    /// Measurements and decisions during `seconds`.
    fn run(
        governor: &mut Governor,
        seconds: usize,
        plant: impl Fn(usize) -> Plant,
    ) -> Vec<(Measurement, Decision)> {
        let mut distance = whole(governor.distance);
        (0..4 * seconds)
            .map(|number| {
                let measurement = plant(number).measurement(distance);
                let decision = governor.decide(measurement);
                distance = decision.distance;
                (measurement, decision)
            })
            .collect()
    }

    /// A limit that can be kept is kept within four seconds, whatever the size of blocks, and some seconds
    /// later the interval no longer changes.
    #[test]
    fn interval_settles_under_the_limit() {
        for size in [1.0, 64.0, 4096.0, 1e6] {
            for limit in [0.03, 0.05, 0.08] {
                let mut governor = Governor::new(limit, 1);
                let measurements = run(&mut governor, 20, |_| Plant { size, ..SMALL });
                let settled = &measurements[16..];
                let over = settled
                    .iter()
                    .filter(|(measurement, _)| measurement.share > limit)
                    .count();
                assert_eq!(over, 0, "{size}, {limit}");
                let last = measurements[79].1.distance;
                let changes = measurements[40..]
                    .iter()
                    .filter(|(_, then)| then.distance != last)
                    .count();
                assert_eq!(changes, 0, "{size}, {limit}");
            }
        }
    }

    /// The cost that the interval converges to is near the limit.
    #[test]
    fn cost_settles_near_the_limit() {
        let mut governor = Governor::new(0.05, 1);
        let measurements = run(&mut governor, 20, |_| SMALL);
        let last = measurements[79].0;
        assert!(last.share > LOW * 0.05, "{last:?}");
    }

    /// Every allocation stays recorded while that costs less than the limit.
    #[test]
    fn all_is_recorded_while_cost_is_low() {
        let mut governor = Governor::new(0.1, 1);
        let measurements = run(&mut governor, 60, |_| SMALL);
        assert!(measurements.iter().all(|(_, decision)| decision.distance == 1));
        let mut governor = Governor::new(0.1, 512);
        let measurements = run(&mut governor, 60, |_| SMALL);
        assert!(measurements.iter().all(|(_, decision)| decision.distance == 512));
    }

    /// A rate that rises by a factor of 100 is answered within two seconds; after it falls, everything is
    /// recorded again within a minute, without exceeding the limit on the way.
    #[test]
    fn interval_follows_a_change_of_rate() {
        let plant = |number: usize| Plant {
            rate: if (40..80).contains(&number) {
                50_000.0
            } else {
                500.0
            },
            ..SMALL
        };
        let mut governor = Governor::new(0.1, 1);
        let measurements = run(&mut governor, 90, plant);
        assert!(
            measurements[..40]
                .iter()
                .all(|(_, decision)| decision.distance == 1)
        );
        assert!(
            measurements[48..80]
                .iter()
                .all(|(measurement, _)| measurement.share <= 0.1),
            "{measurements:?}"
        );
        assert!(
            measurements[80..]
                .iter()
                .all(|(measurement, _)| measurement.share <= 0.1)
        );
        assert!(
            measurements[320..]
                .iter()
                .all(|(_, decision)| decision.distance == 1)
        );
        // The interval shrinks in small steps.
        for pair in measurements[80..].windows(2) {
            let (before, after) = (real(pair[0].1.distance), real(pair[1].1.distance));
            assert!(after >= before / MAX_DOWN - 1.0, "{before} to {after}");
        }
    }

    /// Noise of 20 % does not make the interval oscillate: it stays within a factor of 3.
    #[test]
    fn noise_does_not_change_the_interval_much() {
        let mut governor = Governor::new(0.05, 1);
        let mut distance = 1;
        let mut seen = Vec::new();
        let mut random = 1_u32;
        for _ in 0..400 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let noise = 0.8 + 0.4 * f64::from(random >> 16) / 65536.0;
            let measurement = SMALL.measurement(distance);
            let share = measurement.share * noise;
            distance = governor.decide(Measurement { share, ..measurement }).distance;
            seen.push(distance);
        }
        let (min, max) = (seen[40..].iter().min(), seen[40..].iter().max());
        let (min, max) = (*min.expect("looks"), *max.expect("looks"));
        assert!(max <= 3 * min, "{min} to {max}");
    }

    /// If the probes alone exceed the limit, that is reported once, with the figure, and the interval does
    /// not grow without bound.
    #[test]
    fn unreachable_limits_are_reported_once() {
        let mut governor = Governor::new(0.01, 1);
        let measurements = run(&mut governor, 30, |_| SMALL);
        let floors: Vec<_> = measurements
            .iter()
            .filter_map(|(_, decision)| decision.floor)
            .collect();
        let [floor] = floors[..] else { panic!("{floors:?}") };
        assert!((0.026..0.027).contains(&floor), "{floor}");
        let last = measurements[119].1.distance;
        assert!(last < 128 * 64 * 8, "{last}");
    }

    /// An idle target changes nothing.
    #[test]
    fn idle() {
        let mut governor = Governor::new(0.01, 1);
        let measurements = run(&mut governor, 10, |_| Plant { rate: 0.0, ..SMALL });
        assert!(measurements.iter().all(|(_, decision)| *decision
            == Decision {
                distance: 1,
                floor: None
            }));
    }
}
