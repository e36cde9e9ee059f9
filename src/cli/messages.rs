//! Flags about memleak itself: verbosity, colours, and settings files.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};
use colorchoice::ColorChoice;
use tracing::Level;
use tracing_subscriber::filter::Targets;

/// Flags that every command has.
#[derive(Debug, Args)]
pub struct MessageArgs {
    /// Print whole text reports, and more messages on standard error; -vv prints all messages.
    #[arg(short, long, action = ArgAction::Count, global = true, conflicts_with = "quiet")]
    pub verbose: u8,
    /// Print warnings and errors only; -qq prints errors only.
    #[arg(short, long, action = ArgAction::Count, global = true)]
    pub quiet: u8,
    /// Use colours in text for people.
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN", global = true)]
    pub color: ColorArg,
    /// Read settings from this file only.
    ///
    /// Without it, settings are read from $XDG_CONFIG_HOME/memleak/config.toml and /etc/memleak/config.toml.
    /// Their names are those of the long flags: format = "json".
    #[arg(long, value_name = "FILE", global = true, conflicts_with = "no_config")]
    pub config: Option<PathBuf>,
    /// Read no settings file.
    #[arg(long, global = true)]
    pub no_config: bool,
}

/// Use of colours in text for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorArg {
    /// On terminals, unless NO_COLOR is set.
    Auto,
    /// On terminals and elsewhere.
    Always,
    /// Nowhere.
    Never,
}

impl MessageArgs {
    /// Arguments that select the same settings files on another command line.
    pub fn settings_words(&self) -> Vec<OsString> {
        match (&self.config, self.no_config) {
            (Some(file), _) => vec!["--config".into(), file.into()],
            (None, true) => vec!["--no-config".into()],
            (None, false) => Vec::new(),
        }
    }

    /// Filter of the messages to print. `is_quiet`: the default is warnings and errors only.
    pub fn verbosity(&self, is_quiet: bool) -> Targets {
        let level = match (self.quiet, self.verbose) {
            (0, 0) if is_quiet => Level::WARN,
            (0, 0) => Level::INFO,
            (0, 1) => Level::DEBUG,
            // Messages of libraries, too.
            (0, _) => return Targets::new().with_default(Level::TRACE),
            (1, _) => Level::WARN,
            _ => Level::ERROR,
        };
        Targets::new().with_target("memleak", level)
    }
}

impl ColorArg {
    /// Sets the colour choice of the whole program.
    pub fn choose(self) {
        let choice = match self {
            Self::Auto => ColorChoice::Auto,
            Self::Always => ColorChoice::Always,
            Self::Never => ColorChoice::Never,
        };
        choice.write_global();
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::Cli;

    /// Each repetition counts, and the flags work behind a subcommand, too.
    #[test]
    fn verbosity() {
        for (flags, expected) in [
            ("", "memleak=info"),
            ("-v", "memleak=debug"),
            ("-vv", "trace"),
            ("-v -v -v", "trace"),
            ("-q", "memleak=warn"),
            ("-qq", "memleak=error"),
        ] {
            for command in ["memleak -p 1", "memleak report a", "memleak doctor"] {
                let line = format!("{command} {flags}");
                let cli = Cli::try_parse_from(line.split_whitespace()).expect("it parses");
                assert_eq!(cli.messages.verbosity(false).to_string(), expected, "{line}");
            }
        }
        assert!(Cli::try_parse_from(["memleak", "-q", "-v"]).is_err());
    }
}
