//! Arguments of `memleak mcp`.

use std::ffi::OsString;

use clap::{Args, Parser};

use super::config::{ConfigError, parse_period};
use super::{Cli, Config};
use crate::commands::mcp::is_process;

/// Arguments of `memleak mcp`.
#[derive(Debug, Args)]
pub struct McpArgs {
    /// Recordings, or files of --format json; or the id of one process, to trace until the client ends.
    #[arg(required = true, value_name = "FILE|PID")]
    pub sources: Vec<OsString>,
    /// Make a report of the process at this interval, for example 5, 500ms or 1m.
    ///
    /// [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub every: Option<String>,
}

/// Source of the reports that questions are about.
#[derive(Debug)]
pub enum McpSource {
    /// Reports in files.
    Files(Vec<OsString>),
    /// Reports of a trace.
    Trace(Box<Config>),
}

impl TryFrom<McpArgs> for McpSource {
    type Error = ConfigError;

    fn try_from(args: McpArgs) -> Result<Self, ConfigError> {
        const DEFAULT_INTERVAL: &str = "10s";
        let process = match &args.sources[..] {
            [one] if is_process(one) => one.to_str(),
            _ => None,
        };
        let Some(pid) = process else {
            return match args.every {
                Some(_) => Err(ConfigError::IntervalOfFiles),
                None => Ok(Self::Files(args.sources)),
            };
        };
        let interval = args.every.as_deref().unwrap_or(DEFAULT_INTERVAL);
        parse_period("--every", interval)?;
        // Parsed as a separate command line, without the user's settings, which are about output for people.
        let cli = Cli::try_parse_from(["memleak", "-p", pid, interval]);
        let cli = cli.map_err(|_| ConfigError::IntervalOfFiles)?;
        Ok(Self::Trace(Box::new(cli.trace.try_into()?)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cli::Command;

    fn source(arguments: &[&str]) -> Result<McpSource, ConfigError> {
        let cli = Cli::try_parse_from(["memleak", "mcp"].iter().chain(arguments));
        match cli.expect("the command line parses").command {
            Some(Command::Mcp(args)) => args.try_into(),
            command => panic!("{command:?}"),
        }
    }

    /// A number that is no file is a process, which is traced at an interval; all else is files.
    #[test]
    fn sources() {
        let seconds = |arguments| match source(arguments) {
            Ok(McpSource::Trace(config)) => {
                (config.trace.targets.pids.clone(), config.trace.schedule.interval)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(seconds(&["4711"]), (vec![4711], Duration::from_secs(10)));
        let short = seconds(&["--every", "500ms", "4711"]);
        assert_eq!(short, (vec![4711], Duration::from_millis(500)));
        for files in [&["4711", "4712"][..], &["a.memleak"], &["a", "4711"]] {
            assert!(
                matches!(source(files), Ok(McpSource::Files(found)) if found == files),
                "{files:?}"
            );
        }
        let refused = source(&["a.memleak", "--every", "5"]).expect_err("no process");
        assert_eq!(refused, ConfigError::IntervalOfFiles);
        let refused = source(&["4711", "--every", "soon"])
            .expect_err("no time")
            .to_string();
        assert!(refused.contains("--every"), "{refused}");
    }
}
