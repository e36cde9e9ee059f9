//! Parses the conditions of `--fail-on`: `outstanding>1MiB`, `growth>64KiB/min`. Pure.
//!
//! ```text
//! condition = measure (">" | ">=") number [unit] ["/" time]
//! measure   = one of MEASURES
//! unit      = a unit of memory, as everywhere (`units`) | "%"
//! time      = "s" | "min" | "h" | "d"
//! ```
//!
//! Blanks are allowed between any two tokens. `MEASURES` has the unit of each measure.

use std::fmt;

use thiserror::Error;

use leak_report::render::printable;
use leak_report::units::{self, TimeUnit, UnitError};

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
}

impl Measure {
    /// Returns whether only a verdict on the outstanding blocks has it.
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
            | Self::Incomplete => false,
        }
    }
}

/// Unit of a measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes,
    Count,
    BytesPerTime,
    Percent,
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
];

/// Number of parts of a percent in which a limit is stored.
const PARTS: u64 = 1000;

/// Unit of time of a growth rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Per {
    pub name: &'static str,
    pub seconds: u32,
}

impl Per {
    pub(super) const SECOND: Self = Self {
        name: "s",
        seconds: 1,
    };

    /// Converts a unit of at least a second.
    fn of(unit: TimeUnit) -> Option<Self> {
        let seconds = u32::try_from(unit.seconds()).ok();
        let seconds = seconds.filter(|&seconds| seconds > 0)?;
        Some(Self {
            name: unit.name,
            seconds,
        })
    }
}

/// A valid condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Text as given, trimmed.
    text: String,
    measure: Measure,
    /// True for `>=`: the limit itself exceeds the condition.
    inclusive: bool,
    /// Limit in bytes, blocks, or thousandths of a percent.
    limit: u64,
    /// Unit of time, for growth rates only.
    per: Option<Per>,
}

impl Condition {
    pub fn measure(&self) -> Measure {
        self.measure
    }

    /// The unit of time, for growth rates only.
    pub fn per(&self) -> Option<Per> {
        self.per
    }

    /// Returns whether `value` exceeds the limit; in bytes, blocks, bytes per second, or percent.
    #[allow(
        clippy::cast_precision_loss,
        reason = "exact below 2^53, beyond which a byte more or less decides nothing"
    )]
    pub fn is_exceeded_by(&self, value: f64) -> bool {
        let limit = self.limit as f64;
        let limit = match (self.measure, self.per) {
            (Measure::Lost | Measure::Incomplete, _) => limit / PARTS as f64,
            (_, Some(per)) => limit / f64::from(per.seconds),
            (_, None) => limit,
        };
        if self.inclusive {
            value >= limit
        } else {
            value > limit
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Invalid condition.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("--fail-on `{}`, character {column}: {problem}", printable(.text))]
pub struct ConditionError {
    text: String,
    /// Position of the problem in characters, from 1.
    column: usize,
    problem: Problem,
}

/// Reason for refusing a condition.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum Problem {
    #[error("expected a measure, one of {names}", names = names())]
    NoMeasure,
    #[error("unknown measure `{0}`: use one of {names}", names = names())]
    Measure(String),
    #[error("expected > or >=, as in outstanding>1MiB")]
    Operator,
    #[error("expected a number, as in {0}")]
    Number(&'static str),
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error("blocks are counted without a unit: leave out `{0}`")]
    Counted(String),
    #[error("expected a percentage, as in {0}")]
    Percent(&'static str),
    #[error("growth is a rate: add the time that it is for, one of /s, /min, /h, /d")]
    NoTime,
    #[error("unknown unit of time `{0}`: use s, min, h or d")]
    Time(String),
    #[error("unexpected `{0}`: give each condition with its own --fail-on")]
    Rest(String),
}

fn names() -> String {
    let names = MEASURES.iter().map(|measure| measure.0);
    names.collect::<Vec<_>>().join(", ")
}

/// Parses a condition.
pub fn parse(text: &str) -> Result<Condition, ConditionError> {
    let mut reader = Reader { text, at: 0 };
    read(&mut reader).map_err(|(at, problem)| ConditionError {
        text: text.to_owned(),
        column: text[..at].chars().count() + 1,
        problem,
    })
}

/// Byte offset and problem.
type Wrong = (usize, Problem);

fn read(reader: &mut Reader<'_>) -> Result<Condition, Wrong> {
    let (at, word) = reader.take(|character| character.is_alphanumeric() || ".-_".contains(character));
    let found = MEASURES.iter().find(|(name, ..)| *name == word);
    let &(_, measure, unit) = found.ok_or_else(|| match word {
        "" => (at, Problem::NoMeasure),
        word => (at, Problem::Measure(word.to_owned())),
    })?;
    let (at, operator) = reader.take(|character| "<>=!".contains(character));
    let inclusive = match operator {
        ">" => false,
        ">=" => true,
        _ => return Err((at, Problem::Operator)),
    };
    let number = read_number(reader, unit)?;
    let (limit, per) = match unit {
        Unit::Bytes => (number.times(read_size(reader)?)?, None),
        Unit::BytesPerTime => {
            let bytes = number.times(read_size(reader)?)?;
            (bytes, Some(read_time(reader)?))
        }
        Unit::Count => {
            let (at, word) = reader.take(is_of_unit);
            if !word.is_empty() {
                return Err((at, Problem::Counted(word.to_owned())));
            }
            (number.times(1)?, None)
        }
        Unit::Percent => {
            let (at, word) = reader.take(is_of_unit);
            if word != "%" {
                return Err((at, Problem::Percent(example(unit))));
            }
            (number.times(PARTS)?, None)
        }
    };
    let (at, rest) = reader.take(|_| true);
    if !rest.is_empty() {
        return Err((at, Problem::Rest(printable(rest.trim_end()))));
    }
    Ok(Condition {
        text: reader.text.trim().to_owned(),
        measure,
        inclusive,
        limit,
        per,
    })
}

fn is_of_unit(character: char) -> bool {
    character.is_alphabetic() || character == '%'
}

fn example(unit: Unit) -> &'static str {
    match unit {
        Unit::Bytes => "outstanding>1MiB",
        Unit::Count => "blocks>100",
        Unit::BytesPerTime => "growth>64KiB/min",
        Unit::Percent => "lost>0.1%",
    }
}

/// A parsed number and its byte offset.
struct Number {
    at: usize,
    number: units::Number,
}

impl Number {
    /// The number times `unit`, if that is a whole number that fits.
    fn times(&self, unit: u64) -> Result<u64, Wrong> {
        let whole = self.number.times(unit);
        whole.map_err(|error| (self.at, error.into()))
    }
}

fn read_number(reader: &mut Reader<'_>, unit: Unit) -> Result<Number, Wrong> {
    let (at, text) = reader.take(|character| character.is_ascii_digit() || character == '.');
    let number = units::Number::parse(text).map_err(|error| {
        let is_none = error == UnitError::Number;
        let problem = if is_none {
            Problem::Number(example(unit))
        } else {
            error.into()
        };
        (at, problem)
    })?;
    Ok(Number { at, number })
}

/// Parses an optional unit; without one, the number is in bytes.
fn read_size(reader: &mut Reader<'_>) -> Result<u64, Wrong> {
    let (at, word) = reader.take(is_of_unit);
    units::byte_unit(word).map_err(|error| (at, error.into()))
}

fn read_time(reader: &mut Reader<'_>) -> Result<Per, Wrong> {
    let (at, slash) = reader.take(|character| character == '/');
    if slash != "/" {
        return Err((at, Problem::NoTime));
    }
    let (at, word) = reader.take(is_of_unit);
    let time = TimeUnit::named(word).and_then(Per::of);
    time.ok_or_else(|| (at, Problem::Time(word.to_owned())))
}

/// A position in the text of a condition.
struct Reader<'a> {
    text: &'a str,
    /// Byte offset of the next character.
    at: usize,
}

impl<'a> Reader<'a> {
    /// Skips blanks and takes the characters that `is_wanted`; returns their byte offset and text.
    fn take(&mut self, is_wanted: impl Fn(char) -> bool) -> (usize, &'a str) {
        let rest = self.text[self.at..].trim_start();
        let begin = self.text.len() - rest.len();
        let length = rest.find(|character| !is_wanted(character)).unwrap_or(rest.len());
        self.at = begin + length;
        (begin, &rest[..length])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Each condition is exceeded by the second value, and not by the first: bytes, blocks, bytes per second, percent.
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
        fn nothing_panics(text in "\\PC*|[a-z.]{0,12} ?[<>=]{0,2} ?[0-9.]{0,25}[KMGTiB%/a-zµ]{0,6}") {
            if let Err(error) = parse(&text) {
                prop_assert!(error.column <= text.chars().count() + 1);
            }
        }
    }
}
