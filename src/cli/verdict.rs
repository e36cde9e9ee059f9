//! Arguments of `memleak verdict`, and those that it shares with a trace's verdicts.

use clap::{Args, ValueEnum};

use super::config::{ConfigError, parse_pid, parse_verdict_limit};
use crate::commands::Format;
use crate::commands::verdict::Options;
use crate::reach::tags::{Tag, Tags};
use crate::session::VerdictSettings;

/// Flags of `memleak verdict`.
#[derive(Debug, Args)]
pub struct VerdictArgs {
    /// The process.
    #[arg(short = 'p', long = "pid", value_name = "PID")]
    pub pid: String,
    /// Stop the threads that run while the memory is copied, for some 0.3 s per GiB.
    #[arg(long)]
    pub stop: bool,
    /// Begin no further pass after this time; what is not settled by then is unknown.
    ///
    /// [default: 60s]
    #[arg(long, value_name = "TIME")]
    pub verdict_limit: Option<String>,
    /// Take pointers with tags for pointers, too: by default, only tags in the lowest bits do no harm.
    #[arg(long, value_enum, value_name = "BITS", value_delimiter = ',')]
    pub pointer_tags: Vec<Tag>,
    /// List the address of each lost block.
    #[arg(short = 'a', long)]
    pub show_allocs: bool,
    /// Form of the output.
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub format: Format,
}

impl TryFrom<VerdictArgs> for Options {
    type Error = ConfigError;

    fn try_from(args: VerdictArgs) -> Result<Self, ConfigError> {
        let default = VerdictSettings::default();
        let limit = args
            .verdict_limit
            .as_deref()
            .map(parse_verdict_limit)
            .transpose()?;
        Ok(Self {
            pid: parse_pid(&args.pid)?,
            settings: VerdictSettings {
                stops: args.stop,
                limit: limit.unwrap_or(default.limit),
                tags: Tags::new(&args.pointer_tags),
                ..default
            },
            list: args.show_allocs,
            format: args.format,
        })
    }
}

/// Words of `--verdict`: which reports have one, and how it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VerdictWord {
    /// The last report has one; so it is without any word.
    Last,
    /// Each report has one.
    Each,
    /// Threads that run are stopped while the memory is copied, for some 0.3 s per GiB.
    Stop,
}
