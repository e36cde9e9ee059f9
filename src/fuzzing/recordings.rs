//! Claims about untrusted recordings.

use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use super::choices::Choices;
use crate::sinks::recording::{Recorder, Recording, Settings, sealed};
use leak_report::model::Report;
use leak_report::render::{Format, render};

/// Maximum number of reports of one recording that are read.
const MAX_REPORTS: usize = 4;
/// First byte of recordings; other inputs are chunks without compression and checksums.
const FIRST_BYTE: u8 = 0x89;

/// A recording is read or refused; reports that are read can be rendered in every format, and are the same
/// after being recorded and read again.
pub(super) fn recording(bytes: &[u8]) {
    let file = match bytes.first() {
        Some(&FIRST_BYTE) => bytes.to_vec(),
        Some(_) | None => sealed(&chunks(bytes)),
    };
    let mut place = tempfile::tempfile().expect("a file");
    place.write_all(&file).expect("room");
    let path = PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()));
    let Ok(recording) = Recording::open(&path) else {
        return;
    };
    for index in 0..recording.count().min(MAX_REPORTS) {
        let summary = recording.summary(index);
        let Ok(recorded) = recording.report(index) else {
            continue;
        };
        assert!(summary.is_ok_and(|summary| summary.number == recorded.number));
        record_again(recorded.number, &recorded.report);
    }
}

/// Repeated: four letters, a length of two bytes, and that number of bytes of CBOR.
fn chunks(bytes: &[u8]) -> Vec<([u8; 4], Vec<u8>)> {
    let mut choices = Choices(bytes);
    let mut chunks = Vec::new();
    while !choices.0.is_empty() {
        let kind = choices.take();
        let length = usize::from(u16::from_le_bytes(choices.take())).min(choices.0.len());
        let (payload, rest) = choices.0.split_at(length);
        chunks.push((kind, payload.to_vec()));
        choices = Choices(rest);
    }
    chunks
}

/// The report in every format.
fn shown(report: &Report) -> Vec<Vec<u8>> {
    let shown = Format::all().map(|format| {
        let mut out = Vec::new();
        render(report, format, &mut out).expect("nothing refuses it");
        out
    });
    shown.collect()
}

fn record_again(number: u64, report: &Report) {
    let shown_before = shown(report);
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("again");
    let settings = Settings {
        file: file.clone(),
        overwrite: false,
        limit: Settings::DEFAULT_LIMIT,
        anonymize: false,
    };
    let mut recorder = Recorder::create(&settings).expect("a new file");
    if recorder.record(number, report).is_err() || recorder.finish().is_err() {
        return;
    }
    let second = read(&file);
    assert!(shown(&second) == shown_before);
    fs::remove_file(&file).expect("it is ours");
}

fn read(path: &Path) -> Report {
    let recording = Recording::open(path).expect("what was recorded");
    recording.report(0).expect("what was recorded").report
}
