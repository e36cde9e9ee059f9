//! Flags of bcc's and libbpf-tools' memleak without a counterpart elsewhere.

use clap::{ArgAction, Args};

use super::config::ConfigError;
use leak_report::render::{CallFormat, Format};

/// Flags that users of bcc's memleak expect.
#[derive(Debug, Args)]
pub struct DialectArgs {
    /// Write a line for each call that allocates or frees, as they come; a report is made at the end only.
    ///
    /// Those that come faster than they can be written are left out and counted. With --format bcc there is
    /// no report, as there; with --format libbpf reports are made as ever, and the lines go to standard
    /// error.
    #[arg(short = 't', long, conflicts_with_all = ["mmap", "faults"])]
    pub trace: bool,
    /// Write the source of what would be loaded into the kernel, and end.
    #[arg(long, hide = true)]
    pub ebpf: bool,
    /// What libbpf-tools' memleak has for -h.
    #[arg(short = '?', long, hide = true, action = ArgAction::HelpShort)]
    pub usage: Option<bool>,
}

impl DialectArgs {
    /// Form of call lines in `format`; `None` if they are not requested.
    pub(super) fn calls(&self, format: Format) -> Result<Option<CallFormat>, ConfigError> {
        if !self.trace {
            return Ok(None);
        }
        let call_format = format.call_format();
        call_format
            .map(Some)
            .ok_or(ConfigError::NoPlaceForCalls(format.name()))
    }
}
