//! Axes of the measurement and their points.

use std::fmt;

/// Work for the target, without the number of pairs.
#[derive(Clone, Copy)]
pub(crate) struct Point {
    mode: &'static str,
    pub(crate) stacks: u32,
    pub(crate) threads: u32,
    pub(crate) live: u32,
    /// Value on the axis: `stacks`, `threads` or `live`, whichever it varies.
    varied: u32,
}

impl Point {
    /// Returns the target's command (see target.c).
    pub(crate) fn command(&self, pairs: u32) -> String {
        let number = if self.live > 0 { self.live } else { self.threads };
        format!("{} {} {number} {pairs}", self.mode, self.stacks)
    }

    /// Returns the command that makes a pair from each stack, after which all are known.
    pub(crate) fn visit_all(&self) -> String {
        format!("visit {0} 1 {0}", self.stacks)
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.varied.fmt(f)
    }
}

/// A quantity that is varied, and its values.
pub(crate) struct Axis {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    whole: &'static [u32],
    quick: &'static [u32],
    point: fn(u32) -> Point,
}

impl Axis {
    pub(crate) fn points(&self, whole: bool) -> Vec<Point> {
        let numbers = if whole { self.whole } else { self.quick };
        numbers.iter().map(|&number| (self.point)(number)).collect()
    }
}

/// Number of stacks on axes that do not vary it.
const SOME_STACKS: u32 = 100;

pub(crate) const AXES: [Axis; 4] = [RESTING, LIVE, STACKS, THREADS];

const RESTING: Axis = Axis {
    name: "resting",
    title: "live blocks, which rest while others come and go",
    whole: &[10_000, 100_000, 1_000_000, 10_000_000],
    quick: &[20_000],
    point: |live| Point {
        mode: "rest",
        stacks: SOME_STACKS,
        threads: 1,
        live,
        varied: live,
    },
};

const LIVE: Axis = Axis {
    name: "live",
    title: "live blocks, one of which is replaced at random",
    whole: &[10_000, 100_000, 1_000_000, 10_000_000],
    quick: &[20_000],
    point: |live| Point {
        mode: "replace",
        stacks: SOME_STACKS,
        threads: 1,
        live,
        varied: live,
    },
};

const STACKS: Axis = Axis {
    name: "stacks",
    title: "distinct stacks, one of which is chosen at random",
    whole: &[10, 100, 1_000, 10_000, 50_000],
    quick: &[2_000],
    point: |stacks| Point {
        mode: "pair",
        stacks,
        threads: 1,
        live: 0,
        varied: stacks,
    },
};

const THREADS: Axis = Axis {
    name: "threads",
    title: "threads",
    whole: &[1, 2, 4, 16, 64],
    quick: &[16],
    point: |threads| Point {
        mode: "pair",
        stacks: SOME_STACKS,
        threads,
        live: 0,
        varied: threads,
    },
};
