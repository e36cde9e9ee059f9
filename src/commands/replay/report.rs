//! `memleak report`: writes reports of a recording in any format, and checks the last one; or lists them, or
//! copies the recording.

use std::fs;
use std::io::{self, Write};
use std::num::NonZeroI64;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::bail;

use super::source::{index, open, read};
use crate::session::is_broken_pipe;
use crate::sinks::gate::{self, Gate};
use crate::sinks::output::{Destination, Output, write_document};
use crate::sinks::recording::{Anonymizer, Ending, Recorder, Recording, Settings};
use leak_report::model::leak::Order;
use leak_report::model::{Amount, NameStyle};
use leak_report::model::{Direction, Quantity, Report};
use leak_report::render::{Format, ReportSink, Span, counted, printable, size};

/// Selection of reports of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportSelection {
    Last,
    /// Report with this number, from 1, or from -1 backwards.
    One(NonZeroI64),
    All,
}

/// Options of `memleak report`.
#[derive(Clone, Debug)]
pub struct ReportOptions {
    /// Path of the recording.
    pub file: PathBuf,
    pub which: ReportSelection,
    /// True if only a line per report is written.
    pub list: bool,
    pub format: Format,
    pub destination: Destination,
    /// Maximum stacks shown; by default as when it was recorded.
    pub top: Option<usize>,
    /// Ranking of stacks; by default as when it was recorded.
    pub sort: Option<Order>,
    pub names: NameStyle,
    /// Quantity of flame graphs; by default as when it was recorded.
    pub quantity: Option<Quantity>,
    /// Direction of flame graphs.
    pub direction: Direction,
    /// True if names are replaced.
    pub anonymize: bool,
    /// Recording to copy the reports to, instead of showing them.
    pub record: Option<Settings>,
    /// Conditions, suppressions and baselines that the last report is checked against.
    pub gate: gate::Settings,
}

/// Shows, lists or copies reports. Returns the exit status.
pub fn report(options: &ReportOptions) -> anyhow::Result<u8> {
    if options.which == ReportSelection::All
        && options.format.span() == Span::LastReport
        && options.record.is_none()
    {
        bail!(
            "a {} shows one report: leave out --all, or choose a report with --at N",
            options.format.name()
        );
    }
    let recording = open(&options.file)?;
    let chosen = match (options.which, &options.record) {
        // A format that spans all reports gets the whole recording, unless one report is chosen.
        (ReportSelection::Last, None) if options.format.span() != Span::AllReports => {
            recording.count() - 1..recording.count()
        }
        (ReportSelection::Last | ReportSelection::All, _) => 0..recording.count(),
        (ReportSelection::One(number), _) => {
            let index = index(&recording, number)?;
            index..index + 1
        }
    };
    match &options.record {
        Some(settings) => copy(&recording, chosen, settings).map(|()| 0),
        None if options.list => write_document(&options.destination, |out| list(&recording, out)).map(|()| 0),
        None => show(&recording, chosen, options),
    }
}

/// Shows reports, and checks the last of them. Returns the exit status.
fn show(recording: &Recording, chosen: Range<usize>, options: &ReportOptions) -> anyhow::Result<u8> {
    let mut shown = Shown {
        options,
        output: Output::open(options.format, &options.destination)?,
        anonymizer: options.anonymize.then(Anonymizer::of_this_machine),
        is_gone: false,
    };
    let mut gate = Gate::open(&options.gate)?;
    let read = |index| {
        let mut report = read(recording, index)?.report;
        report.names = options.names;
        anyhow::Ok(Arc::new(report))
    };
    if options.gate.is_about_growth() {
        for index in 0..chosen.start {
            gate.note_earlier(&read(index)?);
        }
    }
    let last = chosen.end - 1;
    for index in chosen {
        shown.report_pending(index == last);
        shown.report(&gate.check(&read(index)?))?;
    }
    let is_whole = matches!(recording.ending(), Ending::Done { .. });
    if !is_whole && !matches!(options.which, ReportSelection::One(_)) {
        let reason = "the recording is incomplete, so later reports may be missing: choose a report with \
                      --at N";
        gate.doubt(reason.to_owned());
    }
    let decided = gate.finish(0)?;
    match (decided, shown.output.finish()) {
        (Some(status), Err(error)) if is_broken_pipe(&error) => Ok(status),
        (_, Err(error)) => Err(error),
        (decided, Ok(())) => Ok(decided.unwrap_or_default()),
    }
}

/// Shows reports with the requested options.
struct Shown<'a> {
    options: &'a ReportOptions,
    output: Output,
    anonymizer: Option<Anonymizer>,
    /// True if the output's reader is gone. Reports are still checked then.
    is_gone: bool,
}

impl ReportSink for Shown<'_> {
    fn report_pending(&mut self, is_last: bool) {
        self.output.report_pending(is_last);
    }

    fn report(&mut self, report: &Arc<Report>) -> anyhow::Result<()> {
        if self.is_gone {
            return Ok(());
        }
        let report = Arc::new(self.as_asked(report));
        match self.output.report(&report) {
            Err(error) if self.options.gate.is_enabled() && is_broken_pipe(&error) => {
                self.is_gone = true;
                Ok(())
            }
            taken => taken,
        }
    }
}

impl Shown<'_> {
    fn as_asked(&mut self, report: &Report) -> Report {
        let Self {
            options, anonymizer, ..
        } = self;
        let mut report = match anonymizer {
            Some(anonymizer) => anonymizer.report(report),
            None => report.clone(),
        };
        if options.sort.is_some() {
            report.sort(options.sort);
        }
        report.top = options.top.unwrap_or(report.top);
        report.quantity = options.quantity.unwrap_or(report.quantity);
        report.direction = options.direction;
        report
    }
}

/// Copies reports to another recording.
fn copy(recording: &Recording, chosen: Range<usize>, settings: &Settings) -> anyhow::Result<()> {
    if is_same_file(recording.path(), &settings.file) {
        bail!(
            "`{}` cannot be copied onto itself: give --record another name",
            settings.file.display()
        );
    }
    let mut recorder = Recorder::create_with(settings, recording.about())?;
    for index in chosen {
        let recorded = read(recording, index)?;
        recorder.record(recorded.number, &recorded.report)?;
    }
    Ok(recorder.finish()?)
}

fn is_same_file(a: &Path, b: &Path) -> bool {
    let identity = |path| fs::metadata(path).map(|file| (file.dev(), file.ino()));
    matches!((identity(a), identity(b)), (Ok(a), Ok(b)) if a == b)
}

/// Writes a line for each report.
fn list(recording: &Recording, out: &mut dyn Write) -> io::Result<()> {
    for index in 0..recording.count() {
        let recorded = recording.report(index).map_err(io::Error::other)?;
        let report = &recorded.report;
        let shown: Amount = report.suspects().map(|stack| stack.shown()).sum();
        let reason = report.reason.as_ref();
        let reason = reason.map(|reason| format!(", because {}", printable(&reason.to_string())));
        writeln!(
            out,
            "{:>5}  {}  {:>10.1} s  {} in {}{}",
            index + 1,
            report.time,
            report.elapsed.as_secs_f64(),
            size(shown.bytes),
            counted(shown.blocks, "block"),
            reason.unwrap_or_default()
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use leak_report::model::{Measured, Reached, Reason};
    use leak_report::render::render;
    use leak_report::samples;

    /// A recording of three reports in its own directory, and default options.
    fn recorded() -> (tempfile::TempDir, ReportOptions) {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("leaks.memleak");
        let mut recorder = Recorder::create(&settings(&file)).expect("made");
        for number in 1..=3 {
            recorder.record(number, &numbered(number)).expect("recorded");
        }
        recorder.finish().expect("ended");
        let destination = Destination {
            file: Some(directory.path().join("out")),
            overwrite: true,
            ..Destination::default()
        };
        let options = ReportOptions {
            file,
            which: ReportSelection::Last,
            list: false,
            format: Format::Json,
            destination,
            top: None,
            sort: None,
            names: NameStyle::default(),
            quantity: None,
            direction: Direction::default(),
            anonymize: false,
            record: None,
            gate: gate::Settings::default(),
        };
        (directory, options)
    }

    fn settings(file: &Path) -> Settings {
        Settings {
            file: file.to_owned(),
            overwrite: true,
            limit: Settings::DEFAULT_LIMIT,
            anonymize: false,
        }
    }

    fn numbered(number: u64) -> Report {
        let mut report = samples::full();
        report.events.failed = number;
        report
    }

    /// Output for `options`.
    fn shown(options: &ReportOptions) -> String {
        report(options).expect("shown");
        let file = options.destination.file.as_ref().expect("a file");
        fs::read_to_string(file).expect("UTF-8")
    }

    fn expected(reports: &[Report], format: Format) -> String {
        let mut out = Vec::new();
        for report in reports {
            render(report, format, &mut out).expect("rendered");
        }
        String::from_utf8(out).expect("UTF-8")
    }

    /// The last report, a chosen one, or all are written as the trace would have written them; numbers out of
    /// range are refused.
    #[test]
    fn which_reports() {
        let (_directory, options) = recorded();
        let all = [1, 2, 3].map(numbered);
        let with = |which| ReportOptions {
            which,
            ..options.clone()
        };
        let one = |number| ReportSelection::One(NonZeroI64::new(number).expect("not 0"));
        for (which, reports) in [
            (ReportSelection::Last, &all[2..]),
            (ReportSelection::All, &all),
            (one(1), &all[..1]),
            (one(-2), &all[1..2]),
            (one(3), &all[2..]),
        ] {
            assert_eq!(shown(&with(which)), expected(reports, Format::Json), "{which:?}");
        }
        for number in [4, -4, i64::MIN] {
            let error = report(&with(one(number))).expect_err("refused").to_string();
            assert!(
                error.contains(&format!("no report {number}: it has 3 reports")),
                "{error}"
            );
        }
        let list = ReportOptions {
            list: true,
            ..options
        };
        let lines = shown(&list);
        assert_eq!(lines.lines().count(), 3);
        assert!(!lines.contains("because"), "{lines}");
    }

    /// A list gives the reason of each report; the text of a hostile condition adds no line.
    #[test]
    fn reasons_in_a_list() {
        let (directory, options) = recorded();
        let file = directory.path().join("reasons.memleak");
        let mut recorder = Recorder::create(&settings(&file)).expect("made");
        let condition = "rss>1MiB\n".to_owned();
        let reached = Reached {
            condition,
            value: Measured::Bytes(3 << 19),
            pid: Some(7),
        };
        let mut report = numbered(1);
        for reason in [Reason::Conditions(vec![reached]), Reason::End] {
            report.reason = Some(reason);
            recorder.record(1, &report).expect("recorded");
        }
        recorder.finish().expect("ended");
        let list = ReportOptions {
            file,
            list: true,
            ..options
        };
        let lines = shown(&list);
        let reasons = lines
            .lines()
            .map(|line| line.split_once(", because ").map(|(_, reason)| reason));
        let expected = [r"rss>1MiB\n: 1.5 MiB in process 7", "the trace ended"];
        assert_eq!(reasons.collect::<Vec<_>>(), expected.map(Some), "{lines}");
    }

    /// Options of the recorded report can be changed; a recording is not copied onto itself.
    #[test]
    fn recorded_reports_with_other_options() {
        let (directory, options) = recorded();
        let text = ReportOptions {
            format: Format::Text,
            top: Some(1),
            sort: Some(Order::Count),
            ..options.clone()
        };
        let shown_text = shown(&text);
        assert!(shown_text.contains("1 more site with"), "{shown_text}");
        assert_eq!(shown_text.matches("end: ").count(), 1, "{shown_text}");
        let nameless = ReportOptions {
            anonymize: true,
            ..options.clone()
        };
        assert!(!shown(&nameless).contains("leaker"));
        let onto = |file: &Path| ReportOptions {
            record: Some(settings(file)),
            ..options.clone()
        };
        let error = report(&onto(&options.file)).expect_err("refused").to_string();
        assert!(error.contains("onto itself"), "{error}");
        let copy = directory.path().join("copy");
        report(&onto(&copy)).expect("copied");
        let read = |path| fs::read(path).expect("there");
        assert_eq!(read(copy), read(options.file.clone()));
    }

    /// The shown report is checked against conditions; they cannot pass if there may have been later reports.
    #[test]
    fn statuses() {
        let (_directory, options) = recorded();
        let status = |condition: &str, which| {
            let condition = gate::parse(condition).expect("a condition");
            let options = ReportOptions {
                which,
                gate: gate::Settings {
                    conditions: vec![condition],
                    ..gate::Settings::default()
                },
                ..options.clone()
            };
            report(&options).expect("shown")
        };
        let newest = ReportSelection::One(NonZeroI64::new(-1).expect("not 0"));
        for which in [ReportSelection::Last, ReportSelection::All, newest] {
            assert_eq!(status("blocks>0", which), 1, "{which:?}");
            assert_eq!(status("incomplete>100%", which), 0, "{which:?}");
        }
        let bytes = fs::read(&options.file).expect("it was recorded");
        fs::write(&options.file, &bytes[..bytes.len() - 1]).expect("cut");
        for (which, expected) in [(ReportSelection::Last, 3), (ReportSelection::All, 3), (newest, 0)] {
            assert_eq!(status("blocks>0", which), 1, "{which:?}");
            assert_eq!(status("incomplete>100%", which), expected, "{which:?}");
        }
    }

    /// Conditions on causes are decided by the diagnosis of the report; without one they are inconclusive.
    #[test]
    fn statuses_of_causes() {
        let (_directory, options) = recorded();
        let status = |condition: &str| {
            let options = ReportOptions {
                gate: gate::Settings {
                    conditions: vec![gate::parse(condition).expect("a condition")],
                    ..gate::Settings::default()
                },
                ..options.clone()
            };
            report(&options).expect("shown")
        };
        assert_eq!((status("cause=kept"), status("grows")), (3, 3));
        let mut recorder = Recorder::create(&settings(&options.file)).expect("made");
        recorder.record(1, &samples::diagnosed()).expect("recorded");
        recorder.finish().expect("ended");
        let found = ["cause=kept", "cause=lost", "cause=free_in_allocator", "grows"].map(status);
        assert_eq!(found, [1, 0, 0, 1]);
    }
}
