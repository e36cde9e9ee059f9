//! `memleak report`: reports of a recording in any format, a list of them, or a copy of the recording.

use std::io::{self, Write};
use std::num::NonZeroI64;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;

use super::source::{index, open, read};
use crate::leak::Order;
use crate::output::{Destination, Output, write_document};
use crate::recording::{Anonymizer, Recorder, Recording, Settings};
use crate::report::{Consumer, Format, Quantity, Report, Span, counted, size};

/// Which reports of a recording are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The last.
    Last,
    /// This one, counted from 1, or from -1 backwards.
    One(NonZeroI64),
    /// All.
    All,
}

/// What `memleak report` is to do.
#[derive(Clone, Debug)]
pub struct ReportOptions {
    /// The recording.
    pub file: PathBuf,
    /// Its reports.
    pub which: Which,
    /// Only a line for each.
    pub list: bool,
    /// Their form.
    pub format: Format,
    /// Where they go.
    pub destination: Destination,
    /// Stacks that are shown, if not as many as were to be when it was recorded.
    pub top: Option<usize>,
    /// What they are ranked by, if not as they were then.
    pub sort: Option<Order>,
    /// What flame graphs show, if not what they were to show then.
    pub quantity: Option<Quantity>,
    /// Whether names are replaced.
    pub anonymize: bool,
    /// Another recording that the reports are put into, instead.
    pub record: Option<Settings>,
}

/// Does it.
///
/// # Errors
///
/// The recording cannot be read, or nothing can be written.
pub fn report(options: &ReportOptions) -> anyhow::Result<()> {
    if options.which == Which::All && options.format.span() == Span::LastReport && options.record.is_none() {
        bail!(
            "a {} is of one report: leave out --all, or choose one with --at N",
            options.format.name()
        );
    }
    let recording = open(&options.file)?;
    let chosen = match (options.which, &options.record) {
        (Which::Last, None) => recording.count() - 1..recording.count(),
        (Which::Last, Some(_)) | (Which::All, _) => 0..recording.count(),
        (Which::One(number), _) => {
            let index = index(&recording, number)?;
            index..index + 1
        }
    };
    match &options.record {
        Some(settings) => copy(&recording, chosen, settings),
        None if options.list => write_document(&options.destination, |out| list(&recording, out)),
        None => {
            let mut output = Output::open(options.format, &options.destination)?;
            let mut anonymizer = options.anonymize.then(Anonymizer::of_this_machine);
            for index in chosen {
                let report = read(&recording, index)?.report;
                output.take(&Arc::new(as_asked(report, options, anonymizer.as_mut())))?;
            }
            output.finish()
        }
    }
}

fn as_asked(mut report: Report, options: &ReportOptions, anonymizer: Option<&mut Anonymizer>) -> Report {
    if let Some(anonymizer) = anonymizer {
        report = anonymizer.report(&report);
    }
    if let Some(order) = options.sort {
        report.sort(order);
    }
    report.top = options.top.unwrap_or(report.top);
    report.quantity = options.quantity.unwrap_or(report.quantity);
    report
}

/// Puts reports into another recording.
fn copy(recording: &Recording, chosen: std::ops::Range<usize>, settings: &Settings) -> anyhow::Result<()> {
    let mut recorder = Recorder::create_with(settings, recording.about())?;
    for index in chosen {
        let recorded = read(recording, index)?;
        recorder.record(recorded.number, &recorded.report)?;
    }
    Ok(recorder.finish()?)
}

/// A line for each report.
fn list(recording: &Recording, out: &mut dyn Write) -> io::Result<()> {
    for index in 0..recording.count() {
        let recorded = recording.report(index).map_err(io::Error::other)?;
        let report = &recorded.report;
        let shown: crate::collect::Amount = report.suspects().map(crate::report::Stack::shown).sum();
        writeln!(
            out,
            "{:>5}  {}  {:>10.1} s  {} in {}",
            index + 1,
            report.time,
            report.elapsed.as_secs_f64(),
            size(shown.bytes),
            counted(shown.blocks, "block")
        )?;
    }
    Ok(())
}
