//! Parses a settings file: TOML, with keys named like flags and a table for each subcommand. Does not access
//! files.
//!
//! ```toml
//! format = "json"
//! top = 20
//! obj = ["libc.so.6", "libfoo.so"]
//! [report]
//! format = "text"
//! ```
//!
//! Errors quote only keys of the file: its reader may not be permitted to read it.

use std::ffi::OsString;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeArray, DeFloat, DeInteger, DeTable, DeValue};

use super::{Entry, FileError, Origin, Value};
use crate::cli::help::Source;

/// Entries of a file, those of subcommands first.
pub(super) fn entries(path: &Path, text: &str, trust: Source) -> Result<Vec<Entry>, FileError> {
    let line_of = |at: usize| 1 + text.bytes().take(at).filter(|&byte| byte == b'\n').count();
    let document = DeTable::parse(text).map_err(|error| FileError::Syntax {
        path: path.to_owned(),
        line: line_of(error.span().map_or(0, |span| span.start)),
    })?;
    let mut entries = Vec::new();
    let mut add = |command: Option<&str>, name: &Spanned<_>, value: &Spanned<DeValue<'_>>| {
        let name: &Spanned<std::borrow::Cow<'_, str>> = name;
        entries.push(Entry {
            command: command.map(str::to_owned),
            name: printable(name.get_ref()),
            value: read(value.get_ref()),
            origin: Origin::File(path.to_owned(), line_of(name.span().start)),
            trust,
        });
    };
    for (name, value) in document.get_ref() {
        let Some(table) = value.get_ref().as_table() else {
            add(None, name, value);
            continue;
        };
        let command = printable(name.get_ref());
        table
            .iter()
            .for_each(|(name, value)| add(Some(&command), name, value));
    }
    // Settings of a subcommand take precedence over those of all.
    entries.sort_by_key(|entry| entry.command.is_none());
    Ok(entries)
}

/// A key for messages, escaped and cut to 64 characters.
fn printable(name: &str) -> String {
    let short: String = name.chars().take(64).collect();
    short.escape_debug().to_string()
}

fn read(value: &DeValue<'_>) -> Value {
    if let Some(switch) = value.as_bool() {
        return Value::Switch(switch);
    }
    if let Some(values) = value.as_array() {
        return list(values);
    }
    text(value).map_or(Value::Other, Value::Text)
}

/// Value as it would be written behind a flag.
fn text(value: &DeValue<'_>) -> Option<OsString> {
    let integer = value.as_integer().filter(|number| number.radix() == 10);
    let number = integer.map(DeInteger::as_str);
    let number = number.or_else(|| value.as_float().map(DeFloat::as_str));
    value.as_str().or(number).map(Into::into)
}

fn list(values: &DeArray<'_>) -> Value {
    let texts: Option<Vec<_>> = values.iter().map(|value| text(value.get_ref())).collect();
    texts.map_or(Value::Other, Value::List)
}
