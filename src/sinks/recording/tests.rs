//! Recordings read back unchanged, and damaged or malicious files are handled.

mod hostile;
mod limit;
mod sample;

use leak_report::samples;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use leak_report::model::diagnosis::Among;
use leak_report::model::{Dictionary, ModuleId, Report, Stack, StackRef, StepStacks, TextKind};
use leak_report::render::{Format, render};
use sample::{grown, rich};

/// A temporary directory, and the settings of a recording in it.
struct Place {
    _directory: TempDir,
    settings: Settings,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings {
            file: directory.path().join("leaks.memleak"),
            overwrite: false,
            limit: Settings::DEFAULT_LIMIT,
            anonymize: false,
        };
        Self {
            _directory: directory,
            settings,
        }
    }

    fn file(&self) -> &Path {
        &self.settings.file
    }

    /// Records `reports` and finishes the recording.
    fn record(&self, reports: &[Report]) {
        let mut recorder = Recorder::create(&self.settings).unwrap();
        for (report, number) in reports.iter().zip(1..) {
            recorder.record(number, report).unwrap();
        }
        recorder.finish().unwrap();
    }

    fn open(&self) -> Recording {
        Recording::open(self.file()).unwrap()
    }

    /// The error of opening a file with these bytes.
    fn refused(&self, bytes: &[u8]) -> String {
        fs::write(self.file(), bytes).unwrap();
        Recording::open(self.file()).map(|_| ()).unwrap_err().to_string()
    }
}

/// Renders a report in every format.
fn formats(report: &Report) -> Vec<Vec<u8>> {
    let written = Format::all().map(|format| {
        let mut out = Vec::new();
        render(report, format, &mut out).unwrap();
        out
    });
    written.collect()
}

/// The content of a report with its references resolved.
fn lines(report: &Report) -> Vec<String> {
    let stack = |stack: StackRef<'_>| {
        let frames: Vec<_> = stack
            .frames()
            .map(|frame| {
                let inlined: Vec<_> = frame.inlined().collect();
                let module = frame.module().map(|module| {
                    (
                        module.path(),
                        module.build_id(),
                        module.get().code.clone(),
                        module.table,
                    )
                });
                format!(
                    "{:?} {module:?} {:?} {:?} {:?} {:?} {inlined:?} {:?}",
                    frame.pc(),
                    frame.place().map(|place| place.svma),
                    frame.found_by,
                    frame.exact,
                    (frame.symbol(), frame.file(), frame.line()),
                    frame.gap(),
                )
            })
            .collect();
        let end_at = stack
            .end_at()
            .map(|at| (at.pc, at.place.map(|place| (place.module.path(), place.svma))));
        let mut amounts = Stack {
            allocator: Dictionary::default().add_text(TextKind::Allocator, ""),
            end_at: None,
            path: None,
            ..stack.get().clone()
        };
        let threads = amounts.makeup.iter_mut().flat_map(|makeup| &mut makeup.threads);
        let threads: Vec<_> = threads
            .map(|thread| thread.name.take().map(|name| report.dictionary.text(name)))
            .collect();
        let allocator = stack.allocator();
        let listed = amounts.blocks.iter_mut().flat_map(|blocks| &mut blocks.listed);
        let classes: Vec<_> = listed
            .map(|block| block.class.take().map(|class| report.dictionary.text(class)))
            .collect();
        format!("{allocator} {end_at:?} {frames:#?} {threads:?} {classes:?} {amounts:#?}")
    };
    let path = |module: Option<ModuleId>| module.map(|module| report.module(module).path());
    let ends = report.ends.iter().map(|end| {
        format!(
            "{:?} {:?} {:?} {:?} {:?}",
            path(end.module),
            end.end,
            end.stacks,
            end.allocations,
            end.addresses
        )
    });
    let steps = report
        .steps
        .iter()
        .map(|steps| format!("{:?} {} {}", path(steps.module), steps.cfi, steps.fp));
    let heading = Report {
        stacks: Vec::new(),
        ends: Vec::new(),
        steps: Vec::new(),
        dictionary: Arc::default(),
        ..report.clone()
    };
    let heading = format!("{heading:#?}");
    report
        .stacks()
        .map(stack)
        .chain(ends)
        .chain(steps)
        .chain([heading])
        .collect()
}

#[track_caller]
fn assert_same(read: &Report, recorded: &Report) {
    assert_eq!(lines(read), lines(recorded));
    assert_eq!(formats(read), formats(recorded));
}

/// Every field of every report reads back unchanged, and every format of it is identical to the byte.
#[test]
fn recorded_reports_are_read_back() {
    let place = Place::new();
    let reports = [
        rich(),
        grown(2),
        samples::full(),
        sample::of_the_kernel(),
        sample::empty(),
    ];
    place.record(&reports);
    let recording = place.open();
    assert_eq!(
        (recording.count(), recording.ending()),
        (5, &Ending::Done { made: 5 })
    );
    for (index, recorded) in reports.iter().enumerate() {
        let read = recording.report(index).unwrap();
        assert_eq!(read.number, index as u64 + 1);
        assert_same(&read.report, recorded);
    }
    let about = recording.about();
    assert_eq!(about.memleak, env!("CARGO_PKG_VERSION"));
    let host = about.host.as_ref().unwrap();
    assert!(!host.name.is_empty() && !host.release.is_empty() && !about.anonymized);
    assert!(
        recording
            .dictionary()
            .modules()
            .any(|module| module.path().ends_with("leaker"))
    );
}

/// Shared definitions are written once: the tenth report takes a small part of the first one's bytes.
#[test]
fn definitions_are_written_once() {
    let place = Place::new();
    let mut recorder = Recorder::create(&place.settings).unwrap();
    let mut sizes = Vec::new();
    for number in 1..=10 {
        recorder.record(number, &grown(200)).unwrap();
        sizes.push(fs::metadata(place.file()).unwrap().len());
    }
    let (first, last) = (sizes[0], sizes[9] - sizes[8]);
    assert!(last * 3 < first, "{sizes:?}");
}

/// A file truncated anywhere still has the reports before that point, and its ending is not `Done`.
#[test]
fn truncated_files_keep_earlier_reports() {
    let place = Place::new();
    let reports = [rich(), grown(3), grown(4)];
    let mut recorder = Recorder::create(&place.settings).unwrap();
    let mut ends = Vec::new();
    for (report, number) in reports.iter().zip(1..) {
        recorder.record(number, report).unwrap();
        ends.push(fs::metadata(place.file()).unwrap().len());
    }
    assert_eq!(place.open().ending(), &Ending::Open);
    recorder.finish().unwrap();
    let file = fs::File::options().write(true).open(place.file()).unwrap();
    let whole = file.metadata().unwrap().len();
    let around = |end: u64| end.saturating_sub(20)..end + 20;
    let close = |length: &u64| ends.iter().any(|&end| around(end).contains(length));
    // Truncate the same file further each time.
    for length in (0..whole)
        .rev()
        .filter(|length| length % 11 == 0 || close(length))
    {
        file.set_len(length).unwrap();
        let complete = ends.iter().filter(|&&end| end <= length).count();
        let Ok(recording) = Recording::open(place.file()) else {
            assert_eq!(complete, 0, "at {length}");
            continue;
        };
        assert_eq!(recording.count(), complete, "at {length}");
        assert!(
            matches!(recording.ending(), Ending::Cut(_) | Ending::Open),
            "at {length}"
        );
        if close(&length) {
            let last = recording.report(complete - 1).unwrap();
            assert_same(&last.report, &reports[complete - 1]);
        }
    }
}

/// A file of another version or type is refused with a remedy.
#[test]
fn other_files() {
    let place = Place::new();
    place.record(&[rich()]);
    let whole = fs::read(place.file()).unwrap();
    let mut newer = whole.clone();
    newer[8] = 7;
    newer[16..22].copy_from_slice(b"12.3.4");
    let refused = place.refused(&newer);
    assert!(
        refused.contains("memleak 12.3.4 in format 7") && refused.contains("12.3.4 or newer"),
        "{refused}"
    );
    let mut older = whole.clone();
    older[8] = 1;
    let refused = place.refused(&older);
    assert!(
        refused.contains("in format 1") && refused.contains("record again"),
        "{refused}"
    );
    let mut json = Vec::new();
    render(&rich(), Format::Json, &mut json).unwrap();
    assert!(place.refused(&json).contains("reports in JSON"));
    for other in [&b"\x7fELF"[..], b"\n", b"\x89memleak", &[0; 4096]] {
        assert!(place.refused(other).contains("is not a recording"));
    }
    for started in [&whole[..HEADER], b""] {
        assert!(place.refused(started).contains("no complete report"));
    }
    fs::remove_file(place.file()).unwrap();
    let missing = Recording::open(place.file()).map(|_| ()).unwrap_err().to_string();
    assert!(
        missing.contains("leaks.memleak") && missing.contains("No such file"),
        "{missing}"
    );
}

const HEADER: usize = chunk::HEADER_BYTES;

/// Additions of later versions are skipped: chunks of unknown kinds and unknown fields.
#[test]
fn unknown_chunks_and_fields_are_skipped() {
    let place = Place::new();
    place.record(&[rich()]);
    let whole = fs::read(place.file()).unwrap();
    let other = chunk::seal(*b"mood", b"not even CBOR").unwrap();
    let mut head = Vec::new();
    ciborium::into_writer(
        &serde_json::json!({"memleak": "9.9", "weather": ["rain", 7]}),
        &mut head,
    )
    .unwrap();
    let head = chunk::seal(*b"head", &head).unwrap();
    let new = [&whole[..HEADER], &other, &whole[HEADER..], &head].concat();
    let new = [&new[..HEADER], &head, &new[HEADER..]].concat();
    fs::write(place.file(), new).unwrap();
    let recording = place.open();
    assert_eq!(recording.ending(), &Ending::Done { made: 1 });
    assert_same(&recording.report(0).unwrap().report, &rich());
}

/// Only its owner can read a recording, and it replaces a file only if that was requested.
#[test]
fn existing_recordings_are_not_replaced() {
    use std::os::unix::fs::PermissionsExt;
    let mut place = Place::new();
    fs::write(place.file(), "old").unwrap();
    let refused = Recorder::create(&place.settings)
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("already exists") && refused.contains("-f"),
        "{refused}"
    );
    place.settings.overwrite = true;
    // A trace without a report replaces nothing.
    place.record(&[]);
    assert_eq!(fs::read(place.file()).unwrap(), b"old");
    place.record(&[rich()]);
    assert_eq!(place.open().count(), 1);
    fs::remove_file(place.file()).unwrap();
    place.record(&[]);
    assert!(!place.file().exists());
    place.record(&[rich()]);
    let mode = fs::metadata(place.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    place.settings.file = "/dev/null".into();
    let special = Recorder::create(&place.settings)
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(special.contains("not a regular file"), "{special}");
}

/// Two anonymized recordings of the same names have the same replacements, and contain no original name.
#[test]
fn anonymized() {
    let mut place = Place::new();
    place.settings.anonymize = true;
    place.record(&[rich(), sample::of_the_kernel()]);
    let bytes_of_all = unpacked(place.file());
    for name in sample::NAMES {
        assert!(!bytes_of_all.contains(name), "{name}");
    }
    let recording = place.open();
    assert!(recording.about().anonymized && recording.about().host.is_none());
    let first = recording.report(0).unwrap().report;
    let original = rich();
    assert_eq!(first.stacks.len(), original.stacks.len());
    assert!(original.judgement.is_some());
    assert_eq!(first.judgement, original.judgement);
    for (stack, was) in first.stacks().zip(original.stacks()) {
        assert_eq!((stack.outstanding, stack.end), (was.outstanding, was.end));
        assert_eq!(stack.verdict, was.verdict);
        assert_eq!(stack.frames().len(), was.frames().len());
    }
    // Equal names have equal replacements, and the executable's path equals its module's.
    let frame = |stack: usize, frame: usize| first.stack(&first.stacks[stack]).frames().nth(frame).unwrap();
    assert_eq!(frame(0, 0).function(), frame(2, 0).function());
    assert_ne!(frame(0, 0).function(), frame(0, 1).function());
    let module = frame(0, 1).module().unwrap();
    assert_eq!(first.targets[0].exe.as_deref(), Some(module.path()));
    assert_eq!(first.stack(&first.stacks[0]).allocator(), "malloc");
    fs::remove_file(place.file()).unwrap();
    place.record(&[rich()]);
    assert_same(&place.open().report(0).unwrap().report, &first);
}

/// The CBOR of all chunks of a file, as text.
fn unpacked(path: &Path) -> String {
    let file = fs::File::open(path).unwrap();
    let end = file.metadata().unwrap().len();
    let mut at = HEADER as u64;
    let mut text = String::new();
    while let Ok(chunk::ReadFrame::Chunk(chunk)) = chunk::next(&file, at, end) {
        let value: ciborium::Value = chunk.read(&file).unwrap().unwrap();
        text.push_str(&format!("{value:?}"));
        at = chunk.end();
    }
    assert_eq!(at, end);
    text
}

/// A copy of a recording is equal to it.
#[test]
fn copies() {
    let place = Place::new();
    place.record(&[rich(), grown(3)]);
    let recording = place.open();
    let copy = Place::new();
    let mut recorder = Recorder::create_with(&copy.settings, recording.about()).unwrap();
    for index in 0..recording.count() {
        let recorded = recording.report(index).unwrap();
        recorder.record(recorded.number, &recorded.report).unwrap();
    }
    recorder.finish().unwrap();
    assert_eq!(copy.open().about(), recording.about());
    let read = |path: PathBuf| fs::read(path).unwrap();
    assert_eq!(read(copy.settings.file), read(place.settings.file));
}

/// A flipped bit ends the readable part and is reported; the reports before it are read.
#[test]
fn damaged_files() {
    let place = Place::new();
    let mut recorder = Recorder::create(&place.settings).unwrap();
    recorder.record(1, &rich()).unwrap();
    let damaged_at = fs::metadata(place.file()).unwrap().len();
    recorder.record(2, &grown(3)).unwrap();
    recorder.finish().unwrap();
    let mut bytes = fs::read(place.file()).unwrap();
    bytes[usize::try_from(damaged_at).unwrap() + 30] ^= 1;
    fs::write(place.file(), bytes).unwrap();
    let recording = place.open();
    let why = "its checksum is wrong".to_owned();
    let expected = Ending::Damaged { at: damaged_at, why };
    assert_eq!((recording.count(), recording.ending()), (1, &expected));
    assert_same(&recording.report(0).unwrap().report, &rich());
}

/// Holders are recorded with everything that they refer to; anonymized ones contain none of the names.
#[test]
fn holders() {
    let mut place = Place::new();
    let original = leak_report::samples::held();
    place.record(std::slice::from_ref(&original));
    let words = |report: &Report| -> Vec<String> {
        let stacks = StepStacks::of(report);
        let lines = report
            .stacks()
            .flat_map(|stack| leak_report::render::holder_lines(stack, &stacks, true));
        lines.collect()
    };
    let found = place.open().report(0).unwrap().report;
    assert_eq!(words(&found), words(&original));
    assert!(words(&found).len() > 4);
    fs::remove_file(place.file()).unwrap();
    place.settings.anonymize = true;
    place.record(&[original]);
    let anonymous = place.open().report(0).unwrap().report;
    let said = words(&anonymous).join("\n");
    for name in ["cache", "entries", "leaker", "libplugin", "wor", "app::Entry"] {
        assert!(!said.contains(name), "{name}: {said}");
    }
    assert!(said.contains(".bss of ") && said.contains(" → "), "{said}");
}

/// Diagnoses are recorded as they are; anonymized ones contain none of the names.
#[test]
fn diagnoses() {
    let mut place = Place::new();
    let mut original = samples::diagnosed();
    let diagnosis = original.diagnosis.as_mut().unwrap();
    let named = diagnosis.process.clone().unwrap();
    diagnosis.among = Some(Among {
        processes: 2,
        took: Duration::from_secs(15),
        largest: vec![named],
    });
    place.record(std::slice::from_ref(&original));
    let found = place.open().report(0).unwrap().report;
    assert_eq!(found.diagnosis, original.diagnosis);
    fs::remove_file(place.file()).unwrap();
    place.settings.anonymize = true;
    place.record(&[original]);
    let anonymous = place.open().report(0).unwrap().report.diagnosis.unwrap();
    let said = format!("{anonymous:?}");
    for name in ["server", "remember", "app.cpp", "sessions", "bin", "src/"] {
        assert!(!said.contains(name), "{name}: {said}");
    }
    let site = anonymous.causes[0].site.as_ref().unwrap();
    assert_eq!(
        (site.line, anonymous.causes[0].amount.blocks),
        (Some(54), 262_144)
    );
}

/// A recording whose holders refer to undefined entries is refused.
#[test]
fn undefined_holders() {
    let report = leak_report::samples::held();
    let dictionary = Dictionary::default();
    for stack in report.stacks.iter().filter(|stack| stack.held.is_some()) {
        assert!(report.dictionary.check(stack).is_ok());
        assert!(dictionary.check(stack).is_err());
        let mut plain = dictionary.clone();
        let allocator = plain.add_text(TextKind::Allocator, "malloc");
        let only_held = Stack {
            allocator,
            path: None,
            end_at: None,
            ..stack.clone()
        };
        assert!(plain.check(&only_held).is_err());
    }
}

/// A recording whose listed blocks have undefined classes is refused.
#[test]
fn undefined_classes_of_blocks() {
    let report = rich();
    let blocks = report.stacks[0].blocks.as_ref().unwrap();
    assert!(report.dictionary.check_blocks(blocks).is_ok());
    assert!(Dictionary::default().check_blocks(blocks).is_err());
}

/// A recording whose threads have undefined names is refused.
#[test]
fn undefined_thread_names() {
    let report = leak_report::samples::full();
    let stack = report.stacks.iter().find(|stack| stack.makeup.is_some()).unwrap();
    let mut plain = Dictionary::default();
    let allocator = plain.add_text(TextKind::Allocator, "malloc");
    let mut only_threads = Stack {
        allocator,
        path: None,
        end_at: None,
        ..stack.clone()
    };
    assert!(plain.check(&only_threads).is_err());
    only_threads.makeup = None;
    assert!(plain.check(&only_threads).is_ok());
}

/// Functions of Python are recorded unchanged; anonymized ones contain neither their names nor their files.
#[test]
fn functions_of_python() {
    let mut place = Place::new();
    let original = samples::python::python();
    place.record(std::slice::from_ref(&original));
    assert_same(&place.open().report(0).unwrap().report, &original);
    fs::remove_file(place.file()).unwrap();
    place.settings.anonymize = true;
    place.record(&[original]);
    let bytes_of_all = unpacked(place.file());
    for name in ["fetch_rows", "decode", "db.py", "main.py", "/opt/app"] {
        assert!(!bytes_of_all.contains(name), "{name}");
    }
    assert!(bytes_of_all.contains("\"python\""), "{bytes_of_all}");
}
