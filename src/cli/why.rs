//! Arguments of `memleak why`.

use clap::Args;

use leak_report::units::TimeUnit;

use super::config::{ConfigError, parse_max_overhead, parse_time};
use super::targets::OneTargetArgs;
use crate::commands::Format;
use crate::commands::why::Options;

/// Flags of `memleak why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// The process.
    #[command(flatten)]
    pub target: OneTargetArgs,
    /// Time that the diagnosis may take.
    #[arg(value_name = "TIME", default_value = "60s")]
    pub time: String,
    /// Limit on the cost of tracing, in percent of one CPU.
    #[arg(long, value_name = "PCT", default_value = "1")]
    pub max_overhead: String,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub format: Format,
}

impl TryFrom<WhyArgs> for Options {
    type Error = ConfigError;

    fn try_from(args: WhyArgs) -> Result<Self, ConfigError> {
        Ok(Self {
            process: args.target.check()?.ok_or(ConfigError::NoProcess("why"))?,
            time: parse_time("TIME", &args.time, TimeUnit::SECOND)?,
            max_overhead: parse_max_overhead(&args.max_overhead)?,
            format: args.format,
        })
    }
}
