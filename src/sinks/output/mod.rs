//! Writes reports to standard output, or into a file that is never overwritten by accident.
//!
//! `leak_report::render` defines the formats; this decides when they are written, and protects existing
//! files: a file is replaced only on request, and a document that is written at the end has its name only
//! once it is complete.

mod error;
mod existing;
mod file;
mod reader;
pub mod standard;

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anstream::{AutoStream, ColorChoice};

use crate::base::characters::{Ascii, is_ascii_wanted};
use crate::symbolize::sources::Sources;

pub use error::OutputError;
pub(crate) use error::remedy;
pub(crate) use file::File;
use leak_report::model::Report;
use leak_report::render::paint::Painted;
use leak_report::render::{self, Call, Format, Page, People, ReportSink, Screen, Span, Stage, StderrLine};
pub use reader::await_end_of_reader;

/// File or stream to write reports to, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// File; `None` for standard output.
    pub file: Option<PathBuf>,
    /// True if an existing file is replaced.
    pub overwrite: bool,
    /// True if text for people leaves nothing out (`-v`).
    pub is_verbose: bool,
    /// Maximum number of stacks in JSON; `None` for all.
    pub most_stacks: Option<usize>,
    /// True if formats for people show lines of source.
    pub source_lines: bool,
}

/// Document that gets its name only once it is complete.
pub(crate) struct Document {
    file: File,
    name: String,
}

impl Document {
    /// Prepares a file. An existing one is replaced if it begins with `begin`, as documents of its kind do,
    /// or if `overwrite` is set.
    ///
    /// # Errors
    ///
    /// Fails with an [`OutputError`], and creates nothing then.
    pub(crate) fn prepare(path: &Path, begin: &str, overwrite: bool) -> Result<Self, OutputError> {
        let overwrite = overwrite || existing::begins_with(path, begin.as_bytes());
        Self::at(path, overwrite)
    }

    fn at(path: &Path, overwrite: bool) -> Result<Self, OutputError> {
        Ok(Self {
            file: File::prepare(path, overwrite)?,
            name: named(path),
        })
    }

    /// Writes the document and gives it its name.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be written, and leaves no file then.
    pub(crate) fn publish(
        mut self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 16, &mut self.file);
        let written = write(&mut out).and_then(|()| out.flush());
        written.map_err(|error| file::explained(&self.name, error))?;
        drop(out);
        self.file.publish()?;
        Ok(())
    }
}

/// Name of a file in messages.
fn named(path: &Path) -> String {
    format!("`{}`", path.display())
}

/// Name of standard output in messages.
const STANDARD: &str = "to standard output";

/// Writes reports in one format to one place.
pub struct Output {
    format: Format,
    place: Place,
    /// Name of the place in messages.
    name: String,
    people: People,
    most_stacks: Option<usize>,
    /// True if the next report is the last.
    is_last: bool,
    at_end: AtEnd,
    /// Set if lines of source are shown.
    sources: Option<Sources>,
}

/// Output to write at the end.
#[derive(Default)]
enum AtEnd {
    /// Nothing, or nothing yet.
    #[default]
    Nothing,
    Last(Arc<Report>),
    All(Box<Page>),
}

/// Colours and characters of text for people.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    is_painted: bool,
    is_ascii: bool,
}

impl Look {
    /// Returns the look of standard output: colours on a terminal, unless the user chose otherwise, and
    /// characters of the user's locale.
    pub fn of_standard_output() -> Self {
        Self {
            is_painted: AutoStream::choice(&io::stdout()) != ColorChoice::Never,
            ..Self::of_characters()
        }
    }

    /// Returns the look of text that already has its colours, or has none.
    pub fn of_characters() -> Self {
        Self {
            is_painted: false,
            is_ascii: is_ascii_wanted(),
        }
    }
}

/// Writes text for people like [`write_document`]; on standard output, in its [`Look`].
pub fn write_text(
    destination: &Destination,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    let look = match destination.file {
        Some(_) => Look::default(),
        None => Look::of_standard_output(),
    };
    write_document(destination, |out| paint(look, out, write))
}

/// Writes with colours and characters of `look`.
pub fn paint(
    look: Look,
    out: &mut dyn Write,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut ascii;
    let out = match look.is_ascii {
        true => {
            ascii = Ascii(out);
            &mut ascii as &mut dyn Write
        }
        false => out,
    };
    if !look.is_painted {
        return write(out);
    }
    let mut painted = Painted::new(out);
    write(&mut painted)?;
    painted.flush()
}

/// Writes one document that is not a single report. A file gets its name only once it is complete.
///
/// # Errors
///
/// Fails if it cannot be written, or if its file exists already, or standard output is closed.
pub fn write_document(
    destination: &Destination,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    let Some(path) = &destination.file else {
        standard::check_open()?;
        let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
        let written = write(&mut out).and_then(|()| out.flush());
        return Ok(written.map_err(|error| file::explained(STANDARD, error))?);
    };
    Document::at(path, destination.overwrite)?.publish(write)
}

enum Place {
    Standard,
    File(File),
}

impl Output {
    /// Opens the destination before there are reports.
    ///
    /// # Errors
    ///
    /// Fails with an [`OutputError`], and creates nothing then.
    pub fn open(format: Format, destination: &Destination) -> Result<Self, OutputError> {
        let place = match &destination.file {
            None if format.is_binary() && io::stdout().is_terminal() => {
                return Err(OutputError::Terminal(format));
            }
            None => {
                standard::check_open()?;
                Place::Standard
            }
            Some(path) => Place::File(match format.span() {
                Span::EachReport => File::open(path, destination.overwrite)?,
                Span::LastReport | Span::AllReports => File::prepare(path, destination.overwrite)?,
            }),
        };
        let name = destination.file.as_deref().map_or(STANDARD.to_owned(), named);
        Ok(Self {
            format,
            people: People::new(Screen {
                width: match &place {
                    Place::Standard => {
                        terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0.into())
                    }
                    Place::File(_) => None,
                },
                is_verbose: destination.is_verbose,
            }),
            most_stacks: destination.most_stacks,
            place,
            name,
            is_last: false,
            at_end: AtEnd::Nothing,
            sources: destination.source_lines.then(Sources::of_caller),
        })
    }

    /// Writes the output that is due at the end.
    pub fn finish(mut self) -> anyhow::Result<()> {
        match std::mem::take(&mut self.at_end) {
            AtEnd::Nothing => return Ok(()),
            AtEnd::Last(report) => self.write(&report)?,
            AtEnd::All(page) => self.with_place(|out| page.write(out))?,
        }
        if let Place::File(file) = self.place {
            file.publish()?;
        }
        Ok(())
    }

    fn write(&mut self, report: &Report) -> io::Result<()> {
        let (format, is_last) = (self.format, self.is_last);
        let look = match self.place {
            Place::Standard if format.is_for_people() => Look::of_standard_output(),
            Place::Standard | Place::File(_) => Look::default(),
        };
        let mut people = std::mem::take(&mut self.people);
        let most_stacks = self.most_stacks.filter(|_| format == Format::Json);
        self.with_place(|out| {
            paint(look, out, |out| match (format == Format::Text, most_stacks) {
                (true, _) => people.write(report, is_last, out),
                (false, Some(top)) => render::render_top_json(report, top, out),
                (false, None) => render::render(report, format, out),
            })
        })?;
        self.people = people;
        for line in format.stderr_lines(report) {
            match line {
                // Nothing can be reported if standard error is gone.
                StderrLine::Verbatim(line) => _ = writeln!(io::stderr(), "{line}"),
                StderrLine::Warning(line) => tracing::warn!("{line}"),
            }
        }
        Ok(())
    }

    /// Writes in large pieces: a report of many stacks is many megabytes of small ones.
    fn with_place(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let written = match &mut self.place {
            Place::Standard => buffered(&mut io::stdout().lock(), write),
            Place::File(file) => file.write_whole(|out| buffered(out, write)),
        };
        written.map_err(|error| file::explained(&self.name, error))
    }
}

fn buffered(out: &mut dyn Write, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    write(&mut out)?;
    out.flush()
}

impl ReportSink for Output {
    fn report_pending(&mut self, is_last: bool) {
        self.is_last = is_last;
    }

    fn report(&mut self, report: &Arc<Report>) -> anyhow::Result<()> {
        let with_sources = self
            .sources
            .as_ref()
            .map(|sources| Arc::new(sources.add_to(report)));
        let report = with_sources.as_ref().unwrap_or(report);
        match (self.format.span(), &mut self.at_end) {
            (Span::EachReport, _) => self.write(report)?,
            (Span::LastReport, at_end) => *at_end = AtEnd::Last(Arc::clone(report)),
            (Span::AllReports, AtEnd::All(page)) => page.add(report),
            (Span::AllReports, at_end) => {
                let mut page = Page::default();
                page.add(report);
                *at_end = AtEnd::All(Box::new(page));
            }
        }
        Ok(())
    }

    fn stage(&mut self, stage: &Stage<'_>) -> anyhow::Result<()> {
        let lines = self.format.stage_lines(stage);
        if lines.is_empty() {
            return Ok(());
        }
        let written = self.with_place(|out| lines.iter().try_for_each(|line| writeln!(out, "{line}")));
        Ok(written?)
    }

    fn calls(&mut self, calls: &[Call]) -> anyhow::Result<()> {
        let lines = calls.iter().filter_map(|call| self.format.call_line(call));
        let mut text = lines.collect::<Vec<_>>().join("\n");
        if text.is_empty() {
            return Ok(());
        }
        text.push('\n');
        match self.format.call_format().is_some_and(|calls| calls.to_stderr) {
            // Nothing can be reported if standard error is gone.
            true => _ = io::stderr().write_all(text.as_bytes()),
            false => self.with_place(|out| out.write_all(text.as_bytes()))?,
        }
        Ok(())
    }
}
