//! Settings from outside the command line, and how they are merged with it.
//!
//! ```text
//!  command line  >  MEMLEAK_*  >  the user's file  >  /etc/memleak/config.toml  >  defaults
//! ```
//!
//! Names are those of the long flags. A setting replaces the whole value of those to its right. Settings are
//! habits, the command line is a request: a setting that conflicts with the command line, or with a setting
//! of higher precedence, is left out without a message; one that is invalid by itself is an error that names
//! its origin.
//!
//! `file` decides which files are read and trusted, `table` parses them; this module interprets their
//! entries. There is no second parser: settings are inserted as flags before the given ones, one at a time,
//! and clap and `config` check the result each time.

mod environment;
mod file;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, FromArgMatches};
use thiserror::Error;

use super::help::{self, Page, Source};
use super::targets::TARGET_FLAGS;
use super::{Cli, Command, McpSource};
use crate::cli::config::{Config, ConfigError};
use crate::commands::replay::{DifferenceOptions, ReportOptions, TrendOptions};
use crate::commands::{doctor, top, verdict, why};
pub use file::FileError;

/// Prefix of variables.
const PREFIX: &str = "MEMLEAK_";

/// Minimum likeness of a known name to be suggested for an unknown one (1: equal).
const LIKENESS: f64 = 0.65;

/// The command line merged with all settings.
#[derive(Debug)]
pub struct Parsed {
    pub cli: Cli,
    /// Warnings about settings that were ignored.
    pub notes: Vec<String>,
    /// Origins of settings left out because they conflict with others.
    pub yielded: Vec<Origin>,
}

/// Error of the command line or of a setting; includes requests for help.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// From clap; also a request for help or the version.
    #[error("{}", one_line(.0))]
    CommandLine(#[from] clap::Error),
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// An invalid setting.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingError {
    #[error("{origin}: unknown setting `{name}`{}: names are those of the long flags in memleak --help", nearest(.near))]
    Unknown {
        origin: Origin,
        /// Name as written.
        name: String,
        /// Closest known name.
        near: Option<String>,
    },
    /// The flag exists, but not for this origin.
    #[error("{origin}: `{name}` cannot be set here: use the flag on the command line")]
    Misplaced { origin: Origin, name: String },
    #[error("{origin}: `{name}` must be {wanted}")]
    Kind {
        origin: Origin,
        name: String,
        /// Expected kind of value.
        wanted: &'static str,
    },
    #[error("{origin}: {error}")]
    Value { origin: Origin, error: String },
}

fn nearest(near: &Option<String>) -> String {
    near.as_ref()
        .map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"))
}

/// Place where a setting was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Name of an environment variable.
    Variable(String),
    /// File and line number.
    File(PathBuf, usize),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => f.write_str(name),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
        }
    }
}

/// A setting as written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// Subcommand that it is for; `None` for a trace.
    command: Option<String>,
    /// Name of the flag.
    name: String,
    value: Value,
    origin: Origin,
    /// Level of flags that its origin may set.
    trust: Source,
}

/// Value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Switch(bool),
    Text(OsString),
    List(Vec<OsString>),
    /// A value of a kind that no flag has.
    Other,
}

/// Reads the command line, the environment and the settings files.
///
/// # Errors
///
/// If one of them is invalid, or help is requested.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Parsed, ParseError> {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let variables: Vec<_> = match file::is_privileged_by_file() {
        true => Vec::new(),
        false => std::env::vars_os().collect(),
    };
    parse_with(&arguments, &variables, file::read_all)
}

/// Merges the command line with `variables` and the files that `read` returns.
fn parse_with(
    arguments: &[OsString],
    variables: &[(OsString, OsString)],
    read: impl FnOnce(&file::FileChoice) -> Result<Vec<(PathBuf, String, Source)>, FileError>,
) -> Result<Parsed, ParseError> {
    let flags = Flags::new();
    let given = flags.command.clone().try_get_matches_from(arguments)?;
    let mut notes = Vec::new();
    let mut entries = environment::entries(variables, &flags, &mut notes);
    for (path, text, trust) in read(&named_files(&given, &entries))? {
        entries.extend(table::entries(&path, &text, trust)?);
    }
    merge(&flags, arguments, &given, entries, notes)
}

/// Parses the text of a settings file, for fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn check_text(text: &str) -> Result<(), FileError> {
    table::entries(std::path::Path::new("config.toml"), text, Source::Anyone).map(drop)
}

/// Colour choice of the command line or environment, found without parsing the rest: for errors about the
/// rest.
pub fn wanted_color(arguments: &[OsString]) -> Option<super::ColorArg> {
    use clap::ValueEnum;
    let own = arguments.iter().take_while(|argument| *argument != "--");
    let words: Vec<_> = own.filter_map(|argument| argument.to_str()).collect();
    let joined = words.iter().filter_map(|word| word.strip_prefix("--color="));
    let pairs = words.windows(2).filter(|pair| pair[0] == "--color");
    let wanted = joined.chain(pairs.map(|pair| pair[1])).next_back();
    let variable = std::env::var("MEMLEAK_COLOR").ok();
    let wanted = wanted.map(str::to_owned).or(variable)?;
    super::ColorArg::from_str(&wanted, false).ok()
}

/// Settings files to read, according to the command line and the environment.
fn named_files(given: &ArgMatches, entries: &[Entry]) -> file::FileChoice {
    let of_environment = |name| {
        entries
            .iter()
            .find(|entry| entry.name == name)
            .map(|entry| &entry.value)
    };
    let on_command_line = |id| given.value_source(id) == Some(ValueSource::CommandLine);
    if on_command_line("no_config") {
        return file::FileChoice::None;
    }
    if let Some(path) = given.get_one::<PathBuf>("config") {
        return file::FileChoice::One(path.clone());
    }
    match (of_environment("no-config"), of_environment("config")) {
        (Some(Value::Switch(true)), _) => file::FileChoice::None,
        (_, Some(Value::Text(path))) => file::FileChoice::One(path.into()),
        _ => file::FileChoice::Default,
    }
}

/// All flags, of memleak without a subcommand and of each subcommand.
struct Flags {
    command: clap::Command,
    by_command: BTreeMap<Option<String>, BTreeMap<String, Arg>>,
}

impl Flags {
    fn new() -> Self {
        let command = super::command(Page::Screen);
        let mut built = command.clone();
        built.build();
        let own = |command: &clap::Command| -> BTreeMap<_, _> {
            let named = |arg: &Arg| Some((name_of(arg)?, arg.clone()));
            command.get_arguments().filter_map(named).collect()
        };
        let of_commands = built.get_subcommands().map(|command| {
            let name = command.get_name().to_owned();
            (Some(name), own(command))
        });
        let by_command = of_commands.chain([(None, own(&built))]).collect();
        Self { command, by_command }
    }

    /// Flag that settings of a subcommand, or of a trace, can name.
    fn find(&self, command: Option<&str>, name: &str) -> Option<&Arg> {
        let key = command.map(str::to_owned);
        self.by_command.get(&key)?.get(name)
    }

    /// Known flag that resembles an unknown one.
    fn near(&self, command: Option<&str>, name: &str) -> Option<String> {
        let flags = self.by_command.get(&command.map(str::to_owned))?.iter();
        let shown = flags.filter(|(_, arg)| !arg.is_hide_set());
        most_like(name, shown.map(|(name, _)| name.as_str()))
    }

    /// Error for an unknown flag or subcommand.
    fn unknown(&self, command: Option<String>, name: String, origin: Origin) -> SettingError {
        let near = self.near(command.as_deref(), &name);
        let is_command = self.by_command.contains_key(&command);
        let (near, name) = match command.filter(|_| !is_command) {
            Some(table) => {
                let commands = self.by_command.keys().flatten();
                (most_like(&table, commands.map(String::as_str)), table)
            }
            None => (near, name),
        };
        SettingError::Unknown { origin, name, near }
    }
}

fn most_like<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<String> {
    let plain = name.to_ascii_lowercase().replace('_', "-");
    let likeness = |other: &str| strsim::normalized_damerau_levenshtein(&plain, other);
    let nearest = names.max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(nearest) >= LIKENESS).then(|| nearest.to_owned())
}

/// Name of a flag in settings; INTERVAL has one, too.
fn name_of(arg: &Arg) -> Option<String> {
    let is_interval = arg.get_id() == "interval";
    let long = arg.get_long().or(is_interval.then_some("interval"));
    long.map(str::to_owned)
}

/// Source level of a flag.
fn source_of(arg: &Arg) -> Source {
    match arg.get_id() == "interval" {
        true => Source::Anyone,
        false => help::source_of(arg.get_id().as_str()),
    }
}

/// Merges the command line with all settings that fit it; `entries` are in descending precedence.
fn merge(
    flags: &Flags,
    arguments: &[OsString],
    given: &ArgMatches,
    entries: Vec<Entry>,
    mut notes: Vec<String>,
) -> Result<Parsed, ParseError> {
    let subcommand = given.subcommand();
    // Settings go behind the subcommand: behind a flag, its name would be taken for the interval.
    let at = 1 + usize::from(subcommand.is_some());
    let name = subcommand.map(|(name, _)| name);
    let own = subcommand.map_or(given, |(_, own)| own);
    let mut waiting = Vec::new();
    let mut known = Vec::new();
    for entry in entries {
        let Some(setting) = check(flags, name, entry, &mut notes)? else {
            continue;
        };
        let is_on_line = |id: &str| {
            own.try_contains_id(id).is_ok() && own.value_source(id) == Some(ValueSource::CommandLine)
        };
        let is_target = TARGET_FLAGS.contains(&setting.id.as_str());
        let is_given = is_on_line(&setting.id) || is_target && TARGET_FLAGS.into_iter().any(is_on_line);
        if !is_given && !known.contains(&setting.id) {
            known.push(setting.id.clone());
            waiting.push(setting);
        }
    }
    let mut line = Line {
        command: flags.command.clone(),
        arguments: arguments.to_vec(),
        at: at.min(arguments.len()),
    };
    // One setting may need another (--force needs --output): those that do not fit are retried while any
    // fits.
    while line.take_all(&mut waiting)? {}
    Ok(Parsed {
        cli: line.parse(&[])?,
        notes,
        yielded: waiting.into_iter().map(|setting| setting.origin).collect(),
    })
}

/// A setting as flags of the command line.
struct Setting {
    id: String,
    words: Vec<OsString>,
    origin: Origin,
}

/// Checks an entry for the command `name`; `None` if it is for another command, or ignored with a note.
fn check(
    flags: &Flags,
    name: Option<&str>,
    entry: Entry,
    notes: &mut Vec<String>,
) -> Result<Option<Setting>, SettingError> {
    let Entry { origin, .. } = entry;
    let Some(arg) = flags.find(entry.command.as_deref(), &entry.name) else {
        return Err(flags.unknown(entry.command, entry.name, origin));
    };
    let (source, flag) = (source_of(arg), entry.name);
    if source > entry.trust && entry.trust == Source::Anyone && source == Source::Trusted {
        notes.push(format!(
            "{origin}: ignoring `{flag}`, as the file is not root's: use the flag on the command line, or name the file with \
             --config"
        ));
        return Ok(None);
    }
    if source > entry.trust {
        return Err(SettingError::Misplaced { origin, name: flag });
    }
    let words = words(arg, &flag, entry.value).map_err(|wanted| SettingError::Kind {
        origin: origin.clone(),
        name: flag,
        wanted,
    })?;
    // `live` is a trace; global flags apply to every command.
    let is_trace = matches!(name, None | Some("live"));
    let is_ours = match &entry.command {
        Some(command) => name == Some(command),
        None => is_trace || arg.is_global_set(),
    };
    let id = arg.get_id().to_string();
    Ok(is_ours.then_some(Setting { id, words, origin }))
}

/// A flag with a value as words of the command line, or a description of the value it needs.
fn words(arg: &Arg, name: &str, value: Value) -> Result<Vec<OsString>, &'static str> {
    let flag = || OsString::from(format!("--{name}"));
    let with = |value: &OsStr| {
        let mut word = flag();
        word.push("=");
        word.push(value);
        word
    };
    match (arg.get_action(), value) {
        (ArgAction::SetTrue | ArgAction::Count, Value::Switch(true)) => Ok(vec![flag()]),
        (ArgAction::SetTrue | ArgAction::Count, Value::Switch(false)) => Ok(Vec::new()),
        (ArgAction::Count, Value::Text(text)) => {
            let times = text.to_str().and_then(|text| text.parse().ok());
            let times: u8 = times
                .filter(|times| *times <= 3)
                .ok_or("true, false, or 0 to 3")?;
            Ok((0..times).map(|_| flag()).collect())
        }
        (ArgAction::SetTrue, _) => Err("true or false"),
        (ArgAction::Count, _) => Err("true, false, or 0 to 3"),
        (_, Value::Text(text)) if arg.is_positional() => Ok(vec![text]),
        (_, Value::Text(text)) => Ok(vec![with(&text)]),
        (ArgAction::Append, Value::List(texts)) => Ok(texts.iter().map(|text| with(text)).collect()),
        (ArgAction::Append, _) => Err("a text or a list of texts"),
        _ => Err("one text or number"),
    }
}

/// A command line that settings are inserted into.
struct Line {
    command: clap::Command,
    arguments: Vec<OsString>,
    /// Position where settings are inserted.
    at: usize,
}

impl Line {
    /// Inserts all settings that fit. Returns true if there were any.
    fn take_all(&mut self, waiting: &mut Vec<Setting>) -> Result<bool, ParseError> {
        let before = waiting.len();
        let mut left = Vec::new();
        for setting in std::mem::take(waiting) {
            if !self.take(&setting)? {
                left.push(setting);
            }
        }
        *waiting = left;
        Ok(waiting.len() < before)
    }

    /// Inserts a setting if it fits. Returns true if it did.
    fn take(&mut self, setting: &Setting) -> Result<bool, ParseError> {
        let wrong = |error: String| SettingError::Value {
            origin: setting.origin.clone(),
            error,
        };
        let with = match self.parse(&setting.words) {
            Ok(cli) => config_error(cli),
            Err(error) if error.kind() == ErrorKind::ArgumentConflict => return Ok(false),
            Err(error) => return Err(wrong(one_line(&error)).into()),
        };
        // An error that exists without the setting, too, is not the setting's.
        let is_applied = match with {
            None => true,
            Some(error) if Some(&error) == config_error(self.parse(&[])?).as_ref() => true,
            Some(error) if error.is_of_several() => false,
            Some(error) => return Err(wrong(error.to_string()).into()),
        };
        if is_applied {
            let words = setting.words.iter().cloned();
            self.arguments.splice(self.at..self.at, words);
        }
        Ok(is_applied)
    }

    fn parse(&self, words: &[OsString]) -> Result<Cli, clap::Error> {
        let (before, after) = self.arguments.split_at(self.at);
        let line = before.iter().chain(words).chain(after);
        let matches = self.command.clone().try_get_matches_from(line)?;
        Cli::from_arg_matches(&matches)
    }
}

/// Error in the meaning of a command line that parses.
fn config_error(cli: Cli) -> Option<ConfigError> {
    match cli.command {
        None => Config::try_from(cli.trace).err(),
        Some(Command::Live(args)) => Config::try_from(args.live()).err(),
        Some(Command::Report(args)) => ReportOptions::try_from(*args).err(),
        Some(Command::Diff(args)) => DifferenceOptions::try_from(args).err(),
        Some(Command::Trend(args)) => TrendOptions::try_from(args).err(),
        Some(Command::Doctor(args)) => doctor::Options::try_from(args).err(),
        Some(Command::Top(args)) => top::Options::try_from(*args).err(),
        Some(Command::Verdict(args)) => verdict::Options::try_from(args).err(),
        Some(Command::Why(args)) => why::Options::try_from(*args).err(),
        Some(Command::Mcp(args)) => McpSource::try_from(args).err(),
        Some(Command::Table { .. } | Command::Library(_) | Command::Completions(_) | Command::Man(_)) => None,
    }
}

/// A command-line error on one line.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first: Vec<_> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    let first = first.join(" ");
    let line = first.strip_prefix("error: ").unwrap_or(&first);
    format!("{line}{}{}", hint_of_pids(error), hint_of_units(error))
}

/// Hint for `--unit nginx.service`, as systemd's own tools name the flag.
fn hint_of_units(error: &clap::Error) -> &'static str {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag))
            if error.kind() == ErrorKind::InvalidValue && flag.starts_with("--unit ") =>
        {
            "; to select a systemd unit, use --systemd-unit, as in --systemd-unit nginx.service"
        }
        _ => "",
    }
}

/// Hint for a stray number: `-p $(pidof server)` gives one for each process.
fn hint_of_pids(error: &clap::Error) -> &'static str {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text))
            if error.kind() == ErrorKind::UnknownArgument && text.parse::<u32>().is_ok() =>
        {
            "; to trace several processes, separate them by commas, as in -p 17,18"
        }
        _ => "",
    }
}
