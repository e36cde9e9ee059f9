//! Parses amounts of memory, durations and percentages of the command line and settings. Pure.
//!
//! ```text
//! amount     = number [unit]                 512, 512K, 1.5GiB
//! duration   = number | (number unit)+       5, 500ms, 1m30s
//! percentage = number ["%"]                  0.1, 10%
//! number     = digits ["." digits] | "." digits
//! ```
//!
//! Units of memory are powers of 1024, with or without `iB`, in upper or lower case. `KB`, `MB` and so on are
//! rejected: half of all tools use them for powers of 1000, the other half for powers of 1024, and a limit
//! that is 7 % off goes unnoticed.

use std::ops::RangeInclusive;
use std::time::Duration;

use thiserror::Error;

/// First letter and power of 1024 of each unit of memory.
const BYTES: &[(char, u32)] = &[('K', 1), ('M', 2), ('G', 3), ('T', 4)];

/// Maximum number of digits behind the decimal point.
const MAX_FRACTION: usize = 9;

/// Unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeUnit {
    /// Usual name.
    pub name: &'static str,
    /// Alternative name.
    alias: &'static str,
    nanoseconds: u64,
}

impl TimeUnit {
    /// One second.
    pub const SECOND: Self = Self {
        name: "s",
        alias: "sec",
        nanoseconds: 1_000_000_000,
    };
    /// One thousandth of a second.
    pub const MILLISECOND: Self = Self {
        name: "ms",
        alias: "msec",
        nanoseconds: 1_000_000,
    };

    const fn seconds_long(name: &'static str, alias: &'static str, seconds: u64) -> Self {
        Self {
            name,
            alias,
            nanoseconds: seconds * 1_000_000_000,
        }
    }

    /// Length in whole seconds; 0 for a fraction of a second.
    pub fn seconds(self) -> u64 {
        self.nanoseconds / Self::SECOND.nanoseconds
    }

    /// Finds a unit by its name or alias.
    pub fn named(word: &str) -> Option<Self> {
        let units = TIMES.iter().copied();
        units
            .into_iter()
            .find(|unit| unit.name == word || unit.alias == word)
    }
}

/// Units of time, longest first.
const TIMES: &[TimeUnit] = &[
    TimeUnit::seconds_long("d", "day", 86_400),
    TimeUnit::seconds_long("h", "hour", 3600),
    TimeUnit::seconds_long("min", "m", 60),
    TimeUnit::SECOND,
    TimeUnit::MILLISECOND,
];

/// Error in an amount or a duration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnitError {
    /// A number is missing or malformed.
    #[error("expected a number")]
    Number,
    /// A number that is too large or has too many digits.
    #[error("this number is too large, or has more than {MAX_FRACTION} digits behind its point")]
    TooLarge,
    /// A fraction of an indivisible unit.
    #[error("expected a whole number")]
    Fraction,
    /// A unit with two meanings, such as `MB`.
    #[error("`{0}` is ambiguous (powers of 1000 or of 1024): use {1} or {1}iB, which are powers of 1024")]
    Decimal(String, char),
    /// An unknown unit of memory.
    #[error("unknown unit of memory `{0}`: use B, K, M, G, T, or KiB, MiB, GiB, TiB (powers of 1024)")]
    Bytes(String),
    /// An unknown unit of time.
    #[error("unknown unit of time `{0}`: use ms, s, m, h or d")]
    Time(String),
    /// Units of time that are repeated or not in order from long to short.
    #[error("units of time go from long to short, each once, as in 1h30m")]
    Order,
    /// A number without a unit that follows one with a unit.
    #[error("a number without a unit follows one with a unit: write 1m30s, not 1m30")]
    MissingUnit,
}

/// Decimal number, stored exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number {
    /// All digits as one integer.
    digits: u64,
    /// Power of ten that moves the decimal point to its place.
    divisor: u64,
}

impl Number {
    /// Parses digits with at most one decimal point, which can come first.
    ///
    /// # Errors
    ///
    /// The text is not a number, or the number is too large.
    pub fn parse(text: &str) -> Result<Self, UnitError> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let is_number = is_digits(whole) && is_digits(fraction) && !text.is_empty() && !text.ends_with('.');
        if !is_number {
            return Err(UnitError::Number);
        }
        let digits = format!("{whole}{fraction}").parse().ok();
        let digits = digits.filter(|_| fraction.len() <= MAX_FRACTION);
        Ok(Self {
            digits: digits.ok_or(UnitError::TooLarge)?,
            divisor: (0..fraction.len()).fold(1, |power, _| power * 10),
        })
    }

    /// Multiplies by `unit`, rounding down.
    ///
    /// # Errors
    ///
    /// The result is 2^64 or more, or `unit` is 1 and the number has a fraction.
    pub fn times(self, unit: u64) -> Result<u64, UnitError> {
        if unit == 1 && !self.digits.is_multiple_of(self.divisor) {
            return Err(UnitError::Fraction);
        }
        u64::try_from(self.scaled(unit)).map_err(|_| UnitError::TooLarge)
    }

    fn scaled(self, unit: u64) -> u128 {
        u128::from(self.digits) * u128::from(unit) / u128::from(self.divisor)
    }
}

/// Bytes in a unit of memory; 1 for an empty word.
///
/// # Errors
///
/// The unit is unknown or has two meanings.
pub fn byte_unit(word: &str) -> Result<u64, UnitError> {
    let upper = word.to_ascii_uppercase();
    if upper.is_empty() || upper == "B" {
        return Ok(1);
    }
    let unknown = || UnitError::Bytes(word.to_owned());
    let (letter, rest) = upper.split_at_checked(1).ok_or_else(unknown)?;
    let unit = BYTES.iter().find(|(name, _)| letter.starts_with(*name));
    match (unit, rest) {
        (Some(&(_, power)), "" | "IB") => Ok(1024_u64.pow(power)),
        (Some(&(name, _)), "B") => Err(UnitError::Decimal(word.to_owned(), name)),
        _ => Err(unknown()),
    }
}

/// Parses an amount of memory in bytes.
///
/// # Errors
///
/// The text is not an amount.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split_number(text.trim());
    Number::parse(number)?.times(byte_unit(unit.trim())?)
}

/// Parses a duration; `bare` is the unit of a number without one.
///
/// # Errors
///
/// The text is not a duration.
pub fn parse_duration(text: &str, bare: TimeUnit) -> Result<Duration, UnitError> {
    let mut rest = text.trim();
    let mut last: Option<TimeUnit> = None;
    let mut total: u128 = 0;
    loop {
        let (number, behind) = split_number(rest);
        let number = Number::parse(number)?;
        let behind = behind.trim_start();
        let length = behind.find(|character: char| !character.is_alphabetic());
        let (word, next) = behind.split_at(length.unwrap_or(behind.len()));
        let unit = match (word, last) {
            ("", Some(_)) => return Err(UnitError::MissingUnit),
            ("", None) => bare,
            (word, _) => TimeUnit::named(word).ok_or_else(|| UnitError::Time(word.to_owned()))?,
        };
        if last.is_some_and(|last| unit.nanoseconds >= last.nanoseconds) {
            return Err(UnitError::Order);
        }
        total += number.scaled(unit.nanoseconds);
        last = Some(unit);
        rest = next.trim_start();
        if rest.is_empty() {
            return duration(total).ok_or(UnitError::TooLarge);
        }
    }
}

fn duration(nanoseconds: u128) -> Option<Duration> {
    let second = u128::from(TimeUnit::SECOND.nanoseconds);
    let seconds = u64::try_from(nanoseconds / second).ok()?;
    let rest = u32::try_from(nanoseconds % second).ok()?;
    Some(Duration::new(seconds, rest))
}

/// Thousandths of a percent in a percent.
const PERCENT: u64 = 1000;

/// Parses a percentage, with or without its sign, into thousandths of a percent, rounded; `None` if these are
/// not within `range`.
pub fn parse_percentage(text: &str, range: RangeInclusive<u32>) -> Option<u32> {
    let number = text.trim();
    let number = number.strip_suffix('%').unwrap_or(number).trim_end();
    let tenths = Number::parse(number).ok()?.scaled(10 * PERCENT);
    let thousandths = u32::try_from((tenths + 5) / 10).ok()?;
    range.contains(&thousandths).then_some(thousandths)
}

/// Formats an amount of memory for people: in the largest unit that gives at least 1, truncated to one
/// decimal.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let Some(power) = (1..=UNITS.len()).rev().find(|power| bytes >> (10 * power) > 0) else {
        return format!("{bytes} B");
    };
    let unit = UNITS[power - 1];
    let tenths = (u128::from(bytes) * 10) >> (10 * power);
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

/// Splits off the number that a text begins with.
fn split_number(text: &str) -> (&str, &str) {
    let end = text.find(|character: char| !(character.is_ascii_digit() || character == '.'));
    text.split_at(end.unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: TimeUnit = TimeUnit::SECOND;

    /// Amounts are bytes or numbers with a power of 1024, in all common spellings.
    #[test]
    fn amounts() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("2.0", 2),
            ("512K", 512 << 10),
            ("512k", 512 << 10),
            ("512KiB", 512 << 10),
            ("512kib", 512 << 10),
            ("256MiB", 256 << 20),
            (" 3 m ", 3 << 20),
            ("1.5GiB", 3 << 29),
            (".5K", 512),
            ("0.3K", 307),
            ("2T", 2 << 40),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    /// Invalid amounts have a specific error; in particular, ambiguous units are rejected.
    #[test]
    fn no_amounts() {
        let unit = |text: &str| UnitError::Bytes(text.to_owned());
        for (text, error) in [
            ("", UnitError::Number),
            ("K", UnitError::Number),
            ("many", UnitError::Number),
            ("-1", UnitError::Number),
            ("+1", UnitError::Number),
            ("1.2.3", UnitError::Number),
            ("1.K", UnitError::Number),
            (".", UnitError::Number),
            ("0x10", unit("x10")),
            ("1.5", UnitError::Fraction),
            ("1.5B", UnitError::Fraction),
            ("1.0000000001K", UnitError::TooLarge),
            ("16777216T", UnitError::TooLarge),
            ("18446744073709551616", UnitError::TooLarge),
            ("512kB", UnitError::Decimal("kB".to_owned(), 'K')),
            ("1MB", UnitError::Decimal("MB".to_owned(), 'M')),
            ("1P", unit("P")),
            ("1Ki", unit("Ki")),
            ("1%", unit("%")),
            ("1 K 2", unit("K 2")),
            ("1ü", unit("ü")),
        ] {
            assert_eq!(parse_bytes(text), Err(error), "{text}");
        }
        let ambiguous = parse_bytes("1MB").expect_err("ambiguous").to_string();
        assert!(ambiguous.contains("use M or MiB"), "{ambiguous}");
    }

    /// Durations are numbers in the default unit, or with their own units from long to short.
    #[test]
    fn durations() {
        let milliseconds = Duration::from_millis;
        for (text, bare, expected) in [
            ("5", SECOND, milliseconds(5000)),
            ("0.25", SECOND, milliseconds(250)),
            (".5", SECOND, milliseconds(500)),
            ("500", TimeUnit::MILLISECOND, milliseconds(500)),
            ("5s", TimeUnit::MILLISECOND, milliseconds(5000)),
            ("500ms", SECOND, milliseconds(500)),
            ("1.5s", SECOND, milliseconds(1500)),
            ("1m", SECOND, milliseconds(60_000)),
            ("2min", SECOND, milliseconds(120_000)),
            ("1m30s", SECOND, milliseconds(90_000)),
            (" 1h 30m ", SECOND, milliseconds(5_400_000)),
            ("1d2h3m4s5ms", SECOND, milliseconds(93_784_005)),
            ("0", SECOND, Duration::ZERO),
        ] {
            assert_eq!(parse_duration(text, bare), Ok(expected), "{text}");
        }
        let max = u64::MAX.to_string();
        let longest = Ok(milliseconds(u64::MAX));
        assert_eq!(parse_duration(&max, TimeUnit::MILLISECOND), longest);
    }

    /// Invalid durations have a specific error.
    #[test]
    fn no_durations() {
        let unit = |text: &str| UnitError::Time(text.to_owned());
        for (text, error) in [
            ("", UnitError::Number),
            ("s", UnitError::Number),
            ("nan", UnitError::Number),
            ("-1", UnitError::Number),
            ("1e99", unit("e")),
            ("5S", unit("S")),
            ("1 fortnight", unit("fortnight")),
            ("30s1m", UnitError::Order),
            ("1s2s", UnitError::Order),
            ("1m30", UnitError::MissingUnit),
            ("1m,30s", UnitError::Number),
            ("5%", UnitError::Number),
            ("18446744073709551615d", UnitError::TooLarge),
            ("18446744073709551616", UnitError::TooLarge),
        ] {
            assert_eq!(parse_duration(text, SECOND), Err(error), "{text}");
        }
    }

    /// Percentages must be within their range; the sign is optional.
    #[test]
    fn percentages() {
        for (text, expected) in [
            ("0", Some(0)),
            ("0.1", Some(100)),
            (" 2.5% ", Some(2500)),
            ("100 %", Some(100_000)),
            ("100.1", None),
            ("-1", None),
            ("%", None),
            ("nan", None),
            ("1/2", None),
            (".0005", Some(1)),
            ("0.0004", Some(0)),
            ("99.9996", Some(100_000)),
            ("1e1", None),
            ("+1", None),
            ("inf", None),
        ] {
            assert_eq!(parse_percentage(text, 0..=100_000), expected, "{text}");
        }
    }

    /// Formatted sizes are in a notation that can be parsed.
    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1023.9 KiB"),
            (256 << 20, "256.0 MiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(parse_bytes(&size(3 << 29)), Ok(3 << 29));
    }

    proptest! {
        /// Any text is parsed or rejected without a panic.
        #[test]
        fn nothing_panics(text in "\\PC*|[0-9.]{0,25} ?[KMGTiBmshdµ]{0,4}[0-9]{0,3}[ms]{0,2}") {
            _ = parse_bytes(&text);
            _ = parse_duration(&text, SECOND);
            _ = parse_percentage(&text, 0..=100_000);
        }

        /// A number with a unit is multiplied by it.
        #[test]
        fn units_multiply(number in 0_u64..1 << 20, unit in 0_usize..4) {
            let (letter, power) = BYTES[unit];
            let bytes = number * 1024_u64.pow(power);
            prop_assert_eq!(parse_bytes(&format!("{number}{letter}")), Ok(bytes));
            prop_assert_eq!(parse_bytes(&format!("{number}{letter}iB")), Ok(bytes));
        }
    }
}
