//! Ratios of costs, and the limits that they are held to.

use std::fmt;

use crate::target::{FRAME_POINTERS, PLAIN, Stacks};
use crate::ways::Way;

/// Ratio of the costs of two ways on one load, and its limit.
pub(crate) struct Ratio {
    pub(crate) over: Way,
    pub(crate) under: Way,
    pub(crate) build: &'static str,
    pub(crate) stacks: Stacks,
    pub(crate) depth: u32,
    limit: Limit,
}

#[derive(Clone, Copy)]
enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

const fn at_most(limit: f64, over: Way, under: Way, stacks: Stacks, depth: u32) -> Ratio {
    Ratio {
        over,
        under,
        build: PLAIN.name,
        stacks,
        depth,
        limit: Limit::AtMost(limit),
    }
}

const fn with_frame_pointers(ratio: Ratio) -> Ratio {
    Ratio {
        build: FRAME_POINTERS.name,
        ..ratio
    }
}

/// Every ratio that has a limit.
pub(crate) const RATIOS: &[Ratio] = &[
    at_most(1.12, Way::Dwarf, Way::NoWalk, Stacks::Hot, 10),
    at_most(1.15, Way::Dwarf, Way::NoWalk, Stacks::Hot, 40),
    at_most(1.20, Way::Dwarf, Way::NoWalk, Stacks::Varied, 10),
    at_most(1.40, Way::Dwarf, Way::NoWalk, Stacks::Varied, 40),
    at_most(1.30, Way::Dwarf, Way::NoWalk, Stacks::Distinct, 10),
    at_most(1.70, Way::Dwarf, Way::NoWalk, Stacks::Distinct, 40),
    with_frame_pointers(at_most(0.65, Way::Dwarf, Way::Kernel, Stacks::Hot, 10)),
    with_frame_pointers(at_most(0.55, Way::Dwarf, Way::Kernel, Stacks::Hot, 40)),
    with_frame_pointers(at_most(0.65, Way::Fp, Way::Kernel, Stacks::Hot, 10)),
    with_frame_pointers(at_most(0.65, Way::Fp, Way::Kernel, Stacks::Hot, 40)),
    at_most(1.6, Way::Dwarf, Way::Bare, Stacks::Hot, 10),
    at_most(1.6, Way::Dwarf, Way::Bare, Stacks::Hot, 40),
    at_most(1.15, Way::Filtered, Way::BareEntries, Stacks::Hot, 10),
    at_most(1.15, Way::Unsampled, Way::BareEntries, Stacks::Hot, 10),
    Ratio {
        limit: Limit::AtLeast(5.0),
        ..at_most(0.0, Way::FirstInstructions, Way::Dwarf, Stacks::Hot, 10)
    },
];

impl Ratio {
    /// Compares the measured ratio with its limit, which it may exceed by the factor `leeway`.
    pub(crate) fn judge(&self, measured: Spread, leeway: f64) -> Verdict {
        let (sign, number, is_beyond) = match self.limit {
            Limit::AtMost(limit) => ("<=", limit, measured.median > limit * leeway),
            Limit::AtLeast(limit) => (">=", limit, measured.median < limit / leeway),
        };
        let what = format!(
            "{} / {}, {} {}",
            self.over.name(),
            self.under.name(),
            self.stacks.name(),
            self.depth
        );
        Verdict {
            measured: format!("{measured:.2}   {sign} {number:.2}"),
            what,
            is_beyond,
        }
    }
}

/// A ratio as it was measured.
pub(crate) struct Verdict {
    pub(crate) what: String,
    measured: String,
    is_beyond: bool,
}

impl Verdict {
    pub(crate) fn is_beyond(&self) -> bool {
        self.is_beyond
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.is_beyond { "BEYOND" } else { "met" };
        write!(f, "  {:<52} {}  {verdict}", self.what, self.measured)
    }
}

/// A median and the range that it is the median of.
pub(crate) struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Self {
            least: at(0),
            median: at(values.len() / 2),
            most: at(values.len().saturating_sub(1)),
        }
    }

    pub(crate) fn median(&self) -> f64 {
        self.median
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(0);
        write!(
            f,
            "{:7.digits$} [{:5.digits$} .. {:5.digits$}]",
            self.median, self.least, self.most
        )
    }
}
