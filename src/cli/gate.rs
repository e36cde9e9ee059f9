//! Flags for the conditions that a trace is checked against.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::sinks::gate::{Annotations, MaxLost, Settings, SettingsError, parse};

/// Conditions that a trace is checked against.
#[derive(Debug, Args)]
pub struct GateArgs {
    /// Exit with status 1 if the last report exceeds this condition, for example 'outstanding>1MiB'.
    ///
    /// Can be repeated. Measures: outstanding, blocks (not freed), growth (per s, min, h or d);
    /// site.outstanding, site.blocks, site.growth (of any one site); allocated, allocations (freed or not);
    /// lost, incomplete (in %); by a verdict, definitely_lost, site.definitely_lost, indirectly_lost (in
    /// bytes; with .blocks behind them, in blocks); of a recorded diagnosis, cause=KIND and grows (as for
    /// `memleak why`). The exit status is 3 if the result is inconclusive.
    #[arg(long, value_name = "CONDITION")]
    pub fail_on: Vec<String>,
    /// Maximum share of lost allocations, in percent.
    ///
    /// Above it, conditions that are not exceeded are inconclusive.
    ///
    /// [default: 0.1]
    #[arg(long, value_name = "PCT")]
    pub max_lost: Option<String>,
    /// Leave out stacks that match a line of this file, in LeakSanitizer's format; can be repeated.
    #[arg(long, value_name = "FILE")]
    pub suppressions: Vec<PathBuf>,
    /// Write suppressions for all outstanding stacks to this file, to choose from.
    #[arg(long, value_name = "FILE")]
    pub write_suppressions: Option<PathBuf>,
    /// Count only what sites have outstanding beyond the amounts in this file (see --write-baseline).
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Write the outstanding amounts of all sites to this file, for --baseline.
    #[arg(long, value_name = "FILE")]
    pub write_baseline: Option<PathBuf>,
    /// Write a test case for each condition to this file, in JUnit's format.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Also write exceeded and inconclusive conditions as annotations, to standard error.
    #[arg(long, value_enum, value_name = "KIND")]
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
    pub(super) fn check(&self, overwrite: bool) -> Result<Settings, SettingsError> {
        let conditions = self.fail_on.iter().map(|text| parse(text));
        let settings = Settings {
            conditions: conditions.collect::<Result<_, _>>()?,
            max_lost: self
                .max_lost
                .as_deref()
                .map_or(Ok(MaxLost::default()), MaxLost::parse)?,
            suppressions: self.suppressions.clone(),
            write_suppressions: self.write_suppressions.clone(),
            baseline: self.baseline.clone(),
            write_baseline: self.write_baseline.clone(),
            junit: self.junit.clone(),
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
            (
                "--fail-on cause=lost",
                "'cause=lost' is about why memory grows: use it with `memleak why`",
            ),
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
                config.trace.schedule.interval,
                Duration::from_secs(expected),
                "{arguments}"
            );
        }
    }
}
