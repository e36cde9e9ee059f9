//! Flags that say what of a trace the reports show. They change nothing of what is traced.

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::config::{ConfigError, View, parse_older};
use crate::leak::Order;

/// Flags of the reports.
#[derive(Debug, Args)]
pub struct ViewArgs {
    /// Hide blocks younger than this many milliseconds from all reports but JSON; 0 shows all.
    ///
    /// [default: 500]
    #[arg(short = 'o', long, value_name = "MS")]
    pub older: Option<String>,
    /// Report totals only, without reading the block table: no ages, and everything outstanding is shown.
    #[arg(short = 'C', long)]
    pub combined_only: bool,
    /// What stacks are ranked by.
    #[arg(long, value_enum, default_value = "size", value_name = "ORDER")]
    pub sort: OrderArg,
}

/// What stacks are ranked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrderArg {
    /// Bytes.
    Size,
    /// Blocks.
    Count,
    /// Bytes that came less bytes that went since the mark (SIGUSR1), or without one since the last report.
    Growth,
}

impl From<OrderArg> for Order {
    fn from(order: OrderArg) -> Self {
        match order {
            OrderArg::Size => Self::Size,
            OrderArg::Count => Self::Count,
            OrderArg::Growth => Self::Growth,
        }
    }
}

impl TryFrom<ViewArgs> for View {
    type Error = ConfigError;

    fn try_from(args: ViewArgs) -> Result<Self, ConfigError> {
        let older = match (args.older, args.combined_only) {
            (Some(_), true) => return Err(ConfigError::AgesNotRead),
            (None, true) => None,
            (Some(text), false) => Some(parse_older(&text)?),
            (None, false) => Some(View::default().older.unwrap_or(Duration::ZERO)),
        };
        Ok(Self {
            older,
            sort: args.sort.into(),
            ..Self::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn view(arguments: &str) -> Result<View, ConfigError> {
        let arguments = ["memleak", "-p", "1"]
            .into_iter()
            .chain(arguments.split_whitespace());
        let cli = Cli::try_parse_from(arguments).expect("the command line parses");
        cli.trace.view.try_into()
    }

    /// Ages: half a second if nothing is said, any whole number of milliseconds, none with totals only; to ask for
    /// both is refused, also for the same half second.
    #[test]
    fn ages() {
        let older = |arguments: &str| view(arguments).map(|view| view.older);
        let milliseconds = |number| Ok(Some(Duration::from_millis(number)));
        assert_eq!(older(""), milliseconds(500));
        assert_eq!(older("-o 0"), milliseconds(0));
        assert_eq!(older("--older 60000"), milliseconds(60_000));
        assert_eq!(older(&format!("-o {}", u64::MAX)), milliseconds(u64::MAX));
        for combined in ["-C", "--combined-only"] {
            assert_eq!(older(combined), Ok(None));
            assert_eq!(
                older(&format!("{combined} -o 500")),
                Err(ConfigError::AgesNotRead)
            );
        }
        for wrong in ["1.5", "5s", "x", "18446744073709551616"] {
            let error = ConfigError::Older(wrong.to_owned());
            assert_eq!(older(&format!("-o {wrong}")), Err(error));
        }
    }

    /// The order of stacks is by size if nothing is said.
    #[test]
    fn order() {
        let sort = |arguments: &str| view(arguments).map(|view| view.sort);
        assert_eq!(sort(""), Ok(Order::Size));
        assert_eq!(sort("--sort count"), Ok(Order::Count));
        assert_eq!(sort("--sort growth"), Ok(Order::Growth));
    }
}
