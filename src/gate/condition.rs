//! Conditions that a trace must not meet, as `--fail-on` has them: `outstanding>1MiB`, `growth>64KiB/min`. Pure.
//!
//! ```text
//! condition = measure (">" | ">=") number [unit] ["/" time]
//! measure   = one of MEASURES
//! number    = digits ["." digits]
//! unit      = "B" | "K" | "KiB" | "M" | "MiB" | "G" | "GiB" | "T" | "TiB" | "%"
//! time      = "s" | "min" | "h" | "d"
//! ```
//!
//! Blanks may be between any two of these. Which unit a measure has is in the table.

use std::fmt;

use thiserror::Error;

use crate::report::printable;

/// What a condition is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Bytes allocated and not freed.
    Outstanding,
    /// Blocks allocated and not freed.
    Blocks,
    /// How fast the outstanding bytes grow.
    Growth,
    /// The most outstanding bytes of one site.
    SiteOutstanding,
    /// The most outstanding blocks of one site.
    SiteBlocks,
    /// The fastest growth of one site.
    SiteGrowth,
    /// Bytes that were allocated, freed or not.
    Allocated,
    /// Blocks that were allocated, freed or not.
    Allocations,
    /// Share of what was allocated that could not be recorded.
    Lost,
    /// Share of allocations whose stack is not complete.
    Incomplete,
}

/// What a measure is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes,
    Count,
    BytesPerTime,
    Percent,
}

/// The measures by name.
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
];

/// Units of memory, in bytes.
const SIZES: &[(&str, u64)] = &[
    ("B", 1),
    ("K", 1 << 10),
    ("KiB", 1 << 10),
    ("M", 1 << 20),
    ("MiB", 1 << 20),
    ("G", 1 << 30),
    ("GiB", 1 << 30),
    ("T", 1 << 40),
    ("TiB", 1 << 40),
];

/// Units of time, in seconds.
const TIMES: &[(&str, u32)] = &[("s", 1), ("min", 60), ("h", 3600), ("d", 86400)];

/// Parts of a percent that a limit is kept in.
const PARTS: u64 = 1000;
/// Digits behind the point that a number may have.
const MOST_FRACTION: usize = 9;

/// A unit of time that growth is reckoned by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Per {
    /// As it was written.
    pub name: &'static str,
    /// Its length.
    pub seconds: u32,
}

impl Per {
    /// One second.
    pub(super) const SECOND: Self = Self {
        name: "s",
        seconds: 1,
    };
}

/// A condition; whatever exists makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// As it was written, without blanks at its ends.
    text: String,
    measure: Measure,
    /// Whether the limit itself is too much.
    inclusive: bool,
    /// In bytes, blocks, or thousandths of a percent.
    limit: u64,
    /// The time that it is for, of rates.
    per: Option<Per>,
}

impl Condition {
    /// What it is about.
    pub fn measure(&self) -> Measure {
        self.measure
    }

    /// The time that its rate is for.
    pub fn per(&self) -> Option<Per> {
        self.per
    }

    /// Whether `value` is too much: bytes, blocks, bytes per second, or per cent.
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

/// Not a condition.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("--fail-on `{}`, character {column}: {problem}", printable(.text))]
pub struct ConditionError {
    text: String,
    /// Where the problem is, the first character being 1.
    column: usize,
    problem: Problem,
}

/// What is wrong at a place.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum Problem {
    #[error("`{0}` is no measure: give one of {names}", names = names(MEASURES.iter().map(|measure| measure.0)))]
    Measure(String),
    #[error("a condition says what is too much: give > or >= here, as in outstanding>1MiB")]
    Operator,
    #[error("give a number here, as in {0}")]
    Number(&'static str),
    #[error("this number is too large, or has more than {MOST_FRACTION} digits behind its point")]
    TooLarge,
    #[error("there are no parts of one: give a whole number")]
    Fraction,
    #[error("`{0}` is no unit of memory: give one of {names}, which are powers of 1024", names = names(SIZES.iter().map(|size| size.0)))]
    Size(String),
    #[error("blocks are counted: leave `{0}` out")]
    Counted(String),
    #[error("this is a share: give a percentage, as in {0}")]
    Percent(&'static str),
    #[error("growth is a rate: give the time that it is for, as in /{names}", names = names(TIMES.iter().map(|time| time.0)))]
    NoTime,
    #[error("`{0}` is no unit of time: give one of {names}", names = names(TIMES.iter().map(|time| time.0)))]
    Time(String),
    #[error("nothing may follow here, but `{0}` does: give each condition by a --fail-on of its own")]
    Rest(String),
}

fn names(all: impl Iterator<Item = &'static str>) -> String {
    all.collect::<Vec<_>>().join(", ")
}

/// Reads a condition.
///
/// # Errors
///
/// What is wrong, where, and what would be right.
pub fn parse(text: &str) -> Result<Condition, ConditionError> {
    let mut reader = Reader { text, at: 0 };
    read(&mut reader).map_err(|(at, problem)| ConditionError {
        text: text.to_owned(),
        column: text[..at].chars().count() + 1,
        problem,
    })
}

/// What is wrong, and at which byte.
type Wrong = (usize, Problem);

fn read(reader: &mut Reader<'_>) -> Result<Condition, Wrong> {
    let (at, word) = reader.take(|character| character.is_alphanumeric() || ".-_".contains(character));
    let found = MEASURES.iter().find(|(name, ..)| *name == word);
    let &(_, measure, unit) = found.ok_or_else(|| (at, Problem::Measure(word.to_owned())))?;
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

/// A number as it is written.
struct Number {
    at: usize,
    /// All of its digits.
    digits: u64,
    /// Ten to the power of how many of them are behind the point.
    divisor: u64,
}

impl Number {
    /// In whole ones, the rest being dropped where one of them is smaller than what was written of.
    fn times(&self, unit: u64) -> Result<u64, Wrong> {
        if unit == 1 && !self.digits.is_multiple_of(self.divisor) {
            return Err((self.at, Problem::Fraction));
        }
        let whole = u128::from(self.digits) * u128::from(unit) / u128::from(self.divisor);
        u64::try_from(whole).map_err(|_| (self.at, Problem::TooLarge))
    }
}

fn read_number(reader: &mut Reader<'_>, unit: Unit) -> Result<Number, Wrong> {
    let (at, text) = reader.take(|character| character.is_ascii_digit() || character == '.');
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = !whole.is_empty() && !fraction.contains('.') && !text.ends_with('.');
    if !is_number {
        return Err((at, Problem::Number(example(unit))));
    }
    let digits = format!("{whole}{fraction}").parse().ok();
    let digits = digits.filter(|_| fraction.len() <= MOST_FRACTION);
    Ok(Number {
        at,
        digits: digits.ok_or((at, Problem::TooLarge))?,
        divisor: (0..fraction.len()).fold(1, |power, _| power * 10),
    })
}

/// Bytes, if nothing is said.
fn read_size(reader: &mut Reader<'_>) -> Result<u64, Wrong> {
    let (at, word) = reader.take(is_of_unit);
    if word.is_empty() {
        return Ok(1);
    }
    let size = SIZES.iter().find(|(name, _)| *name == word);
    size.map(|&(_, bytes)| bytes)
        .ok_or_else(|| (at, Problem::Size(word.to_owned())))
}

fn read_time(reader: &mut Reader<'_>) -> Result<Per, Wrong> {
    let (at, slash) = reader.take(|character| character == '/');
    if slash != "/" {
        return Err((at, Problem::NoTime));
    }
    let (at, word) = reader.take(is_of_unit);
    let time = TIMES.iter().find(|(name, _)| *name == word);
    time.map(|&(name, seconds)| Per { name, seconds })
        .ok_or_else(|| (at, Problem::Time(word.to_owned())))
}

/// What is left of a text.
struct Reader<'a> {
    text: &'a str,
    /// The byte that is next.
    at: usize,
}

impl<'a> Reader<'a> {
    /// The next characters of a kind, behind blanks, and at which byte they begin.
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

    /// Each condition is exceeded by the second value, and not by the first: bytes, blocks, bytes per second, per cent.
    #[test]
    fn limits() {
        for (text, measure, [held, exceeded]) in [
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
            ("outstanding>2.0B", Measure::Outstanding, [2.0, 3.0]),
            ("blocks>=10", Measure::Blocks, [9.0, 10.0]),
            ("growth>60KiB/min", Measure::Growth, [1024.0, 1024.1]),
            ("growth > 7 / d", Measure::Growth, [7.0 / 86400.0, 8.0 / 86400.0]),
            ("site.outstanding>4T", Measure::SiteOutstanding, [4e12, 5e12]),
            ("site.blocks>1", Measure::SiteBlocks, [1.0, 2.0]),
            ("site.growth>=1GiB/h", Measure::SiteGrowth, [298_261.0, 298_262.0]),
            ("allocated>1K", Measure::Allocated, [1024.0, 1025.0]),
            ("allocations>1", Measure::Allocations, [1.0, 2.0]),
            ("lost>0%", Measure::Lost, [0.0, 0.0001]),
            ("lost>=0.1%", Measure::Lost, [0.099, 0.1]),
            ("incomplete>12.5%", Measure::Incomplete, [12.5, 12.51]),
        ] {
            let condition = parse(text).expect(text);
            assert_eq!(condition.measure(), measure, "{text}");
            assert!(!condition.is_exceeded_by(held), "{text}: {held}");
            assert!(condition.is_exceeded_by(exceeded), "{text}: {exceeded}");
            assert_eq!(condition.to_string(), text.trim());
        }
    }

    /// What is no condition is refused at the character where it goes wrong, with what would be right.
    #[test]
    fn errors_point_at_the_place() {
        for (text, column, part) in [
            ("", 1, "`` is no measure: give one of outstanding, blocks, growth"),
            ("outstandin>1MiB", 1, "`outstandin` is no measure"),
            (" Outstanding>1", 2, "`Outstanding` is no measure"),
            ("site.lost>1%", 1, "`site.lost` is no measure"),
            ("outstanding", 12, "> or >="),
            ("outstanding<1", 12, "> or >="),
            ("outstanding=>1", 12, "> or >="),
            ("outstanding 1", 13, "> or >="),
            ("outstanding>", 13, "a number here, as in outstanding>1MiB"),
            ("outstanding>-1", 13, "a number here"),
            ("outstanding>1.2.3", 13, "a number here"),
            ("outstanding>.5K", 13, "a number here"),
            ("outstanding>1.K", 13, "a number here"),
            ("outstanding>1.5B", 13, "no parts of one"),
            ("outstanding>99999999999999999999", 13, "too large"),
            ("outstanding>99999999T", 13, "too large"),
            ("outstanding>1.0000000001K", 13, "too large"),
            (
                "outstanding>1MB",
                14,
                "`MB` is no unit of memory: give one of B, K, KiB",
            ),
            ("outstanding>1%", 14, "`%` is no unit of memory"),
            ("outstanding>1MiB/s", 17, "nothing may follow here, but `/s` does"),
            (
                "outstanding>1MiB, blocks>2 ",
                17,
                "`, blocks>2` does: give each condition",
            ),
            ("blocks>1K", 9, "leave `K` out"),
            ("blocks>1.5", 8, "no parts of one"),
            ("growth>1KiB", 12, "as in /s, min, h, d"),
            ("growth>1KiB//s", 12, "growth is a rate"),
            (
                "growth>1KiB/m",
                13,
                "`m` is no unit of time: give one of s, min, h, d",
            ),
            ("growth>1%/min", 9, "`%` is no unit of memory"),
            ("lost>1", 7, "a percentage, as in lost>0.1%"),
            ("lost>1MiB", 7, "a percentage"),
            ("größer>1", 1, "`größer` is no measure"),
            ("blocks>1 ü", 10, "leave `ü` out"),
        ] {
            let error = parse(text).expect_err(text);
            let message = error.to_string();
            assert_eq!(error.column, column, "{message}");
            assert!(message.contains(part), "no {part:?} in {message}");
            assert_eq!(message.lines().count(), 1);
        }
    }

    proptest! {
        /// Any text is read or refused, at a character that it has or at its end.
        #[test]
        fn nothing_panics(text in "\\PC*|[a-z.]{0,12} ?[<>=]{0,2} ?[0-9.]{0,25}[KMGTiB%/a-zµ]{0,6}") {
            if let Err(error) = parse(&text) {
                prop_assert!(error.column <= text.chars().count() + 1);
            }
        }
    }
}
