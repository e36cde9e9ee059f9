//! Flags for the conditions that a trace is checked against.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::sinks::gate::{Annotations, MaxLost, Settings, SettingsError, parse};

/// Conditions that a trace is checked against.
#[derive(Debug, Args)]
pub struct GateArgs {
    /// Exit with status 1 if this condition holds at the last report, for example 'outstanding>1MiB'; can be
    /// repeated.
    ///
    /// Measures: outstanding, blocks (not freed; site.outstanding, site.blocks: of any one site), growth,
    /// site.growth (per s, min, h or d), allocated, allocations (freed or not), lost, incomplete (in %); by a
    /// verdict, definitely_lost, site.definitely_lost, indirectly_lost (.blocks behind them: in blocks).
    /// Status 3 if it is inconclusive.
    #[arg(long, value_name = "CONDITION")]
    pub fail_on: Vec<String>,
    /// Share of allocations, in percent, that may be lost; above it, conditions that are not exceeded are
    /// inconclusive.
    ///
    /// [default: 0.1]
    #[arg(long, value_name = "PCT")]
    pub max_lost: Option<String>,
    /// Leave out stacks that match a line of this file, in LeakSanitizer's format; can be repeated.
    #[arg(long, value_name = "FILE")]
    pub suppressions: Vec<PathBuf>,
    /// Write a file of suppressions for what is outstanding, to choose from.
    #[arg(long, value_name = "FILE")]
    pub write_suppressions: Option<PathBuf>,
    /// Count only what sites hold beyond what this file says that they may.
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Write what is outstanding as such a file.
    #[arg(long, value_name = "FILE")]
    pub write_baseline: Option<PathBuf>,
    /// Write a test case for each condition to this file, as JUnit does.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Write what fails as annotations too, on standard error.
    #[arg(long, value_enum, value_name = "WHOSE")]
    pub annotations: Option<AnnotationsArg>,
}

/// Kind of annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AnnotationsArg {
    /// Workflow commands of GitHub Actions.
    Github,
}

impl GateArgs {
    /// Returns true if a flag names a file to write, which -f then applies to.
    pub(super) fn writes(&self) -> bool {
        let files = [&self.junit, &self.write_baseline, &self.write_suppressions];
        files.iter().any(|file| file.is_some())
    }

    /// Checks the flags.
    pub(super) fn check(self, overwrite: bool) -> Result<Settings, SettingsError> {
        let conditions = self.fail_on.iter().map(|text| parse(text));
        let settings = Settings {
            conditions: conditions.collect::<Result<_, _>>()?,
            max_lost: self
                .max_lost
                .as_deref()
                .map_or(Ok(MaxLost::default()), MaxLost::parse)?,
            suppressions: self.suppressions,
            write_suppressions: self.write_suppressions,
            baseline: self.baseline,
            write_baseline: self.write_baseline,
            junit: self.junit,
            annotations: self.annotations.map(|AnnotationsArg::Github| Annotations::GitHub),
            overwrite,
        };
        settings.check()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::cli::Cli;
    use crate::cli::{Config, ConfigError};

    fn config(arguments: &str) -> Result<Config, ConfigError> {
        let arguments = ["memleak", "-p", "1"]
            .into_iter()
            .chain(arguments.split_whitespace());
        let cli = Cli::try_parse_from(arguments).expect("the command line parses");
        cli.trace.try_into()
    }

    /// Every flag is kept; without any, the settings are the defaults.
    #[test]
    fn settings() {
        assert_eq!(
            config("").map(|config| config.sinks.gate),
            Ok(Settings::default())
        );
        let all = config(
            "--fail-on outstanding>1MiB --fail-on blocks>=5 --max-lost 2 --suppressions a --suppressions b --baseline c \
             --write-baseline d --write-suppressions e --junit f --annotations github -f",
        );
        let gate = all.expect("it makes sense").sinks.gate;
        let conditions: Vec<_> = gate.conditions.iter().map(ToString::to_string).collect();
        assert_eq!(conditions, ["outstanding>1MiB", "blocks>=5"]);
        assert_eq!(gate.max_lost.to_string(), "2%");
        assert_eq!(gate.suppressions, [PathBuf::from("a"), PathBuf::from("b")]);
        let files = [
            gate.baseline,
            gate.write_baseline,
            gate.write_suppressions,
            gate.junit,
        ];
        assert_eq!(files, ["c", "d", "e", "f"].map(|file| Some(file.into())));
        assert_eq!(
            (gate.annotations, gate.overwrite),
            (Some(Annotations::GitHub), true)
        );
    }

    /// Invalid conditions and limits are refused, with their position.
    #[test]
    fn invalid_command_lines_are_refused() {
        for (arguments, part) in [
            ("--fail-on leaks>1", "`leaks>1`, character 1"),
            ("--max-lost some --fail-on blocks>1", "`some` for --max-lost"),
            ("--junit a", "--junit needs a condition"),
        ] {
            let error = config(arguments).expect_err(arguments).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    /// The default interval is shorter for conditions on growth.
    #[test]
    fn intervals() {
        for (arguments, expected) in [
            ("", 5),
            ("--fail-on blocks>1", 5),
            ("--fail-on site.growth>1/s", 1),
            ("--fail-on growth>1/s 7", 7),
        ] {
            let config = config(arguments).expect("it makes sense");
            assert_eq!(
                config.trace.interval,
                Duration::from_secs(expected),
                "{arguments}"
            );
        }
    }
}
