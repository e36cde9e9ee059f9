//! Selection of a report of a recording, and messages about the recording.

use std::ffi::OsStr;
use std::fmt;
use std::num::NonZeroI64;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use chrono::{DateTime, Local};

use crate::sinks::recording::{Ending, Recorded, Recording};
use leak_report::render::{counted, printable};

/// A recording, and the number of one of its reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Path of the recording.
    pub file: PathBuf,
    /// Number of the report, from 1, or from -1 backwards; `None` if none was chosen.
    pub report: Option<NonZeroI64>,
}

impl Source {
    /// Parses `FILE` or `FILE:N`. The name of an existing file is taken whole.
    pub fn parse(text: &OsStr) -> Self {
        let whole = Self {
            file: text.into(),
            report: None,
        };
        if Path::new(text).exists() {
            return whole;
        }
        let bytes = text.as_bytes();
        let Some(colon) = bytes.iter().rposition(|&byte| byte == b':') else {
            return whole;
        };
        let number = std::str::from_utf8(&bytes[colon + 1..]).ok();
        match number.and_then(|number| number.parse().ok()) {
            None => whole,
            Some(number) => Self {
                file: OsStr::from_bytes(&bytes[..colon]).into(),
                report: Some(number),
            },
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.to_string_lossy();
        write!(f, "{}", printable(&file))
    }
}

/// Index of the report with this number.
pub(super) fn index(recording: &Recording, number: NonZeroI64) -> anyhow::Result<usize> {
    let count = recording.count();
    let magnitude = usize::try_from(number.get().unsigned_abs()).unwrap_or(usize::MAX);
    let index = match number.get() > 0 {
        true => Some(magnitude - 1),
        false => count.checked_sub(magnitude),
    };
    match index.filter(|&index| index < count) {
        Some(index) => Ok(index),
        None => bail!(
            "`{}` has no report {number}: it has {}, of which -1 is the last",
            recording.path().display(),
            counted(count as u64, "report")
        ),
    }
}

/// Name of a report where several are compared.
pub(super) fn name(recording: &Recording, index: usize) -> String {
    let file = recording
        .path()
        .file_name()
        .unwrap_or(recording.path().as_os_str());
    let file = file.to_string_lossy();
    match recording.count() {
        1 => file.into_owned(),
        count => format!("{file}, report {} of {count}", index + 1),
    }
}

/// Opens a recording, and logs its origin and whether it is complete.
pub(in super::super) fn open(path: &Path) -> anyhow::Result<Recording> {
    let recording = Recording::open(path)?;
    let about = recording.about();
    let file = path.display();
    let mut from = format!("recorded {}", local_time(about.created_unix_ns));
    if let Some(host) = &about.host {
        let (name, release) = (printable(&host.name), printable(&host.release));
        from = format!("{from} on {name} (Linux {release}, {})", printable(&host.machine));
    }
    if about.anonymized {
        from.push_str(", names replaced");
    }
    let count = recording.count() as u64;
    tracing::info!(
        "`{file}`: {}, {from}, by memleak {}",
        counted(count, "report"),
        printable(&about.memleak)
    );
    let readable = match count {
        1 => "1 report is readable".to_owned(),
        more => format!("{more} reports are readable"),
    };
    match recording.ending() {
        Ending::Done { made } if *made > count => tracing::info!(
            "it reached its --record-limit: it contains {count} of {made} reports, spread evenly over the \
             trace"
        ),
        Ending::Done { .. } => {}
        Ending::Open => {
            tracing::warn!(
                "`{file}` is incomplete: memleak is still writing it, failed to write it, or was killed; \
                 {readable}"
            );
        }
        Ending::Cut(at) => {
            tracing::warn!("`{file}` is truncated within the chunk at byte {at}; {readable}");
        }
        Ending::Damaged { at, why } => {
            tracing::warn!("`{file}` is damaged at byte {at}: {}; {readable}", printable(why));
        }
    }
    Ok(recording)
}

pub(super) fn read(recording: &Recording, index: usize) -> anyhow::Result<Recorded> {
    Ok(recording.report(index)?)
}

/// Formats a time in the local time zone.
pub(in super::super) fn local_time(unix_ns: u64) -> String {
    let nanoseconds = i64::try_from(unix_ns).unwrap_or(i64::MAX);
    let time = DateTime::from_timestamp_nanos(nanoseconds).with_timezone(&Local);
    time.format("%Y-%m-%d %H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number after the last colon selects a report, unless a file has the whole name.
    #[test]
    fn sources() {
        let directory = tempfile::tempdir().expect("a directory");
        let odd = directory.path().join("odd:7");
        std::fs::write(&odd, "").expect("a file");
        let source = |file: &str, report: Option<i64>| Source {
            file: file.into(),
            report: report.and_then(NonZeroI64::new),
        };
        let odd = odd.to_str().expect("UTF-8");
        for (text, expected) in [
            ("a", source("a", None)),
            ("a:1", source("a", Some(1))),
            ("a:-1", source("a", Some(-1))),
            ("a:b:12", source("a:b", Some(12))),
            ("a:", source("a:", None)),
            ("a:0", source("a:0", None)),
            ("a:x", source("a:x", None)),
            (odd, source(odd, None)),
        ] {
            assert_eq!(Source::parse(OsStr::new(text)), expected, "{text}");
        }
        assert_eq!(
            Source::parse(OsStr::new(&format!("{odd}:2"))),
            source(odd, Some(2))
        );
    }
}
