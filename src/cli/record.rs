//! Flags for recordings.

use std::path::PathBuf;

use clap::Args;

use super::config::{ConfigError, parse_record_limit};
use crate::sinks::output::Destination;
use crate::sinks::recording::Settings;

/// Flags of recordings.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// Also record reports into this file, for `memleak report`, `diff` and `trend` on any machine.
    ///
    /// Recorded reports are whole and have all names.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Maximum size of the recording.
    ///
    /// Once it is reached, reports are thinned evenly over the whole time; the last is always kept.
    ///
    /// [default: 256M]
    #[arg(long, value_name = "SIZE")]
    pub record_limit: Option<String>,
    /// Replace names of functions, files, processes and hosts, and build-ids, by meaningless ones.
    ///
    /// Equal names stay equal.
    #[arg(long)]
    pub anonymize: bool,
}

impl RecordArgs {
    /// Like [`RecordArgs::check`], for traces, where only a recording can be anonymised.
    pub(super) fn check_for_trace(&self, reports: &Destination) -> Result<Option<Settings>, ConfigError> {
        match self.anonymize && self.record.is_none() {
            true => Err(ConfigError::NothingToRecord("--anonymize")),
            false => self.check(reports),
        }
    }

    /// Settings of the recording, if there is one; `reports` is the other destination of reports.
    pub(super) fn check(&self, reports: &Destination) -> Result<Option<Settings>, ConfigError> {
        let Some(file) = &self.record else {
            return match self.record_limit {
                Some(_) => Err(ConfigError::NothingToRecord("--record-limit")),
                None => Ok(None),
            };
        };
        let name = || file.display().to_string();
        if file.as_os_str() == "-" {
            return Err(ConfigError::RecordToStdout(name()));
        }
        if reports.file.as_ref() == Some(file) {
            return Err(ConfigError::SameFile(name()));
        }
        let limit = self.record_limit.as_deref().map(parse_record_limit).transpose()?;
        Ok(Some(Settings {
            file: file.clone(),
            overwrite: reports.overwrite,
            limit: limit.unwrap_or(Settings::DEFAULT_LIMIT),
            anonymize: self.anonymize,
        }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;
    use crate::cli::Config;
    use leak_report::units::UnitError;

    fn settings(arguments: &str) -> Result<Option<Settings>, ConfigError> {
        let arguments = ["memleak", "-p", "1"]
            .into_iter()
            .chain(arguments.split_whitespace());
        let cli = Cli::try_parse_from(arguments).expect("the command line parses");
        Config::try_from(cli.trace).map(|config| config.sinks.recording)
    }

    /// A recording has a file, a size limit, and shares -f.
    #[test]
    fn recordings() {
        let default = Settings {
            file: "a.memleak".into(),
            overwrite: false,
            limit: 256 << 20,
            anonymize: false,
        };
        for (arguments, expected) in [
            ("", None),
            ("--record a.memleak", Some(default.clone())),
            (
                "--record a.memleak --record-limit 64K --anonymize -f",
                Some(Settings {
                    overwrite: true,
                    limit: 64 << 10,
                    anonymize: true,
                    ..default
                }),
            ),
        ] {
            assert_eq!(settings(arguments), Ok(expected), "{arguments}");
        }
    }

    /// Invalid limits, and recording flags without a recording, are refused.
    #[test]
    fn invalid_command_lines_are_refused() {
        let limit = |text: &str| ConfigError::RecordLimit(text.to_owned());
        for (arguments, expected) in [
            (
                "--record-limit 1M",
                ConfigError::NothingToRecord("--record-limit"),
            ),
            ("--anonymize", ConfigError::NothingToRecord("--anonymize")),
            ("--record -", ConfigError::RecordToStdout("-".to_owned())),
            (
                "--record a --output a --format text",
                ConfigError::SameFile("a".to_owned()),
            ),
            ("--record a --record-limit 63K", limit("63K")),
            (
                "--record a --record-limit much",
                ConfigError::Unit {
                    flag: "--record-limit",
                    text: "much".to_owned(),
                    error: UnitError::Number,
                    example: "256M",
                },
            ),
        ] {
            assert_eq!(settings(arguments), Err(expected), "{arguments}");
        }
    }
}
