//! Flags for the format and the destination of reports.

use std::path::PathBuf;

use clap::Args;

use super::config::ConfigError;
use crate::sinks::output::Destination;
use leak_report::render::Format;

/// Form and destination of reports.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Format of reports; default: by the extension of the --output file, else text.
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Show three lines of source around each line that is responsible for a stack, in text and html.
    ///
    /// Reads files that debug information names, if they exist here and have the extension of a source file;
    /// with your rights, even under sudo.
    #[arg(long)]
    pub source_lines: bool,
    /// Destination of reports.
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Destination of output.
#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// Write to this file instead of standard output.
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Overwrite existing files.
    #[arg(short = 'f', long)]
    pub force: bool,
}

impl PlaceArgs {
    /// Checks the flags; `-` is standard output. `has_other`: -f also applies to another file.
    pub(super) fn check(&self, has_other: bool) -> Result<Destination, ConfigError> {
        let file = self.output.clone().filter(|file| file.as_os_str() != "-");
        if self.force && file.is_none() && !has_other {
            return Err(ConfigError::NothingToReplace);
        }
        Ok(Destination {
            file,
            overwrite: self.force,
            is_verbose: false,
            most_stacks: None,
            source_lines: false,
        })
    }
}

impl OutputArgs {
    /// Checks the flags. `records`: -f also applies to other files.
    pub(super) fn check(&self, records: bool) -> Result<(Format, Destination), ConfigError> {
        let destination = self.place.check(records)?;
        let format = format_of(self.format, &destination)?;
        let source_lines = self.check_source_lines(format)?;
        let destination = Destination {
            source_lines,
            ..destination
        };
        Ok((format, destination))
    }

    /// Checks the flag for lines of source for reports in `format`.
    pub(super) fn check_source_lines(&self, format: Format) -> Result<bool, ConfigError> {
        match self.source_lines && !matches!(format, Format::Text | Format::Html) {
            true => Err(ConfigError::NoSourceLines(format.name())),
            false => Ok(self.source_lines),
        }
    }
}

/// The requested format, else that of the file's extension, else text.
pub(super) fn format_of(requested: Option<Format>, destination: &Destination) -> Result<Format, ConfigError> {
    match (requested, &destination.file) {
        (Some(format), _) => Ok(format),
        (None, None) => Ok(Format::Text),
        (None, Some(file)) => Format::of_file(file).ok_or_else(|| {
            let endings: Vec<_> = Format::endings().collect();
            ConfigError::UnknownEnding(file.display().to_string(), endings.join(", "))
        }),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Parser, ValueEnum};

    use super::*;
    use crate::cli::Cli;

    fn output(arguments: &str) -> Result<(Format, Destination), ConfigError> {
        let arguments = ["memleak", "-p", "1"]
            .into_iter()
            .chain(arguments.split_whitespace());
        let cli = Cli::try_parse_from(arguments).expect("the command line parses");
        cli.trace.output.check(cli.trace.gate.writes())
    }

    /// Values of `--format` are the names of formats.
    #[test]
    fn names() {
        for format in Format::value_variants() {
            let value = format.to_possible_value().expect("none is left out");
            assert_eq!(format.name(), value.get_name());
        }
    }

    /// The file's extension gives the format, unless --format is given.
    #[test]
    fn formats() {
        let to = |file: &str| Destination {
            file: Some(file.into()),
            overwrite: false,
            ..Destination::default()
        };
        for (arguments, expected) in [
            ("", (Format::Text, Destination::default())),
            ("--format json", (Format::Json, Destination::default())),
            ("--output -", (Format::Text, Destination::default())),
            ("--output a.json", (Format::Json, to("a.json"))),
            ("--output A.TXT", (Format::Text, to("A.TXT"))),
            ("--output a.html", (Format::Html, to("a.html"))),
            ("--output a.json --format text", (Format::Text, to("a.json"))),
            ("--output a --format json", (Format::Json, to("a"))),
        ] {
            assert_eq!(output(arguments), Ok(expected), "{arguments}");
        }
        for arguments in ["--output a.json -f", "--junit a.xml --fail-on blocks>1 -f"] {
            assert!(output(arguments).is_ok_and(|(_, destination)| destination.overwrite));
        }
    }

    /// An unknown extension, and -f without a file, are refused.
    #[test]
    fn invalid_command_lines_are_refused() {
        for name in ["leaks", "leaks.xml"] {
            let error = output(&format!("--output {name}"))
                .expect_err("refused")
                .to_string();
            assert!(error.contains(name) && error.contains(".json"), "{error}");
        }
        for arguments in ["-f", "--output - --force"] {
            assert_eq!(
                output(arguments),
                Err(ConfigError::NothingToReplace),
                "{arguments}"
            );
        }
    }
}
