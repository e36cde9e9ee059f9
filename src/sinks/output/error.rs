//! Reasons why output cannot be written.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use leak_report::render::Format;

/// Reasons why output cannot be written to its destination.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OutputError {
    #[error("`{}` already exists: use -f to overwrite it, or another name", .0.display())]
    Exists(PathBuf),
    #[error(
        "refusing to write `{}`: owned by user {owner}, who could read it, or redirect it; remove it, or use another name", .path.display()
    )]
    Stranger {
        path: PathBuf,
        /// Owner of the file, or of the link at its name.
        owner: u32,
    },
    #[error("cannot write `{}`: {error}{}", .path.display(), remedy(error))]
    File { path: PathBuf, error: io::Error },
    /// Binary formats would garble a terminal.
    #[error("refusing to write {} to a terminal: use --output FILE, or redirect standard output", .0.name())]
    Terminal(Format),
    #[error("standard output is closed, so the output would be lost: redirect it, for example with > FILE")]
    Closed,
}

/// Remedy for a write error, to be appended to it.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    let is_full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&error.kind());
    if is_full {
        ": free some space there, or choose another file"
    } else if error.kind() == io::ErrorKind::NotFound {
        ": create its directory, or choose another file"
    } else if error.kind() == io::ErrorKind::FileTooLarge {
        ": raise the limit on file sizes (ulimit -f), or choose another file"
    } else {
        ""
    }
}
