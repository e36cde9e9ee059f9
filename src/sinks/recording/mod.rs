//! Recordings: the reports of a trace in one file, to be read later and elsewhere, without root, without the programs
//! that were traced.
//!
//! A recording has a header, and chunks, of which each is written whole (`chunk`). Each chunk is a
//! [CBOR](https://www.rfc-editor.org/rfc/rfc8949) item: types of [`model`](leak_report::model) as they are serialised, with the
//! names of their fields (`chunks`).
//!
//! ```text
//! header
//! head    where the recording comes from
//! defs    texts, modules with build-ids, names, frames, paths: each once, when it is first seen
//! stks    stacks of a report and their amounts, by the numbers of their definitions
//! blks    single blocks of these stacks, if they were asked for
//! rept    everything else of the report: it is whole now
//!         … defs, stks and rept for each report
//! done    how many reports were made and are here; missing, if memleak was killed
//! ```
//!
//! * What a report was is what is read: every format can be made of it, and says the same to the byte.
//! * Whatever was written before memleak or the machine came to an end can be read.
//! * The file is bounded (`recorder`), and so is reading it (`read`): a recording can come from anywhere.
//! * A chunk of an unknown kind is skipped, and a field that is not known. What cannot be understood without them has
//!   another format number, and says which version wrote it.

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
pub use read::{Ending, Glance, Recorded, Recording};
pub use recorder::{Recorder, Settings};

/// Where a recording comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// The version that recorded.
    pub memleak: String,
    /// When it began, in nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// On which machine, if that is said.
    pub host: Option<Host>,
    /// Names are not the real ones.
    pub anonymized: bool,
}

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// What it is called.
    pub name: String,
    /// The kernel's version.
    pub release: String,
    /// The kind of its processor.
    pub machine: String,
}

impl About {
    /// What is said of a recording that begins here and now.
    pub fn here() -> Self {
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

    /// What a recording that is made of it says.
    fn of_copy(&self, anonymize: bool) -> Self {
        Self {
            host: self.host.clone().filter(|_| !anonymize),
            anonymized: self.anonymized || anonymize,
            ..self.clone()
        }
    }
}

/// A recording cannot be made, or not go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Its file cannot be made, or not take another's place.
    #[error(transparent)]
    File(#[from] OutputError),
    /// It cannot be written to.
    #[error("cannot write `{}`: {error}{}", .path.display(), remedy(error))]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Not even one report has room.
    #[error(
        "a report takes {}, more than --record-limit allows ({}): raise that, or record less with --sample-bytes",
        size(*.needed),
        size(*.limit)
    )]
    NoRoom {
        /// What it takes.
        needed: u64,
        /// What there is.
        limit: u64,
    },
    /// More than the format has room for.
    #[error("a part of a report takes more than a recording has room for")]
    TooLarge,
}

impl From<chunk::TooLarge> for RecordError {
    fn from(_: chunk::TooLarge) -> Self {
        Self::TooLarge
    }
}

/// A recording cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be.
    #[error("cannot read `{}`: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Something else.
    #[error("`{}` is not a recording: those are made by memleak --record FILE", .0.display())]
    NotARecording(PathBuf),
    /// What `--format json` writes.
    #[error(
        "`{}` has reports in JSON, which other programs read: for memleak to read, record with --record FILE", .0.display()
    )]
    Json(PathBuf),
    /// Of another format.
    #[error(
        "`{}` was recorded by memleak {writer} in format {format}, and this is memleak {}, which reads format {}: {}",
        .path.display(), env!("CARGO_PKG_VERSION"), chunk::FORMAT, other_format(*.format, .writer)
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        format: u32,
        /// The version that wrote it.
        writer: String,
    },
    /// No report.
    #[error("`{}` holds no whole report: memleak was ended before it made one, or the file is damaged", .0.display())]
    Empty(PathBuf),
    /// Not what was written.
    #[error("report {report} of `{}` is damaged: {what}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which report, from 1.
        report: usize,
        /// What is wrong.
        what: String,
    },
}

/// What to do about a recording of another format.
fn other_format(format: u32, writer: &str) -> String {
    match format < chunk::FORMAT {
        true => "record again, or read it with the memleak that recorded it".to_owned(),
        false => format!("use version {writer} or newer"),
    }
}
