//! Measures of the conditions of `--fail-on`.

use leak_report::model::diagnosis::CauseKind;

use crate::base::condition::{self, ConditionError, Unit};

/// A valid condition.
pub type Condition = condition::Condition<Measure>;

/// Parses a condition.
///
/// # Errors
///
/// Fails with the column of the wrong character, and a remedy.
pub fn parse(text: &str) -> Result<Condition, ConditionError> {
    condition::parse("--fail-on", text)
}

/// Quantity that a condition limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Outstanding bytes.
    Outstanding,
    /// Outstanding blocks.
    Blocks,
    /// Growth rate of the outstanding bytes.
    Growth,
    /// Outstanding bytes of the site with most.
    SiteOutstanding,
    /// Outstanding blocks of the site with most.
    SiteBlocks,
    /// Growth rate of the fastest-growing site.
    SiteGrowth,
    /// Allocated bytes, freed or not.
    Allocated,
    /// Allocated blocks, freed or not.
    Allocations,
    /// Share of allocations that could not be recorded.
    Lost,
    /// Share of allocations without a complete stack.
    Incomplete,
    /// Bytes that are definitely lost.
    DefinitelyLost,
    /// Blocks that are definitely lost.
    DefinitelyLostBlocks,
    /// Definitely lost bytes of the site with most.
    SiteDefinitelyLost,
    /// Definitely lost blocks of the site with most.
    SiteDefinitelyLostBlocks,
    /// Bytes that only lost blocks lead to.
    IndirectlyLost,
    /// Blocks that only lost blocks lead to.
    IndirectlyLostBlocks,
    /// Growth of memory for one cause, by a diagnosis.
    Cause,
    /// Growth of memory for any cause, by a diagnosis.
    Grows,
}

impl Measure {
    /// Returns true if only a diagnosis (`memleak why`) provides this measure.
    pub fn is_of_diagnosis(self) -> bool {
        matches!(self, Self::Cause | Self::Grows)
    }

    /// Returns true if only a verdict on the outstanding blocks provides this measure.
    pub fn is_of_verdict(self) -> bool {
        match self {
            Self::DefinitelyLost
            | Self::DefinitelyLostBlocks
            | Self::SiteDefinitelyLost
            | Self::SiteDefinitelyLostBlocks
            | Self::IndirectlyLost
            | Self::IndirectlyLostBlocks => true,
            Self::Outstanding
            | Self::Blocks
            | Self::Growth
            | Self::SiteOutstanding
            | Self::SiteBlocks
            | Self::SiteGrowth
            | Self::Allocated
            | Self::Allocations
            | Self::Lost
            | Self::Incomplete
            | Self::Cause
            | Self::Grows => false,
        }
    }
}

impl condition::Measure for Measure {
    const ALL: &'static [(&'static str, Self, Unit)] = MEASURES;
}

/// Name, measure and unit.
const MEASURES: &[(&str, Measure, Unit)] = &[
    ("outstanding", Measure::Outstanding, Unit::Bytes),
    ("blocks", Measure::Blocks, Unit::Count),
    ("growth", Measure::Growth, Unit::BytesPerTime),
    ("site.outstanding", Measure::SiteOutstanding, Unit::Bytes),
    ("site.blocks", Measure::SiteBlocks, Unit::Count),
    ("site.growth", Measure::SiteGrowth, Unit::BytesPerTime),
    ("allocated", Measure::Allocated, Unit::Bytes),
    ("allocations", Measure::Allocations, Unit::Count),
    ("lost", Measure::Lost, Unit::Percent),
    ("incomplete", Measure::Incomplete, Unit::Percent),
    ("definitely_lost", Measure::DefinitelyLost, Unit::Bytes),
    (
        "definitely_lost.blocks",
        Measure::DefinitelyLostBlocks,
        Unit::Count,
    ),
    ("site.definitely_lost", Measure::SiteDefinitelyLost, Unit::Bytes),
    (
        "site.definitely_lost.blocks",
        Measure::SiteDefinitelyLostBlocks,
        Unit::Count,
    ),
    ("indirectly_lost", Measure::IndirectlyLost, Unit::Bytes),
    (
        "indirectly_lost.blocks",
        Measure::IndirectlyLostBlocks,
        Unit::Count,
    ),
    ("cause", Measure::Cause, Unit::Name(&CauseKind::NAMES)),
    ("grows", Measure::Grows, Unit::Truth),
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Each condition is exceeded by the second value, and not by the first: bytes, blocks, bytes per second,
    /// percent.
    #[test]
    fn limits() {
        for (text, measure, [outstanding, exceeded]) in [
            (
                "outstanding>1MiB",
                Measure::Outstanding,
                [1_048_576.0, 1_048_577.0],
            ),
            (
                "outstanding>=1M",
                Measure::Outstanding,
                [1_048_575.0, 1_048_576.0],
            ),
            (" outstanding > 1.5 KiB ", Measure::Outstanding, [1536.0, 1537.0]),
            ("outstanding>0", Measure::Outstanding, [0.0, 1.0]),
            ("outstanding>480", Measure::Outstanding, [480.0, 481.0]),
            ("outstanding>.5kib", Measure::Outstanding, [512.0, 513.0]),
            ("outstanding>2.0B", Measure::Outstanding, [2.0, 3.0]),
            ("blocks>=10", Measure::Blocks, [9.0, 10.0]),
            ("growth>60KiB/min", Measure::Growth, [1024.0, 1024.1]),
            ("growth>60KiB/m", Measure::Growth, [1024.0, 1024.1]),
            ("growth > 7 / d", Measure::Growth, [7.0 / 86400.0, 8.0 / 86400.0]),
            ("site.outstanding>4T", Measure::SiteOutstanding, [4e12, 5e12]),
            ("site.blocks>1", Measure::SiteBlocks, [1.0, 2.0]),
            ("site.growth>=1GiB/h", Measure::SiteGrowth, [298_261.0, 298_262.0]),
            ("allocated>1K", Measure::Allocated, [1024.0, 1025.0]),
            ("allocations>1", Measure::Allocations, [1.0, 2.0]),
            ("lost>0%", Measure::Lost, [0.0, 0.0001]),
            ("lost>=0.1%", Measure::Lost, [0.099, 0.1]),
            ("incomplete>12.5%", Measure::Incomplete, [12.5, 12.51]),
            ("definitely_lost>0", Measure::DefinitelyLost, [0.0, 1.0]),
            ("definitely_lost>1KiB", Measure::DefinitelyLost, [1024.0, 1025.0]),
            (
                "definitely_lost.blocks>=2",
                Measure::DefinitelyLostBlocks,
                [1.0, 2.0],
            ),
            ("site.definitely_lost>7", Measure::SiteDefinitelyLost, [7.0, 8.0]),
            (
                "site.definitely_lost.blocks>7",
                Measure::SiteDefinitelyLostBlocks,
                [7.0, 8.0],
            ),
            ("indirectly_lost>0", Measure::IndirectlyLost, [0.0, 1.0]),
            (
                "indirectly_lost.blocks>0",
                Measure::IndirectlyLostBlocks,
                [0.0, 1.0],
            ),
            ("cause=lost", Measure::Cause, [1.0, 0.0]),
            (" cause = managed_heap", Measure::Cause, [10.0, 11.0]),
            ("grows", Measure::Grows, [0.0, 1.0]),
        ] {
            let condition = parse(text).expect(text);
            assert_eq!(condition.measure(), measure, "{text}");
            assert!(!condition.is_exceeded_by(outstanding), "{text}: {outstanding}");
            assert!(condition.is_exceeded_by(exceeded), "{text}: {exceeded}");
            assert_eq!(condition.to_string(), text.trim());
        }
    }

    /// An invalid condition is refused at the wrong character, with a remedy.
    #[test]
    fn errors_point_at_the_place() {
        for (text, column, part) in [
            ("", 1, "expected a measure, one of outstanding, blocks, growth"),
            ("outstandin>1MiB", 1, "unknown measure `outstandin`"),
            (" Outstanding>1", 2, "unknown measure `Outstanding`"),
            ("definitely_lost.blocks>1K", 25, "leave out `K`"),
            ("definitely_lost>1%", 18, "unknown unit of memory `%`"),
            ("site.lost>1%", 1, "unknown measure `site.lost`"),
            ("outstanding", 12, "> or >="),
            ("outstanding<1", 12, "> or >="),
            ("outstanding=>1", 12, "> or >="),
            ("outstanding 1", 13, "> or >="),
            ("outstanding>", 13, "expected a number, as in outstanding>1MiB"),
            ("outstanding>-1", 13, "expected a number"),
            ("outstanding>1.2.3", 13, "expected a number"),
            ("outstanding>.", 13, "expected a number"),
            ("outstanding>1.K", 13, "expected a number"),
            ("outstanding>1.5B", 13, "whole number"),
            ("outstanding>99999999999999999999", 13, "too large"),
            ("outstanding>99999999T", 13, "too large"),
            ("outstanding>1.0000000001K", 13, "too large"),
            (
                "outstanding>1MB",
                14,
                "`MB` is ambiguous (powers of 1000 or of 1024): use M or MiB",
            ),
            ("outstanding>1%", 14, "unknown unit of memory `%`"),
            ("outstanding>1MiB/s", 17, "unexpected `/s`"),
            (
                "outstanding>1MiB, blocks>2 ",
                17,
                "unexpected `, blocks>2`: give each condition",
            ),
            ("blocks>1K", 9, "leave out `K`"),
            ("blocks>1.5", 8, "whole number"),
            ("growth>1KiB", 12, "one of /s, /min, /h, /d"),
            ("growth>1KiB//s", 12, "growth is a rate"),
            (
                "growth>1KiB/ms",
                13,
                "unknown unit of time `ms`: use s, min, h or d",
            ),
            ("growth>1%/min", 9, "unknown unit of memory `%`"),
            ("lost>1", 7, "a percentage, as in lost>0.1%"),
            ("lost>1MiB", 7, "a percentage"),
            ("cause", 6, "expected =, as in cause=lost"),
            ("cause>1", 6, "expected =, as in cause=lost"),
            ("cause==lost", 6, "expected ="),
            ("cause=", 7, "expected a name after =, one of lost, kept, pinned"),
            (
                "cause=leak",
                7,
                "unknown name `leak`: use one of lost, kept, pinned, free_in_allocator, thread_stacks",
            ),
            (
                "cause=lost,kept",
                11,
                "unexpected `,kept`: give each condition with its own --fail-on",
            ),
            ("grows>1", 6, "unexpected `>1`"),
            ("größer>1", 1, "unknown measure `größer`"),
            ("blocks>1 ü", 10, "leave out `ü`"),
        ] {
            let error = parse(text).expect_err(text);
            let message = error.to_string();
            assert_eq!(error.column, column, "{message}");
            assert!(message.contains(part), "no {part:?} in {message}");
            assert_eq!(message.lines().count(), 1);
        }
    }

    proptest! {
        /// Any text is parsed or refused, at a character of it or at its end.
        #[test]
        fn nothing_panics(text in "\\PC*|[a-z.]{0,12} ?[<>=]{0,2} ?[0-9a-z_.]{0,25}[KMGTiB%/a-zµ]{0,6}") {
            if let Err(error) = parse(&text) {
                prop_assert!(error.column <= text.chars().count() + 1);
            }
        }
    }
}
