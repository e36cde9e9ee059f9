//! Flags of bcc's and libbpf-tools' memleak without a counterpart elsewhere.

use clap::{ArgAction, Args};

use super::config::ConfigError;
use leak_report::render::{CallFormat, Format};

/// Flags that users of bcc's memleak expect.
#[derive(Debug, Args)]
pub struct DialectArgs {
    /// Write a line for each call that allocates or frees, and make a report only at the end.
    ///
    /// Calls that arrive faster than they can be written are left out and counted. As bcc's memleak does,
    /// --format bcc makes no report; --format libbpf makes reports as usual and writes the lines to standard
    /// error.
    #[arg(short = 't', long, conflicts_with_all = ["mmap", "faults"])]
    pub trace: bool,
    /// Print the source of the BPF programs that would be loaded, and exit.
    #[arg(long, hide = true)]
    pub ebpf: bool,
    /// Print help; libbpf-tools' memleak has this flag for it.
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
