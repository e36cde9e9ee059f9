//! Settings that are made elsewhere than on the command line, and how they and it become one.
//!
//! ```text
//!  command line  >  MEMLEAK_*  >  the user's file  >  /etc/memleak/config.toml  >  what is so without any
//! ```
//!
//! Names are those of the long flags. What is set higher up replaces what is set below it, whole. Settings are habits, the
//! command line is a wish: a setting that makes no sense beside it (or beside a setting higher up) yields without a word,
//! one that makes no sense by itself is an error, which says where it was made.
//!
//! Which files there are and who is believed is `file`'s, what is in them `table`'s; here is what it means. There is no
//! second parser: settings become flags in front of those that were given, one after another, and clap and `config` are
//! asked after each.

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
use super::{Cli, Command};
use crate::cli::config::{Config, ConfigError};
use crate::commands::doctor;
use crate::commands::replay::{DifferenceOptions, ReportOptions, TrendOptions};
pub use file::FileError;

/// Begins the names of variables.
const PREFIX: &str = "MEMLEAK_";

/// Two names are taken for the same with a slip in one, from so much likeness on (1: they are equal).
const LIKENESS: f64 = 0.65;

/// What the user wants.
#[derive(Debug)]
pub struct Parsed {
    /// All of it.
    pub cli: Cli,
    /// Settings that were left out, and why, to be said as warnings.
    pub notes: Vec<String>,
    /// Where settings were made that do not go with the rest.
    pub yielded: Vec<Origin>,
}

/// It is not clear what the user wants.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ParseError {
    /// Of the command line, or a wish for help.
    #[error("{}", one_line(.0))]
    CommandLine(#[from] clap::Error),
    /// Of a setting elsewhere.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Of a file.
    #[error(transparent)]
    File(#[from] FileError),
}

/// A setting that cannot be one.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingError {
    /// No flag has this name.
    #[error("{origin}: unknown setting `{name}`{}: names are those of the long flags in memleak --help", nearest(.near))]
    Unknown {
        /// Where it was made.
        origin: Origin,
        /// As it was written.
        name: String,
        /// What may be meant.
        near: Option<String>,
    },
    /// A flag that is a wish.
    #[error("{origin}: `{name}` cannot be set here: use the flag on the command line")]
    Misplaced {
        /// Where it was made.
        origin: Origin,
        /// The flag.
        name: String,
    },
    /// A value of the wrong kind.
    #[error("{origin}: `{name}` must be {wanted}")]
    Kind {
        /// Where it was made.
        origin: Origin,
        /// The flag.
        name: String,
        /// What it is to be.
        wanted: &'static str,
    },
    /// A value that the flag cannot have.
    #[error("{origin}: {error}")]
    Value {
        /// Where it was made.
        origin: Origin,
        /// What is wrong with it.
        error: String,
    },
}

fn nearest(near: &Option<String>) -> String {
    near.as_ref()
        .map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"))
}

/// Where a setting was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In the environment.
    Variable(String),
    /// In a file, in a line.
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

/// A setting as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// The subcommand that it is for; none for a trace.
    command: Option<String>,
    /// The flag.
    name: String,
    value: Value,
    origin: Origin,
    /// Which flags are believed of where it was made.
    trust: Source,
}

/// Its value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Switch(bool),
    Text(OsString),
    List(Vec<OsString>),
    /// Something that no flag has.
    Other,
}

/// Reads the command line, the environment and the files.
///
/// # Errors
///
/// One of them makes no sense, or help was asked for.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Parsed, ParseError> {
    let arguments: Vec<_> = arguments.into_iter().collect();
    let variables: Vec<_> = match file::is_privileged_by_file() {
        true => Vec::new(),
        false => std::env::vars_os().collect(),
    };
    parse_with(&arguments, &variables, file::read_all)
}

/// The same, where the environment is `variables`, and files are read by `read`.
fn parse_with(
    arguments: &[OsString],
    variables: &[(OsString, OsString)],
    read: impl FnOnce(&file::Wanted) -> Result<Vec<(PathBuf, String, Source)>, FileError>,
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

/// Whether the text of a file is one of settings: for fuzzers.
#[cfg(any(test, fuzzing))]
pub(crate) fn check_text(text: &str) -> Result<(), FileError> {
    table::entries(std::path::Path::new("config.toml"), text, Source::Anyone).map(drop)
}

/// Colours that are asked for, found without understanding the rest: for what is said of the rest.
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

/// The files that are to be read, as the command line and the environment have it.
fn named_files(given: &ArgMatches, entries: &[Entry]) -> file::Wanted {
    let of_environment = |name| {
        entries
            .iter()
            .find(|entry| entry.name == name)
            .map(|entry| &entry.value)
    };
    let on_command_line = |id| given.value_source(id) == Some(ValueSource::CommandLine);
    if on_command_line("no_config") {
        return file::Wanted::None;
    }
    if let Some(path) = given.get_one::<PathBuf>("config") {
        return file::Wanted::One(path.clone());
    }
    match (of_environment("no-config"), of_environment("config")) {
        (Some(Value::Switch(true)), _) => file::Wanted::None,
        (_, Some(Value::Text(path))) => file::Wanted::One(path.into()),
        _ => file::Wanted::Usual,
    }
}

/// The flags that there are, of memleak without a subcommand and of each.
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

    /// A flag that settings of a subcommand, or of a trace, can name.
    fn find(&self, command: Option<&str>, name: &str) -> Option<&Arg> {
        let key = command.map(str::to_owned);
        self.by_command.get(&key)?.get(name)
    }

    /// The flag that is most like one that there is not.
    fn near(&self, command: Option<&str>, name: &str) -> Option<String> {
        let flags = self.by_command.get(&command.map(str::to_owned))?.iter();
        let shown = flags.filter(|(_, arg)| !arg.is_hide_set());
        most_like(name, shown.map(|(name, _)| name.as_str()))
    }

    /// A flag that there is not, or a subcommand.
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

/// How settings name a flag; the time between reports has a name, too.
fn name_of(arg: &Arg) -> Option<String> {
    let is_interval = arg.get_id() == "interval";
    let long = arg.get_long().or(is_interval.then_some("interval"));
    long.map(str::to_owned)
}

/// Where a flag can be set.
fn source_of(arg: &Arg) -> Source {
    match arg.get_id() == "interval" {
        true => Source::Anyone,
        false => help::source_of(arg.get_id().as_str()),
    }
}

/// The command line with all settings that go with it; `entries` have those first that come first.
fn merge(
    flags: &Flags,
    arguments: &[OsString],
    given: &ArgMatches,
    entries: Vec<Entry>,
    mut notes: Vec<String>,
) -> Result<Parsed, ParseError> {
    let subcommand = given.subcommand();
    // It comes first: behind a flag it would be the interval.
    let at = 1 + usize::from(subcommand.is_some());
    let name = subcommand.map(|(name, _)| name);
    let own = subcommand.map_or(given, |(_, own)| own);
    let mut waiting = Vec::new();
    let mut known = Vec::new();
    for entry in entries {
        let Some(setting) = check(flags, name, entry, &mut notes)? else {
            continue;
        };
        let is_given = own.value_source(&setting.id) == Some(ValueSource::CommandLine);
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
    // One may need another (--force is about --output): those that do not go are tried once more.
    while line.take_all(&mut waiting)? {}
    Ok(Parsed {
        cli: line.parse(&[])?,
        notes,
        yielded: waiting.into_iter().map(|setting| setting.origin).collect(),
    })
}

/// A setting as flags.
struct Setting {
    id: String,
    words: Vec<OsString>,
    origin: Origin,
}

/// What an entry means for the command `name`; `None` if that is another's.
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
    // `live` is a trace, and what is said and how is everybody's.
    let is_trace = matches!(name, None | Some("live"));
    let is_ours = match &entry.command {
        Some(command) => name == Some(command),
        None => is_trace || arg.is_global_set(),
    };
    let id = arg.get_id().to_string();
    Ok(is_ours.then_some(Setting { id, words, origin }))
}

/// A flag with this value as it would be written, or what its value is to be.
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

/// A command line that settings are added to.
struct Line {
    command: clap::Command,
    arguments: Vec<OsString>,
    /// Where they are put.
    at: usize,
}

impl Line {
    /// Takes in all settings that go with what is there. Returns whether there were any.
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

    /// Returns whether it goes.
    fn take(&mut self, setting: &Setting) -> Result<bool, ParseError> {
        let wrong = |error: String| SettingError::Value {
            origin: setting.origin.clone(),
            error,
        };
        let with = match self.parse(&setting.words) {
            Ok(cli) => complaint(cli),
            Err(error) if error.kind() == ErrorKind::ArgumentConflict => return Ok(false),
            Err(error) => return Err(wrong(one_line(&error)).into()),
        };
        // What is wrong without it, too, is not its fault.
        let goes = match with {
            None => true,
            Some(error) if Some(&error) == complaint(self.parse(&[])?).as_ref() => true,
            Some(error) if error.is_of_several() => false,
            Some(error) => return Err(wrong(error.to_string()).into()),
        };
        if goes {
            let words = setting.words.iter().cloned();
            self.arguments.splice(self.at..self.at, words);
        }
        Ok(goes)
    }

    fn parse(&self, words: &[OsString]) -> Result<Cli, clap::Error> {
        let (before, after) = self.arguments.split_at(self.at);
        let line = before.iter().chain(words).chain(after);
        let matches = self.command.clone().try_get_matches_from(line)?;
        Cli::from_arg_matches(&matches)
    }
}

/// What is wrong with what is wanted, if it can be parsed.
fn complaint(cli: Cli) -> Option<ConfigError> {
    match cli.command {
        None => Config::try_from(cli.trace).err(),
        Some(Command::Live(args)) => Config::try_from(args.live()).err(),
        Some(Command::Report(args)) => ReportOptions::try_from(*args).err(),
        Some(Command::Diff(args)) => DifferenceOptions::try_from(args).err(),
        Some(Command::Trend(args)) => TrendOptions::try_from(args).err(),
        Some(Command::Doctor(args)) => doctor::Options::try_from(args).err(),
        Some(Command::Table { .. } | Command::Completions(_) | Command::Man(_)) => None,
    }
}

/// A mistake on the command line in one line.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first: Vec<_> = text
        .lines()
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    let first = first.join(" ");
    let line = first.strip_prefix("error: ").unwrap_or(&first);
    format!("{line}{}", hint_of_pids(error))
}

/// A remedy for one number too many: `-p $(pidof server)` gives one for each process.
fn hint_of_pids(error: &clap::Error) -> &'static str {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text))
            if error.kind() == ErrorKind::UnknownArgument && text.parse::<u32>().is_ok() =>
        {
            "; several processes are separated by commas, as in -p 17,18"
        }
        _ => "",
    }
}
