//! Recordings: the reports of a trace in one file, which can be read later and on other machines, without
//! root and without the traced programs.
//!
//! A recording has a header and chunks; each chunk is written whole (`chunk`). Each chunk is a
//! [CBOR](https://www.rfc-editor.org/rfc/rfc8949) item: types of [`model`](leak_report::model) in their serde
//! form, with field names (`chunks`).
//!
//! ```text
//! header
//! head    origin of the recording
//! defs    texts, modules with build-ids, names, frames, paths: each once, when first used
//! stks    stacks of a report and their amounts; they refer to definitions by number
//! blks    single blocks of these stacks, if requested
//! rept    the rest of the report, which is complete with it
//!         … defs, stks and rept for each report
//! done    number of reports made and recorded; missing if memleak was killed
//! ```
//!
//! * A report reads back unchanged: each format rendered from it is identical to the byte.
//! * Everything that was written before memleak or the machine stopped can be read.
//! * The size of the file is bounded (`recorder`), and so are the resources for reading it (`read`): a
//!   recording can come from an untrusted source.
//! * Unknown chunk kinds and unknown fields are skipped. A change that older versions must not skip gets a
//!   new format number; the header names the version that wrote it.

mod anonymize;
mod chunk;
mod chunks;
mod read;
mod recorder;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::sinks::output::{OutputError, remedy};
pub use anonymize::Anonymizer;
#[cfg(any(test, fuzzing))]
pub(crate) use chunk::sealed;
use leak_report::model::unix_nanoseconds;
use leak_report::units::size;
pub use read::{Ending, Recorded, Recording, ReportSummary};
pub use recorder::{Recorder, Settings};

/// Origin of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// Version of memleak that recorded.
    pub memleak: String,
    /// Start of the recording, in nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// The recording machine; `None` if anonymized.
    pub host: Option<Host>,
    /// True if names are replaced.
    pub anonymized: bool,
}

/// The machine that recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// Hostname.
    pub name: String,
    /// Kernel release.
    pub release: String,
    /// Architecture, as in [`std::env::consts::ARCH`].
    pub machine: String,
}

impl About {
    /// The origin of a recording that starts now on this machine.
    pub fn current() -> Self {
        let kernel = |name| fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        Self {
            memleak: env!("CARGO_PKG_VERSION").to_owned(),
            created_unix_ns: unix_nanoseconds(SystemTime::now()),
            host: Some(Host {
                name: kernel("hostname").trim().to_owned(),
                release: kernel("osrelease").trim().to_owned(),
                machine: std::env::consts::ARCH.to_owned(),
            }),
            anonymized: false,
        }
    }

    /// The origin of a copy of this recording.
    fn of_copy(&self, anonymize: bool) -> Self {
        Self {
            host: self.host.clone().filter(|_| !anonymize),
            anonymized: self.anonymized || anonymize,
            ..self.clone()
        }
    }
}

/// Failure to create or write a recording.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The file cannot be created or replaced.
    #[error(transparent)]
    File(#[from] OutputError),
    #[error("cannot write `{}`: {error}{}", .path.display(), remedy(error))]
    Write { path: PathBuf, error: io::Error },
    /// The limit is too small for one report.
    #[error(
        "a report takes {}, more than --record-limit allows ({}): raise that, or record less with --sample-bytes",
        size(*.needed),
        size(*.limit)
    )]
    NoRoom {
        /// Bytes that the recording would take with this report alone.
        needed: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A bound of the format is exceeded.
    #[error("a report exceeds a limit of the recording format")]
    TooLarge,
}

impl From<chunk::TooLarge> for RecordError {
    fn from(_: chunk::TooLarge) -> Self {
        Self::TooLarge
    }
}

/// Failure to read a recording.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    #[error("cannot read `{}`: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("`{}` is not a recording: those are made by memleak --record FILE", .0.display())]
    NotARecording(PathBuf),
    /// A file written by `--format json`.
    #[error(
        "`{}` has reports in JSON, which memleak does not read back: record with --record FILE", .0.display()
    )]
    Json(PathBuf),
    /// A recording in another format version.
    #[error(
        "`{}` was recorded by memleak {writer} in format {format}, and this is memleak {}, which reads format {}: {}",
        .path.display(), env!("CARGO_PKG_VERSION"), chunk::FORMAT, other_format(*.format, .writer)
    )]
    Format {
        path: PathBuf,
        /// Format number in the header.
        format: u32,
        /// Version of memleak that wrote it.
        writer: String,
    },
    #[error("`{}` has no complete report: memleak ended before it made one, or the file is \
             damaged", .0.display())]
    Empty(PathBuf),
    /// The content of a valid chunk is wrong.
    #[error("report {report} of `{}` is damaged: {problem}", .path.display())]
    Damaged {
        path: PathBuf,
        /// Number of the report, from 1.
        report: usize,
        problem: String,
    },
}

/// The remedy for a recording in another format.
fn other_format(format: u32, writer: &str) -> String {
    match format < chunk::FORMAT {
        true => "record again, or read it with the memleak that recorded it".to_owned(),
        false => format!("use version {writer} or newer"),
    }
}
