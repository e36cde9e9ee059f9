//! Validates the gate's options.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

use super::condition::Condition;
use crate::base::condition::ConditionError;
use leak_report::units;

/// The gate's options; by default it checks nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Conditions that must not be exceeded.
    pub conditions: Vec<Condition>,
    /// Maximum share of losses.
    pub max_lost: MaxLost,
    /// Suppression files.
    pub suppressions: Vec<PathBuf>,
    /// File for proposed suppressions.
    pub write_suppressions: Option<PathBuf>,
    /// File with the accepted amounts.
    pub baseline: Option<PathBuf>,
    /// File to write the current amounts to, as a baseline.
    pub write_baseline: Option<PathBuf>,
    /// File for findings as JUnit test cases.
    pub junit: Option<PathBuf>,
    /// Format of annotations, if any are written.
    pub annotations: Option<Annotations>,
    /// True if existing files of any kind are replaced.
    pub overwrite: bool,
}

/// Format of annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Annotations {
    /// GitHub's workflow commands.
    GitHub,
}

/// Maximum share of lost allocations for a conclusive result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxLost {
    /// Thousandths of a percent.
    thousandths: u32,
}

impl Default for MaxLost {
    /// 0.1 %: no leak that matters hides in so little.
    fn default() -> Self {
        Self { thousandths: 100 }
    }
}

impl MaxLost {
    /// Parses a percentage from 0 to 100, with or without `%`.
    pub fn parse(text: &str) -> Result<Self, SettingsError> {
        units::parse_percentage(text, 0..=100_000)
            .map(|thousandths| Self { thousandths })
            .ok_or_else(|| SettingsError::MaxLost(text.to_owned()))
    }

    /// Returns whether `percent` is above the maximum.
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
    /// Returns whether reports need to be checked.
    pub fn is_enabled(&self) -> bool {
        let is_written = self.write_baseline.is_some() || self.write_suppressions.is_some();
        is_written || !self.conditions.is_empty() || !self.suppressions.is_empty()
    }

    /// Returns whether a condition is about growth.
    pub fn is_about_growth(&self) -> bool {
        self.conditions.iter().any(|condition| condition.per().is_some())
    }

    /// The first condition that only a verdict on the outstanding blocks can decide.
    pub fn about_verdict(&self) -> Option<&Condition> {
        let mut conditions = self.conditions.iter();
        conditions.find(|condition| condition.measure().is_of_verdict())
    }

    /// The first condition that only a diagnosis can decide.
    pub fn about_diagnosis(&self) -> Option<&Condition> {
        let mut conditions = self.conditions.iter();
        conditions.find(|condition| condition.measure().is_of_diagnosis())
    }

    /// Refuses options about conditions if there are no conditions.
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

/// Invalid gate options.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SettingsError {
    #[error(transparent)]
    Condition(#[from] ConditionError),
    #[error("invalid value `{0}` for --max-lost: expected a percentage from 0 to 100; for example, 0.1")]
    MaxLost(String),
    #[error("{0} needs a condition: add one, for example --fail-on 'outstanding>0'")]
    NoCondition(&'static str),
}

#[cfg(test)]
mod tests {
    use super::super::condition::parse;
    use super::*;

    /// A share is parsed as a percentage, and is exceeded only by a larger one.
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

    /// Options about conditions need a condition; the others do not.
    #[test]
    fn gate_options_need_a_condition() {
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
