//! Arguments of `memleak why`.

use clap::Args;

use leak_report::units::TimeUnit;

use super::config::{ConfigError, parse_max_overhead, parse_time};
use super::record::RecordArgs;
use super::stray_pid::StrayTime;
use super::targets::AnyTargetArgs;
use crate::commands::Format;
use crate::commands::why::Options;
use crate::process::ProcessName;
use crate::process::select::Selectors;
use crate::sinks::gate::{Condition, SettingsError, parse};
use crate::sinks::output::Destination;

/// Flags of `memleak why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// The process, or those to choose from.
    #[command(flatten)]
    pub targets: AnyTargetArgs,
    /// Time that the diagnosis may take.
    #[arg(value_name = "TIME", default_value = "60s")]
    pub time: String,
    /// Limit on the cost of tracing, in percent of one CPU.
    #[arg(long, value_name = "PCT", default_value = "1")]
    pub max_overhead: String,
    /// Recording of the answer, with the stacks of the trace about the first cause.
    #[command(flatten)]
    pub record: RecordArgs,
    /// Overwrite existing files.
    #[arg(short = 'f', long)]
    pub force: bool,
    /// Exit with status 1 if memory grows for this cause, for example 'cause=lost'; can be repeated.
    ///
    /// KIND of cause=KIND is lost, kept, pinned, free_in_allocator, thread_stacks, mappings, shared_memory,
    /// kernel, huge_pages, files, stack or managed_heap; the condition `grows` is any of them. Memory that is
    /// held without use does not count. The exit status is 3 if the result is inconclusive: growth is not
    /// certain yet, or the cause is only possible.
    #[arg(long, value_name = "CONDITION")]
    pub fail_on: Vec<String>,
    /// Format of the output.
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    pub format: Format,
}

impl WhyArgs {
    /// Checks that TIME is not a process id. Returns a note about a number that may be one.
    ///
    /// # Errors
    ///
    /// If it most likely is a process id.
    pub fn check_stray_pid(&self) -> Result<Option<String>, StrayTime> {
        let is_any = self
            .targets
            .check()
            .is_ok_and(|selectors| selectors == Selectors::default());
        match is_any {
            true => StrayTime::check(&self.time, &ProcessName::of),
            false => Ok(None),
        }
    }
}

impl TryFrom<WhyArgs> for Options {
    type Error = ConfigError;

    fn try_from(args: WhyArgs) -> Result<Self, ConfigError> {
        let destination = Destination {
            overwrite: args.force,
            ..Destination::default()
        };
        let recording = args.record.check_for_trace(&destination)?;
        if args.force && recording.is_none() {
            return Err(ConfigError::NothingToRecord("-f"));
        }
        Ok(Self {
            processes: args.targets.check()?,
            time: parse_time("TIME", &args.time, TimeUnit::SECOND)?,
            max_overhead: parse_max_overhead(&args.max_overhead)?,
            conditions: conditions(&args.fail_on)?,
            recording,
            format: args.format,
        })
    }
}

/// Checks conditions, which must be about a diagnosis.
fn conditions(given: &[String]) -> Result<Vec<Condition>, ConfigError> {
    let conditions = given.iter().map(|text| parse(text));
    let conditions: Vec<_> = conditions
        .collect::<Result<_, _>>()
        .map_err(SettingsError::from)?;
    let other = conditions
        .iter()
        .find(|condition| !condition.measure().is_of_diagnosis());
    match other {
        Some(condition) => Err(ConfigError::NotOfDiagnoses(condition.to_string())),
        None => Ok(conditions),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use leak_report::model::diagnosis::CauseKind;

    use super::*;
    use crate::cli::{Cli, Command};

    fn options(arguments: &str) -> Result<Options, ConfigError> {
        let arguments = ["memleak", "why"].into_iter().chain(arguments.split_whitespace());
        match Cli::try_parse_from(arguments)
            .expect("the command line parses")
            .command
        {
            Some(Command::Why(args)) => (*args).try_into(),
            command => panic!("{command:?}"),
        }
    }

    /// Conditions are about causes, of every kind, and about growth; an error lists the kinds.
    #[test]
    fn conditions_on_causes() {
        let all = options("-p 7 --fail-on cause=lost --fail-on grows").expect("it makes sense");
        let texts: Vec<_> = all.conditions.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["cause=lost", "grows"]);
        for name in CauseKind::NAMES {
            assert!(options(&format!("-p 7 --fail-on cause={name}")).is_ok(), "{name}");
        }
        for (condition, part) in [
            ("cause=leak", CauseKind::NAMES.join(", ")),
            ("blocks>1", "'blocks>1' needs a trace: leave it out".to_owned()),
        ] {
            let error = options(&format!("-p 7 --fail-on {condition}")).expect_err(condition);
            assert!(error.to_string().contains(&part), "{error}");
        }
    }

    /// A recording has the flags that those of traces have.
    #[test]
    fn recordings() {
        let recording = options("-p 7 --record a.memleak --anonymize -f")
            .expect("it makes sense")
            .recording;
        let recording = recording.expect("a recording");
        assert!(recording.overwrite && recording.anonymize);
        for (arguments, part) in [
            ("--anonymize", "--anonymize"),
            ("--record -", "--record"),
            ("-f", "-f"),
        ] {
            let error = options(arguments).expect_err(arguments).to_string();
            assert!(error.contains(part), "{arguments}: {error}");
        }
    }

    /// Processes are chosen by all the flags of other commands; without any, all of them are.
    #[test]
    fn targets() {
        let all = options("30s").expect("it makes sense");
        assert_eq!((all.processes, all.time.as_secs()), (Selectors::default(), 30));
        let some = options("-p 7,nginx --user 0 --container web")
            .expect("it makes sense")
            .processes;
        assert_eq!((some.wanted.len(), some.user.as_deref()), (2, Some("0")));
        assert_eq!(some.container.as_deref(), Some("web"));
        for (arguments, part) in [
            ("-p 1,1", "given twice"),
            ("-p 0", "0 is not a process id"),
            ("--user=", "--user needs a value"),
        ] {
            let error = options(arguments).expect_err(arguments).to_string();
            assert!(error.contains(part), "{arguments}: {error}");
        }
    }
}
