//! Flags for a program to start.

use std::ffi::OsString;

use clap::Args;

use super::config::{ConfigError, parse_command};

/// Program to start, given as one command (-c) or as words behind `--`.
#[derive(Debug, Args)]
pub struct ProgramArgs {
    /// Start this command and trace it from its first allocation on.
    ///
    /// It is split into words at blanks, with quotes and backslashes as in a shell; for other features of a
    /// shell, use -c "sh -c '…'". Under sudo, it runs as the user who called sudo. Signals that memleak gets
    /// are passed on to it (SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR2).
    #[arg(short = 'c', long, value_name = "COMMAND")]
    pub command: Option<OsString>,
    /// Start the program with a library that samples its allocations (LD_PRELOAD), and trace the samples.
    ///
    /// That costs next to nothing: the program traps only for sampled blocks, one per 512 KiB on average, or
    /// about one per --sample-bytes (64 KiB, 512 KiB, 4 MiB). Amounts are estimates. libmemleak.so stays
    /// loaded in the program and its children. Refused for programs that load no libraries (static, setuid)
    /// or have their own allocator.
    #[arg(long, conflicts_with_all = ["sample_rate", "mmap", "faults", "objects", "prefixes", "functions"])]
    pub preload: bool,
    /// Program to start and trace, with its arguments as separate words behind `--`.
    #[arg(last = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

impl ProgramArgs {
    /// Program and arguments; empty if none is given.
    pub(super) fn words(&self) -> Result<Vec<OsString>, ConfigError> {
        match &self.command {
            Some(_) if !self.program.is_empty() => Err(ConfigError::TwoPrograms),
            Some(command) => parse_command(command),
            None => Ok(self.program.clone()),
        }
    }
}
