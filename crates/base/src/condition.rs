//! Conditions on measured quantities, as `--fail-on`, `--start-when` and `--report-when` have them:
//! `outstanding>1MiB`, `growth>64KiB/min`. Pure.
//!
//! ```text
//! condition = measure (">" | ">=") number [unit] ["/" time]
//!           | measure "=" name
//!           | measure
//! measure   = one of those that the flag has
//! unit      = a unit of memory, as everywhere (`units`) | "%"
//! time      = "s" | "min" | "h" | "d"
//! ```
//!
//! Blanks are allowed between any two tokens.

use std::fmt;

use thiserror::Error;

use leak_report::render::printable;
use leak_report::units::{self, TimeUnit, UnitError};

/// Quantities that the conditions of a flag can limit.
pub trait Measure: Copy + Eq + fmt::Debug + 'static {
    /// Name, quantity and unit of each.
    const ALL: &'static [(&'static str, Self, Unit)];
}

/// Unit of a measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Count,
    BytesPerTime,
    Percent,
    /// Percent if the limit is given with `%`, bytes otherwise.
    BytesOrPercent,
    /// One of these names, which the value is the number of.
    Name(&'static [&'static str]),
    /// None: the measure is a condition by itself, which is true if the value is above 0.
    Truth,
}

impl Unit {
    /// Example of operator, limit and unit, for messages.
    fn example(self) -> String {
        match self {
            Self::Bytes => ">1MiB".to_owned(),
            Self::Count => ">100".to_owned(),
            Self::BytesPerTime => ">64KiB/min".to_owned(),
            Self::Percent => ">0.1%".to_owned(),
            Self::BytesOrPercent => ">80%".to_owned(),
            Self::Name(names) => format!("={}", names.first().unwrap_or(&"")),
            Self::Truth => String::new(),
        }
    }
}

/// Parts per percent: limits are stored in thousandths of a percent.
const PARTS: u64 = 1000;

/// Unit of time of a growth rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Per {
    pub name: &'static str,
    pub seconds: u32,
}

impl Per {
    pub const SECOND: Self = Self {
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

/// Relation between a value and the limit that it exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    /// `>`
    Above,
    /// `>=`
    AtLeast,
    /// `=`
    Equal,
}

/// A valid condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition<M> {
    /// Text as given, trimmed.
    text: String,
    measure: M,
    relation: Relation,
    /// Limit in bytes, blocks, or thousandths of a percent; or the number of a name.
    limit: u64,
    /// True if the limit is a percentage.
    is_share: bool,
    /// Unit of time, for growth rates only.
    per: Option<Per>,
}

impl<M: Measure> Condition<M> {
    pub fn measure(&self) -> M {
        self.measure
    }

    /// True if the limit is a percentage.
    pub fn is_share(&self) -> bool {
        self.is_share
    }

    /// The unit of time, for growth rates only.
    pub fn per(&self) -> Option<Per> {
        self.per
    }

    /// Number of the name that the value must have, for measures with names only.
    pub fn name(&self) -> Option<usize> {
        let is_name = self.relation == Relation::Equal;
        is_name.then(|| usize::try_from(self.limit).unwrap_or(usize::MAX))
    }

    /// Returns whether `value` exceeds the limit; in bytes, blocks, bytes per second, or percent.
    #[allow(
        clippy::cast_precision_loss,
        reason = "exact below 2^53, beyond which a byte more or less decides nothing"
    )]
    pub fn is_exceeded_by(&self, value: f64) -> bool {
        let limit = self.limit as f64;
        let limit = match self.per {
            _ if self.is_share => limit / PARTS as f64,
            Some(per) => limit / f64::from(per.seconds),
            None => limit,
        };
        match self.relation {
            Relation::Above => value > limit,
            Relation::AtLeast => value >= limit,
            Relation::Equal => (value - limit).abs() < 0.5,
        }
    }
}

impl<M> fmt::Display for Condition<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Invalid condition.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{flag} `{}`, character {column}: {problem}", printable(.text))]
pub struct ConditionError {
    flag: &'static str,
    text: String,
    /// Position of the problem in characters, from 1.
    pub column: usize,
    problem: Problem,
}

/// Reason for refusing a condition.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum Problem {
    #[error("expected a measure, one of {0}")]
    NoMeasure(String),
    #[error("unknown measure `{word}`: use one of {names}")]
    Measure { word: String, names: String },
    #[error("expected > or >=, as in {0}")]
    Operator(String),
    #[error("expected =, as in {0}")]
    Equals(String),
    #[error("expected a name after =, one of {0}")]
    NoName(String),
    #[error("unknown name `{word}`: use one of {names}")]
    Name { word: String, names: String },
    #[error("expected a number, as in {0}")]
    Number(String),
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error("blocks are counted without a unit: leave out `{0}`")]
    Counted(String),
    #[error("expected a percentage, as in {0}")]
    Percent(String),
    #[error("growth is a rate: add a unit of time, one of /s, /min, /h, /d")]
    NoTime,
    #[error("unknown unit of time `{0}`: use s, min, h or d")]
    Time(String),
    #[error("unexpected `{word}`: give each condition with its own {flag}")]
    Rest { word: String, flag: &'static str },
}

fn names<M: Measure>() -> String {
    let names = M::ALL.iter().map(|measure| measure.0);
    names.collect::<Vec<_>>().join(", ")
}

/// Parses a condition that was given with `flag`.
///
/// # Errors
///
/// Names the character that is wrong, and what to write there.
pub fn parse<M: Measure>(flag: &'static str, text: &str) -> Result<Condition<M>, ConditionError> {
    let mut reader = Reader { text, at: 0 };
    read(flag, &mut reader).map_err(|(at, problem)| ConditionError {
        flag,
        text: text.to_owned(),
        column: text[..at].chars().count() + 1,
        problem,
    })
}

/// Byte offset and problem.
type Wrong = (usize, Problem);

fn read<M: Measure>(flag: &'static str, reader: &mut Reader<'_>) -> Result<Condition<M>, Wrong> {
    let (at, word) = reader.take(is_of_name);
    let found = M::ALL.iter().find(|(name, ..)| *name == word);
    let &(name, measure, unit) = found.ok_or_else(|| match word {
        "" => (at, Problem::NoMeasure(names::<M>())),
        word => {
            let (word, names) = (word.to_owned(), names::<M>());
            (at, Problem::Measure { word, names })
        }
    })?;
    let example = || format!("{name}{}", unit.example());
    let Limit {
        relation,
        limit,
        is_share,
        per,
    } = match unit {
        Unit::Truth => Limit::of(Relation::Above, 0),
        Unit::Name(names) => Limit::of(Relation::Equal, read_name(reader, names, &example)?),
        Unit::Bytes | Unit::Count | Unit::BytesPerTime | Unit::Percent | Unit::BytesOrPercent => {
            read_limit(reader, unit, &example)?
        }
    };
    let (at, rest) = reader.take(|_| true);
    if !rest.is_empty() {
        let word = printable(rest.trim_end());
        return Err((at, Problem::Rest { word, flag }));
    }
    Ok(Condition {
        text: reader.text.trim().to_owned(),
        measure,
        relation,
        limit,
        is_share,
        per,
    })
}

/// Relation and limit, which follow the measure.
struct Limit {
    relation: Relation,
    limit: u64,
    is_share: bool,
    per: Option<Per>,
}

impl Limit {
    fn of(relation: Relation, limit: u64) -> Self {
        Self {
            relation,
            limit,
            is_share: false,
            per: None,
        }
    }
}

/// Reads `=` and one of the names, which it returns the number of.
fn read_name(reader: &mut Reader<'_>, names: &[&str], example: &dyn Fn() -> String) -> Result<u64, Wrong> {
    let (at, operator) = reader.take(|character| "<>=!".contains(character));
    if operator != "=" {
        return Err((at, Problem::Equals(example())));
    }
    let (at, word) = reader.take(is_of_name);
    let number = (0..).zip(names).find(|(_, name)| **name == word);
    let all = || names.join(", ");
    number.map(|(number, _)| number).ok_or_else(|| match word {
        "" => (at, Problem::NoName(all())),
        word => {
            let (word, names) = (word.to_owned(), all());
            (at, Problem::Name { word, names })
        }
    })
}

/// Reads an operator, and a number with its unit.
fn read_limit(reader: &mut Reader<'_>, unit: Unit, example: &dyn Fn() -> String) -> Result<Limit, Wrong> {
    let (at, operator) = reader.take(|character| "<>=!".contains(character));
    let relation = match operator {
        ">" => Relation::Above,
        ">=" => Relation::AtLeast,
        _ => return Err((at, Problem::Operator(example()))),
    };
    let number = read_number(reader, example)?;
    let is_share = match unit {
        Unit::Percent => true,
        Unit::BytesOrPercent => reader.is_next('%'),
        Unit::Bytes | Unit::Count | Unit::BytesPerTime | Unit::Name(_) | Unit::Truth => false,
    };
    let (limit, per) = match unit {
        Unit::BytesOrPercent if !is_share => (number.times(read_size(reader)?)?, None),
        Unit::Bytes => (number.times(read_size(reader)?)?, None),
        Unit::BytesPerTime => {
            let bytes = number.times(read_size(reader)?)?;
            (bytes, Some(read_time(reader)?))
        }
        Unit::Count | Unit::Name(_) | Unit::Truth => {
            let (at, word) = reader.take(is_of_unit);
            if !word.is_empty() {
                return Err((at, Problem::Counted(word.to_owned())));
            }
            (number.times(1)?, None)
        }
        Unit::Percent | Unit::BytesOrPercent => {
            let (at, word) = reader.take(is_of_unit);
            if word != "%" {
                return Err((at, Problem::Percent(example())));
            }
            (number.times(PARTS)?, None)
        }
    };
    Ok(Limit {
        relation,
        limit,
        is_share,
        per,
    })
}

fn is_of_name(character: char) -> bool {
    character.is_alphanumeric() || ".-_".contains(character)
}

fn is_of_unit(character: char) -> bool {
    character.is_alphabetic() || character == '%'
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

fn read_number(reader: &mut Reader<'_>, example: impl Fn() -> String) -> Result<Number, Wrong> {
    let (at, text) = reader.take(|character| character.is_ascii_digit() || character == '.');
    let number = units::Number::parse(text).map_err(|error| {
        let is_none = error == UnitError::Number;
        let problem = if is_none {
            Problem::Number(example())
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
    /// Returns whether the next character that is not a blank is this one.
    fn is_next(&self, character: char) -> bool {
        self.text[self.at..].trim_start().starts_with(character)
    }

    /// Skips blanks and takes the characters that `is_wanted`; returns their byte offset and text.
    fn take(&mut self, is_wanted: impl Fn(char) -> bool) -> (usize, &'a str) {
        let rest = self.text[self.at..].trim_start();
        let begin = self.text.len() - rest.len();
        let length = rest.find(|character| !is_wanted(character)).unwrap_or(rest.len());
        self.at = begin + length;
        (begin, &rest[..length])
    }
}
