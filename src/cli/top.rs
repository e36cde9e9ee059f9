//! Arguments of `memleak top`.

use clap::Args;

use super::TargetArgs;
use super::config::{ConfigError, parse_count, parse_period};
use super::targets::parse_wanted;
use crate::commands::Format;
use crate::commands::top::Options;
use crate::process::select::Selectors;

/// Flags and arguments of `memleak top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Processes to watch, by id or name; default: all, unless another flag selects some.
    #[arg(short = 'p', long = "pid", value_name = "PID|NAME", value_delimiter = ',')]
    pub pid: Vec<String>,
    /// Other properties by which processes are selected.
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Time over which growth is judged.
    ///
    /// [default: 60 samples]
    #[arg(long, value_name = "TIME")]
    pub window: Option<String>,
    /// Print one table, after INTERVAL, and exit (as COUNT 1).
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// Format of the tables; json also disables the interactive view.
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub format: Format,
    /// Processes to show in a table; the others are summed up.
    ///
    /// [default: 10 in text, all in JSON]
    #[arg(short = 'T', long, value_name = "N")]
    pub top: Option<usize>,
    /// Time between samples of the view, or between tables; in seconds or as in 500ms, 1m30s.
    ///
    /// Each table is made from 20 samples, taken during its interval.
    ///
    /// [default: 1; 10 for tables]
    #[arg(value_name = "INTERVAL")]
    pub interval: Option<String>,
    /// Number of tables; without it, an interactive view, or tables until interrupted if not on a terminal.
    #[arg(value_name = "COUNT")]
    pub count: Option<String>,
}

impl TryFrom<TopArgs> for Options {
    type Error = ConfigError;

    fn try_from(args: TopArgs) -> Result<Self, ConfigError> {
        let targets = args.targets.check(&args.pid)?;
        let (selectors, waits) = match targets.select {
            Some(select) => (select.selectors, select.waits),
            None => {
                let wanted = args.pid.iter().map(|text| parse_wanted(text));
                let wanted = wanted.collect::<Result<_, _>>()?;
                let selectors = Selectors {
                    wanted,
                    ..Selectors::default()
                };
                (selectors, false)
            }
        };
        let once = args.once.then_some("1");
        let period = |name, text: Option<String>| text.map(|text| parse_period(name, &text)).transpose();
        let options = Self {
            selectors,
            waits,
            interval: period("INTERVAL", args.interval)?,
            count: once.or(args.count.as_deref()).map(parse_count).transpose()?,
            window: period("--window", args.window)?,
            rows: args.top,
            format: args.format,
        };
        let min = options.min_window();
        match options.window {
            Some(window) if window < min => Err(ConfigError::Window(min.as_secs_f64().to_string())),
            Some(_) | None => Ok(options),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn options(arguments: &str) -> Result<Options, ConfigError> {
        let arguments = ["memleak", "top"].into_iter().chain(arguments.split_whitespace());
        match Cli::try_parse_from(arguments)
            .expect("the command line parses")
            .command
        {
            Some(Command::Top(args)) => Options::try_from(*args),
            command => panic!("{command:?}"),
        }
    }

    /// Selectors work as for a trace, and are optional; --once is COUNT 1.
    #[test]
    fn selections_and_counts() {
        let all = options("").expect("it makes sense");
        assert_eq!(all.selectors, Selectors::default());
        assert_eq!(
            (all.interval, all.count, all.window, all.rows),
            (None, None, None, None)
        );
        let some = options("-p 7,nginx --user 0 --wait --once --window 5m -T 3 30").expect("it makes sense");
        assert!(
            some.selectors.wanted.len() == 2 && some.selectors.user.as_deref() == Some("0") && some.waits
        );
        assert_eq!(
            (some.interval, some.window),
            (Some(Duration::from_secs(30)), Some(Duration::from_secs(300)))
        );
        assert_eq!(some.count, options("30 1").expect("it makes sense").count);
        assert_eq!(
            options("-p 7")
                .expect("it makes sense")
                .selectors
                .pids()
                .collect::<Vec<_>>(),
            [7]
        );
    }

    /// A window must span enough samples; values that a trace refuses are refused here, too.
    #[test]
    fn refused() {
        for (arguments, part) in [
            (
                "--once --window 4s 10",
                "--window: growth needs at least 10 samples, which take 5 s",
            ),
            ("--window 0", "`0` for --window"),
            ("--wait", "--wait waits for"),
            ("-p 1,1", "given twice"),
            ("--user=", "--user needs a value"),
            ("0", "`0` for INTERVAL"),
            ("1 0", "`0` for COUNT"),
        ] {
            let error = options(arguments).expect_err(arguments).to_string();
            assert!(error.contains(part), "{arguments}: {error}");
        }
        assert!(options("--once --window 5s 10").is_ok());
    }
}
