//! Arguments of `memleak verdict`, and those that it shares with a trace's verdicts.

use clap::{Args, ValueEnum};

use super::config::{ConfigError, parse_verdict_limit};
use super::targets::OneTargetArgs;
use crate::commands::Format;
use crate::commands::verdict::Options;
use crate::reach::tags::{Tag, Tags};
use crate::session::VerdictSettings;
use crate::sinks::gate::{SettingsError, parse};

/// Flags of `memleak verdict`.
#[derive(Debug, Args)]
pub struct VerdictArgs {
    /// The process.
    #[command(flatten)]
    pub target: OneTargetArgs,
    /// Stop running threads while the memory is copied, for about 0.3 s per GiB.
    #[arg(long)]
    pub stop: bool,
    /// Start no further pass after this time; blocks not yet judged are reported as unknown.
    ///
    /// [default: 60s]
    #[arg(long, value_name = "TIME")]
    pub verdict_limit: Option<String>,
    /// Recognise pointers with tags in these bits, too; tags in the lowest bits are always tolerated.
    #[arg(long, value_enum, value_name = "BITS", value_delimiter = ',')]
    pub pointer_tags: Vec<Tag>,
    /// List the address of each lost block.
    #[arg(short = 'a', long)]
    pub show_allocs: bool,
    /// Exit with status 1 if this condition is exceeded, for example 'definitely_lost>0'; can be repeated.
    ///
    /// Measures: definitely_lost, indirectly_lost, outstanding (in bytes), blocks, definitely_lost.blocks,
    /// indirectly_lost.blocks. The exit status is 3 if the result is inconclusive: a block reported as lost
    /// was freed, or some blocks could not be judged.
    #[arg(long, value_name = "CONDITION")]
    pub fail_on: Vec<String>,
    /// Format of the output.
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
        let conditions = args.fail_on.iter().map(|text| parse(text));
        let conditions: Vec<_> = conditions
            .collect::<Result<_, _>>()
            .map_err(SettingsError::from)?;
        if let Some(condition) = conditions
            .iter()
            .find(|condition| !condition.measure().is_of_blocks())
        {
            return Err(match condition.measure().is_of_diagnosis() {
                true => ConfigError::OnlyOfDiagnoses(condition.to_string()),
                false => ConfigError::OnlyOfTraces(condition.to_string()),
            });
        }
        Ok(Self {
            process: args.target.check()?.ok_or(ConfigError::NoProcess("verdict"))?,
            settings: VerdictSettings {
                stops: args.stop,
                limit: limit.unwrap_or(default.limit),
                tags: Tags::new(&args.pointer_tags),
                ..default
            },
            conditions,
            list: args.show_allocs,
            format: args.format,
        })
    }
}

/// Words of `--verdict`: which reports have one, and how it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VerdictWord {
    /// Only the last report has a verdict (default).
    Last,
    /// Each report has a verdict.
    Each,
    /// Running threads are stopped while the memory is copied, for about 0.3 s per GiB.
    Stop,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    /// Conditions can use only amounts that a verdict knows without a trace.
    #[test]
    fn conditions_without_a_trace() {
        let options = |condition: &str| {
            let cli = Cli::try_parse_from(["memleak", "verdict", "-p", "7", "--fail-on", condition]);
            let Some(Command::Verdict(args)) = cli.expect("the command line parses").command else {
                panic!("another command");
            };
            Options::try_from(args)
        };
        let accepted = options("definitely_lost>0").expect("it makes sense");
        assert_eq!(accepted.conditions, [parse("definitely_lost>0").expect("valid")]);
        for (condition, part) in [
            (
                "growth>1/s",
                "'growth>1/s' needs a trace: leave it out, or use `memleak --verdict",
            ),
            ("site.definitely_lost>1", "needs a trace"),
            (
                "cause=lost",
                "'cause=lost' is about why memory grows: use it with `memleak why`",
            ),
            ("leaks>1", "`leaks>1`, character 1"),
        ] {
            let refused = options(condition).expect_err(condition).to_string();
            assert!(refused.contains(part), "{refused}");
        }
    }
}
