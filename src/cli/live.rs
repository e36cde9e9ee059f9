//! Flag for reports on the terminal.

use clap::Args;

use super::config::ConfigError;
use super::{OutputArgs, TraceArgs};
use crate::sinks::LiveConfig;

/// Reports on the terminal, instead of on standard output.
#[derive(Debug, Args)]
pub struct LiveArgs {
    /// Show reports in an interactive view on the terminal; `?` lists its keys.
    ///
    /// With --output, the last report is written when the view is left. A started program gets /dev/null for
    /// each of its standard streams that would be this terminal.
    #[arg(long)]
    pub live: bool,
}

impl LiveArgs {
    /// Checks the flag against the output flags and call lines, `traces_calls`.
    pub(super) fn check(
        &self,
        output: &OutputArgs,
        traces_calls: bool,
    ) -> Result<Option<LiveConfig>, ConfigError> {
        if self.live && !cfg!(feature = "tui") {
            return Err(ConfigError::NotBuilt {
                flag: "--live",
                part: "the interactive view",
                feature: "tui",
            });
        }
        let keeps_report = output.place.output.is_some();
        match (self.live, output.format, keeps_report) {
            (false, ..) => Ok(None),
            (true, ..) if traces_calls => Err(ConfigError::LiveCalls),
            (true, Some(_), false) => Err(ConfigError::LiveFormat),
            (true, ..) => Ok(Some(LiveConfig { keeps_report })),
        }
    }
}

impl TraceArgs {
    /// Adds --live.
    pub fn live(mut self) -> Self {
        self.live.live = true;
        self
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::cli::Config;
    use crate::cli::{Cli, Command};

    fn config(arguments: &str) -> Result<Config, ConfigError> {
        let arguments = std::iter::once("memleak").chain(arguments.split_whitespace());
        let cli = Cli::try_parse_from(arguments).expect("the command line parses");
        match cli.command {
            Some(Command::Live(args)) => args.live().try_into(),
            Some(command) => panic!("{command:?}"),
            None => cli.trace.try_into(),
        }
    }

    /// Flag and subcommand are equivalent and accept all other flags; the default interval is 1 s.
    #[test]
    fn flag_and_subcommand_are_equivalent() {
        let second = Duration::from_secs(1);
        let shown = Some(LiveConfig { keeps_report: false });
        let kept = Some(LiveConfig { keeps_report: true });
        for (arguments, live, interval) in [
            ("-p 1", None, 5 * second),
            ("-p 1 --live", shown, second),
            ("live -p 1", shown, second),
            ("live --live -p 1", shown, second),
            ("live -p 1 3 2", shown, 3 * second),
            ("live", shown, second),
            ("live -c ls", shown, second),
            ("live -- ls -l", shown, second),
            ("live -p 1 --mmap --output a.json", kept, second),
            ("--live -p 1 --output - --format json 5", kept, 5 * second),
        ] {
            let config = config(arguments);
            let config = config.unwrap_or_else(|error| panic!("{arguments}: {error}"));
            assert_eq!(
                (config.sinks.live, config.trace.schedule.interval),
                (live, interval),
                "{arguments}"
            );
        }
    }

    /// A format without an output, and call lines on the same terminal, are refused.
    #[test]
    fn invalid_command_lines_are_refused() {
        assert_eq!(config("live -p 1 -t"), Err(ConfigError::LiveCalls));
        for arguments in ["-p 1 --live --format json", "live -p 1 --format text"] {
            assert_eq!(config(arguments), Err(ConfigError::LiveFormat), "{arguments}");
        }
    }
}
