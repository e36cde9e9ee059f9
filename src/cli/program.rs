//! Flags for a program to start.

use std::ffi::OsString;

use clap::Args;

use super::config::{ConfigError, parse_command};

/// Program to start, given as one command (-c) or as words behind `--`.
#[derive(Debug, Args)]
pub struct ProgramArgs {
    /// Start this command and trace it from its first allocation on.
    ///
    /// It is split into words as a shell does it, by blanks, quotes and backslashes, and nothing else of a
    /// shell: for more, -c "sh -c '…'". Under sudo it runs as the user who called that. Signals that memleak
    /// gets are passed on to it (SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR2).
    #[arg(short = 'c', long, value_name = "COMMAND")]
    pub command: Option<OsString>,
    /// Start the program with a library that samples its allocations (LD_PRELOAD), and trace it by what that
    /// announces.
    ///
    /// That costs next to nothing: the program traps only for the blocks that are sampled, one for each 512
    /// KiB or about what --sample-bytes says (64 KiB, 512 KiB, 4 MiB). Amounts are estimates. The program,
    /// and its children, have libmemleak.so in memory then. Refused for programs that load no libraries
    /// (static, setuid) or have an allocator of their own.
    #[arg(long, conflicts_with_all = ["sample_rate", "mmap", "faults", "objects", "prefixes", "functions"])]
    pub preload: bool,
    /// The same, as words of their own behind `--`: PROGRAM ARGUMENT…
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

impl ProgramArgs {
    /// Program and arguments; empty if none is given.
    pub(super) fn words(self) -> Result<Vec<OsString>, ConfigError> {
        match self.command {
            Some(_) if !self.program.is_empty() => Err(ConfigError::TwoPrograms),
            Some(command) => parse_command(&command),
            None => Ok(self.program),
        }
    }
}
