//! What the user asks of a gate: validated.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use super::condition::{Condition, ConditionError};
use leak_report::units;

/// What a trace is held against, and where that is written. By itself, nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// What must not be.
    pub conditions: Vec<Condition>,
    /// What may be lost.
    pub max_lost: MaxLost,
    /// Files of rules that leave stacks out.
    pub suppressions: Vec<PathBuf>,
    /// Where rules are proposed for what counts.
    pub write_suppressions: Option<PathBuf>,
    /// What is accepted.
    pub baseline: Option<PathBuf>,
    /// Where that which counts is written, to be accepted.
    pub write_baseline: Option<PathBuf>,
    /// Where findings are written as test cases.
    pub junit: Option<PathBuf>,
    /// Whose annotations findings are written as.
    pub annotations: Option<Annotations>,
    /// Whether files that are there are replaced, whatever they are.
    pub overwrite: bool,
}

/// Whose annotations there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Annotations {
    /// GitHub's workflow commands.
    GitHub,
}

/// The share of allocations that may be lost before a result is not relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxLost {
    /// In thousandths of a percent.
    thousandths: u32,
}

impl Default for MaxLost {
    /// One in a thousand: as much as no leak that matters hides in.
    fn default() -> Self {
        Self { thousandths: 100 }
    }
}

impl MaxLost {
    /// Reads a percentage from 0 to 100, with or without its sign.
    ///
    /// # Errors
    ///
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        units::parse_percentage(text, 0..=100_000)
            .map(|thousandths| Self { thousandths })
            .ok_or_else(|| SettingsError::MaxLost(text.to_owned()))
    }

    /// Whether a percentage is more.
    pub(super) fn is_exceeded_by(self, percent: f64) -> bool {
        percent > f64::from(self.thousandths) / 1000.0
    }
}

impl fmt::Display for MaxLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.thousandths) / 1000.0)
    }
}

impl Settings {
    /// Whether reports need to be looked at.
    pub fn is_enabled(&self) -> bool {
        let is_written = self.write_baseline.is_some() || self.write_suppressions.is_some();
        is_written || !self.conditions.is_empty() || !self.suppressions.is_empty()
    }

    /// Whether growth is among the conditions.
    pub fn is_about_growth(&self) -> bool {
        self.conditions.iter().any(|condition| condition.per().is_some())
    }

    /// Checks that everything is about something.
    ///
    /// # Errors
    ///
    /// A flag is about conditions, and there are none.
    pub fn check(self) -> Result<Self, SettingsError> {
        let about_conditions = [
            ("--baseline", self.baseline.is_some()),
            ("--junit", self.junit.is_some()),
            ("--annotations", self.annotations.is_some()),
            ("--max-lost", self.max_lost != MaxLost::default()),
        ];
        let idle = about_conditions.into_iter().find(|(_, is_given)| *is_given);
        match idle {
            Some((flag, _)) if self.conditions.is_empty() => Err(SettingsError::NoCondition(flag)),
            _ => Ok(self),
        }
    }
}

/// Flags that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// Not a condition.
    #[error(transparent)]
    Condition(#[from] ConditionError),
    /// Not a share.
    #[error("invalid value `{0}` for --max-lost: expected a percentage from 0 to 100; for example, 0.1")]
    MaxLost(String),
    /// A flag about conditions, without any.
    #[error("{0} needs a condition: add one, for example --fail-on 'outstanding>0'")]
    NoCondition(&'static str),
}

#[cfg(test)]
mod tests {
    use super::super::condition::parse;
    use super::*;

    /// A share is a percentage, as people write it.
    #[test]
    fn shares() {
        for (text, shown) in [
            ("0", "0%"),
            ("0.1", "0.1%"),
            ("2.5%", "2.5%"),
            (" 100 % ", "100%"),
        ] {
            let text = text.replace(" %", "%");
            assert_eq!(
                MaxLost::parse(&text).map(|share| share.to_string()),
                Ok(shown.to_owned())
            );
        }
        for text in ["", "%", "-1", "101", "nan", "little", "1/2"] {
            let error = SettingsError::MaxLost(text.to_owned());
            assert_eq!(MaxLost::parse(text), Err(error));
        }
        let some = MaxLost::default();
        assert!(some.is_exceeded_by(0.11) && !some.is_exceeded_by(0.1));
        assert!(MaxLost { thousandths: 0 }.is_exceeded_by(1e-9));
        assert!(!MaxLost { thousandths: 0 }.is_exceeded_by(0.0));
    }

    /// What is about conditions needs one; the rest stands by itself.
    #[test]
    fn flags_are_about_something() {
        let nothing = Settings::default();
        let of = |change: fn(&mut Settings)| {
            let mut settings = nothing.clone();
            change(&mut settings);
            settings
        };
        for (flag, settings) in [
            ("--baseline", of(|settings| settings.baseline = Some("a".into()))),
            ("--junit", of(|settings| settings.junit = Some("a".into()))),
            (
                "--annotations",
                of(|settings| settings.annotations = Some(Annotations::GitHub)),
            ),
            (
                "--max-lost",
                of(|settings| settings.max_lost = MaxLost { thousandths: 0 }),
            ),
        ] {
            assert_eq!(settings.clone().check(), Err(SettingsError::NoCondition(flag)));
            let condition = parse("blocks>0").expect("a condition");
            let settings = Settings {
                conditions: vec![condition],
                ..settings
            };
            assert_eq!(settings.clone().check(), Ok(settings));
        }
        for settings in [
            of(|_| {}),
            of(|settings| settings.suppressions = vec!["a".into()]),
            of(|settings| settings.write_baseline = Some("a".into())),
            of(|settings| settings.write_suppressions = Some("a".into())),
        ] {
            assert_eq!(settings.clone().check(), Ok(settings));
        }
    }
}
