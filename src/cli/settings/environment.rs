//! Settings from environment variables: `MEMLEAK_FORMAT=json` is `--format json`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, ArgAction};

use super::{Entry, Flags, Origin, PREFIX, Value, source_of};
use crate::cli::help::Source;
use crate::sinks::export::TOKEN_VARIABLE;

/// Settings among `variables`. Other programs may use the prefix (`MEMLEAK_DIR` of some build): unknown names
/// are ignored, with a note if one resembles a setting.
pub(super) fn entries(
    variables: &[(OsString, OsString)],
    flags: &Flags,
    notes: &mut Vec<String>,
) -> Vec<Entry> {
    let mut entries = Vec::new();
    for (variable, value) in variables {
        if variable == TOKEN_VARIABLE {
            continue;
        }
        let Some(rest) = variable.to_str().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let name = rest.to_ascii_lowercase().replace('_', "-");
        let Some((command, name)) = split(&name, flags) else {
            if let Some(near) = flags.near(None, &name) {
                let near = near.to_ascii_uppercase().replace('-', "_");
                notes.push(format!(
                    "ignoring {PREFIX}{rest}: no such setting (did you mean {PREFIX}{near}?)"
                ));
            }
            continue;
        };
        let Some(arg) = flags.find(command, name) else {
            continue;
        };
        // An empty variable counts as unset. Flags such as --version are for the command line only.
        if value.is_empty() || source_of(arg) == Source::CommandLine {
            continue;
        }
        entries.push(Entry {
            command: command.map(str::to_owned),
            name: name.to_owned(),
            value: read(arg, value),
            origin: Origin::Variable(format!("{PREFIX}{rest}")),
            trust: Source::Environment,
        });
    }
    // Settings of a subcommand take precedence over those of all.
    entries.sort_by_key(|entry| entry.command.is_none());
    entries
}

/// Subcommand and flag of a name.
fn split<'a>(name: &'a str, flags: &Flags) -> Option<(Option<&'a str>, &'a str)> {
    if flags.find(None, name).is_some() {
        return Some((None, name));
    }
    let (command, flag) = name.split_once('-')?;
    flags.find(Some(command), flag)?;
    Some((Some(command), flag))
}

/// Parses a value: switches are words for yes or no; several values are separate lines.
fn read(arg: &Arg, value: &OsStr) -> Value {
    let word = value.to_str().unwrap_or_default().to_ascii_lowercase();
    match (arg.get_action(), &word[..]) {
        (ArgAction::SetTrue | ArgAction::Count, "1" | "true" | "yes" | "on") => Value::Switch(true),
        (ArgAction::SetTrue | ArgAction::Count, "0" | "false" | "no" | "off") => Value::Switch(false),
        (ArgAction::Append, _) => {
            let lines = value.as_bytes().split(|&byte| byte == b'\n');
            let lines = lines.filter(|line| !line.is_empty());
            Value::List(lines.map(|line| OsString::from_vec(line.to_vec())).collect())
        }
        _ => Value::Text(value.to_owned()),
    }
}
