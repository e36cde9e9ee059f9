//! Flags for the conditions on which a trace starts, and on which it makes reports.

use clap::Args;

use super::config::ConfigError;
use crate::session::triggers::{ReportCondition, ReportMeasure, StartCondition, parse_report, parse_start};

/// Conditions on which a trace starts, and on which it makes reports.
#[derive(Debug, Args)]
pub struct TriggerArgs {
    /// Attach only once this condition is true, for example 'rss>2GiB' or 'cgroup>80%'.
    ///
    /// Can be repeated: any of the conditions suffices. Checked once a second. Measures: rss (resident
    /// memory), anon (anonymous memory, resident and swapped), growth (of anon, per s, min, h or d, over a
    /// minute), each for the process with the highest value; cgroup (memory of its cgroup without file cache,
    /// in bytes, or in % of the limit with the least room left).
    #[arg(long, value_name = "CONDITION")]
    pub start_when: Vec<String>,
    /// Make a report whenever this condition becomes true, for example 'outstanding>256MiB'.
    ///
    /// Can be repeated. Checked every INTERVAL, by default every second; a condition triggers again only
    /// after it was false. COUNT counts these reports, not the one at the end of the trace. Measures:
    /// outstanding (bytes not freed, of all processes together), growth (of outstanding, over a minute), rss,
    /// anon and cgroup as with --start-when.
    #[arg(long, value_name = "CONDITION")]
    pub report_when: Vec<String>,
}

/// Subject of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// Processes that run.
    Processes,
    /// A program that memleak starts.
    Program,
    /// The kernel's own allocations.
    Kernel,
}

/// Valid conditions.
#[derive(Debug)]
pub(super) struct Triggers {
    pub(super) start_when: Vec<StartCondition>,
    pub(super) report_when: Vec<ReportCondition>,
}

impl TriggerArgs {
    /// Returns true if reports are made by conditions.
    pub(super) fn reports(&self) -> bool {
        !self.report_when.is_empty()
    }

    /// Checks the conditions against the subject of the trace, and against `other`, a flag that makes reports
    /// in another way. `by_faults`: page faults are traced.
    pub(super) fn check(
        &self,
        subject: Subject,
        by_faults: bool,
        other: Option<&'static str>,
    ) -> Result<Triggers, ConfigError> {
        let start_when = self.start_when.iter().map(|text| parse_start(text));
        let start_when: Vec<_> = start_when.collect::<Result<_, _>>()?;
        match subject {
            Subject::Program if !start_when.is_empty() => return Err(ConfigError::StartWhenStarted),
            Subject::Kernel if !start_when.is_empty() => {
                return Err(ConfigError::ProcessFlag("--start-when"));
            }
            Subject::Processes | Subject::Program | Subject::Kernel => {}
        }
        let report_when = self.report_when.iter().map(|text| parse_report(text));
        let report_when: Vec<_> = report_when.collect::<Result<_, _>>()?;
        if let Some(flag) = other.filter(|_| !report_when.is_empty()) {
            return Err(ConfigError::ReportsOtherwise(flag));
        }
        for condition in &report_when {
            match condition.measure() {
                ReportMeasure::Memory(_) if subject == Subject::Kernel => {
                    return Err(ConfigError::NotOfTheKernel(condition.to_string()));
                }
                ReportMeasure::Outstanding | ReportMeasure::Growth if by_faults => {
                    return Err(ConfigError::NotOfFaults(condition.to_string()));
                }
                ReportMeasure::Outstanding | ReportMeasure::Growth | ReportMeasure::Memory(_) => {}
            }
        }
        Ok(Triggers {
            start_when,
            report_when,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command, Config};

    fn config(arguments: &[&str]) -> Result<Config, ConfigError> {
        let arguments = ["memleak"].iter().chain(arguments);
        let cli = Cli::try_parse_from(arguments).expect("the command line parses");
        match cli.command {
            Some(Command::Live(args)) => args.live().try_into(),
            Some(command) => panic!("{command:?}"),
            None => cli.trace.try_into(),
        }
    }

    /// Conditions are kept as given; with those for reports, INTERVAL is a second.
    #[test]
    fn conditions() {
        let all = [
            "-p",
            "1",
            "--start-when",
            "rss>2GiB",
            "--start-when",
            "cgroup>80%",
            "--report-when",
            "outstanding>1M",
        ];
        let trace = config(&all).expect("it makes sense").trace;
        let texts: Vec<_> = trace
            .schedule
            .start_when
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(texts, ["rss>2GiB", "cgroup>80%"]);
        let texts: Vec<_> = trace
            .schedule
            .report_when
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(texts, ["outstanding>1M"]);
        for (arguments, seconds) in [
            (&["-p", "1"][..], 5),
            (&["-p", "1", "--start-when", "rss>1"], 5),
            (&["-p", "1", "--report-when", "rss>1"], 1),
            (&["-p", "1", "--report-when", "rss>1", "7"], 7),
            (&["--report-when", "outstanding>1"], 1),
            (&["live", "-p", "1", "--start-when", "rss>1"], 1),
            (&["--report-when", "rss>1", "--", "ls"], 1),
        ] {
            let trace = config(arguments).expect("it makes sense").trace;
            assert_eq!(
                trace.schedule.interval,
                Duration::from_secs(seconds),
                "{arguments:?}"
            );
        }
    }

    /// Conditions that cannot become true, or that another flag makes pointless, are refused with a remedy.
    #[test]
    fn refused() {
        for (arguments, part) in [
            (
                &["-p", "1", "--start-when", "outstanding>1"][..],
                "--start-when `outstanding>1`, character 1",
            ),
            (
                &["-p", "1", "--report-when", "blocks>1"],
                "one of outstanding, rss, anon, cgroup, growth",
            ),
            (
                &["--start-when", "rss>1", "--", "ls"],
                "--start-when is for running processes",
            ),
            (
                &["--start-when", "rss>1"],
                "--start-when needs a process: add -p PID",
            ),
            (&["--report-when", "rss>1"], "`rss>1` is about processes"),
            (
                &["-p", "1", "--faults", "--report-when", "growth>1/s"],
                "`growth>1/s` counts blocks",
            ),
            (
                &["live", "-p", "1", "--report-when", "rss>1"],
                "--live decides itself when",
            ),
            (
                &["-p", "1", "-t", "--format", "json", "--report-when", "rss>1"],
                "-t decides itself when",
            ),
        ] {
            let error = config(arguments).expect_err("it makes no sense").to_string();
            assert!(error.contains(part), "{arguments:?}: {error}");
        }
    }
}
