//! Ratios of costs, and the limits that they are held to.

use std::fmt;

use crate::target::{FRAME_POINTERS, PLAIN, Stacks};
use crate::tracings::Tracing;

/// Ratio of the costs of two ways on one load, and its limit.
pub(crate) struct Ratio {
    pub(crate) over: Tracing,
    pub(crate) under: Tracing,
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

const fn upper_limit(limit: f64, over: Tracing, under: Tracing, stacks: Stacks, depth: u32) -> Ratio {
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
    upper_limit(1.14, Tracing::Dwarf, Tracing::NoWalk, Stacks::Hot, 10),
    upper_limit(1.17, Tracing::Dwarf, Tracing::NoWalk, Stacks::Hot, 40),
    upper_limit(1.22, Tracing::Dwarf, Tracing::NoWalk, Stacks::Varied, 10),
    upper_limit(1.44, Tracing::Dwarf, Tracing::NoWalk, Stacks::Varied, 40),
    upper_limit(1.33, Tracing::Dwarf, Tracing::NoWalk, Stacks::Distinct, 10),
    upper_limit(1.77, Tracing::Dwarf, Tracing::NoWalk, Stacks::Distinct, 40),
    with_frame_pointers(upper_limit(
        0.65,
        Tracing::Dwarf,
        Tracing::Kernel,
        Stacks::Hot,
        10,
    )),
    with_frame_pointers(upper_limit(
        0.55,
        Tracing::Dwarf,
        Tracing::Kernel,
        Stacks::Hot,
        40,
    )),
    with_frame_pointers(upper_limit(0.65, Tracing::Fp, Tracing::Kernel, Stacks::Hot, 10)),
    with_frame_pointers(upper_limit(0.65, Tracing::Fp, Tracing::Kernel, Stacks::Hot, 40)),
    upper_limit(1.15, Tracing::NoWalk, Tracing::Bare, Stacks::Hot, 10),
    upper_limit(1.35, Tracing::Dwarf, Tracing::Bare, Stacks::Hot, 10),
    upper_limit(1.40, Tracing::Dwarf, Tracing::Bare, Stacks::Hot, 40),
    upper_limit(1.15, Tracing::Filtered, Tracing::BareEntries, Stacks::Hot, 10),
    upper_limit(1.15, Tracing::Unsampled, Tracing::BareEntries, Stacks::Hot, 10),
    Ratio {
        limit: Limit::AtLeast(5.0),
        ..upper_limit(0.0, Tracing::FirstInstructions, Tracing::Dwarf, Stacks::Hot, 10)
    },
];

impl Ratio {
    /// Compares the measured ratio with its limit, which it may exceed by the factor `leeway`.
    pub(crate) fn judge(&self, measured: Spread, leeway: f64) -> Verdict {
        let (sign, number, is_beyond) = match self.limit {
            Limit::AtMost(limit) => ("<=", limit, measured.median > limit * leeway),
            Limit::AtLeast(limit) => (">=", limit, measured.median < limit / leeway),
        };
        let description = format!(
            "{} / {}, {} {}",
            self.over.name(),
            self.under.name(),
            self.stacks.name(),
            self.depth
        );
        Verdict {
            measured: format!("{measured:.2}   {sign} {number:.2}"),
            description,
            is_beyond,
        }
    }
}

/// A ratio as it was measured.
pub(crate) struct Verdict {
    pub(crate) description: String,
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
        write!(f, "  {:<52} {}  {verdict}", self.description, self.measured)
    }
}

/// A median and the range that it is the median of.
pub(crate) struct Spread {
    min: f64,
    median: f64,
    max: f64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |index: usize| values.get(index).copied().unwrap_or(f64::NAN);
        Self {
            min: at(0),
            median: at(values.len() / 2),
            max: at(values.len().saturating_sub(1)),
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
            self.median, self.min, self.max
        )
    }
}
