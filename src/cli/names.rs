//! Flag for how function names are written for people.

use clap::Args;

use leak_report::model::NameStyle;

/// Names of functions in formats for people.
#[allow(rustdoc::invalid_html_tags, reason = "help shows the name of a type as it is")]
#[derive(Clone, Copy, Debug, Args)]
pub struct NameArgs {
    /// Show function names as they were demangled, with everything that the standard library adds.
    ///
    /// Without it, formats for people write std::string for std::__cxx11::basic_string<char,
    /// std::char_traits<char>, std::allocator<char> >, and leave out default arguments. JSON has both; pprof,
    /// gperftools, heaptrack, bcc and libbpf always have whole names.
    #[arg(long)]
    pub verbatim_names: bool,
}

impl From<NameArgs> for NameStyle {
    fn from(args: NameArgs) -> Self {
        match args.verbatim_names {
            true => Self::Verbatim,
            false => Self::Abbreviated,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::Config;
    use crate::cli::{Cli, Command};
    use crate::commands::replay::{DifferenceOptions, ReportOptions, TrendOptions};
    use leak_report::model::NameStyle;

    /// Style of names that a command line selects.
    fn style(arguments: &str) -> NameStyle {
        let arguments = std::iter::once("memleak").chain(arguments.split_whitespace());
        let cli = Cli::try_parse_from(arguments).expect("the command line parses");
        match cli.command {
            None => {
                Config::try_from(cli.trace)
                    .expect("a trace")
                    .trace
                    .shown
                    .view
                    .names
            }
            Some(Command::Live(args)) => {
                Config::try_from(args.live())
                    .expect("a trace")
                    .trace
                    .shown
                    .view
                    .names
            }
            Some(Command::Report(args)) => ReportOptions::try_from(*args).expect("a report").names,
            Some(Command::Diff(args)) => DifferenceOptions::try_from(args).expect("a difference").names,
            Some(Command::Trend(args)) => TrendOptions::try_from(args).expect("a trend").names,
            Some(other) => panic!("{other:?}"),
        }
    }

    /// Every command that shows names abbreviates them unless told otherwise.
    #[test]
    fn everywhere() {
        for command in ["-p 1", "", "live -p 1", "report a", "diff a b", "trend a b"] {
            assert_eq!(style(command), NameStyle::Abbreviated, "{command}");
            let flagged = format!("{command} --verbatim-names");
            assert_eq!(style(&flagged), NameStyle::Verbatim, "{flagged}");
        }
    }
}
