//! Where reports go: to standard output, or into a file that is nobody's by accident.
//!
//! What a format looks like is `report`'s; here is when it is written, and that nothing is lost by it: a file that
//! is there is replaced only if that was asked for, and a document that is made at the end is under its name only
//! once it is whole.

mod file;

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;

use crate::report::{self, Beside, Call, Consumer, Format, Report, Span, Stage};
pub(crate) use file::File;

/// Where reports are to go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// A file; standard output without it.
    pub file: Option<PathBuf>,
    /// Whether a file that is there is replaced.
    pub overwrite: bool,
}

/// There is no way to put reports where they should go.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OutputError {
    /// It is there already.
    #[error("`{}` is there already: give -f to replace it, or another name", .0.display())]
    Exists(PathBuf),
    /// It cannot be made.
    #[error("cannot write `{}`: {error}", .path.display())]
    File {
        /// Its name.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Bytes that would garble a terminal.
    #[error("{} is not for terminals: give --output FILE, or redirect standard output", .0.name())]
    Terminal(Format),
}

/// Reports in one format, on their way to one place.
pub struct Output {
    format: Format,
    place: Place,
    /// What a document is made of at the end.
    last: Option<Arc<Report>>,
}

/// Writes one document, whole or not at all, that is not of one report.
///
/// # Errors
///
/// It cannot be written, or its file is there already.
pub fn write_document(
    destination: &Destination,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<()> {
    let Some(path) = &destination.file else {
        let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
        write(&mut out)?;
        return Ok(out.flush()?);
    };
    let mut out = BufWriter::with_capacity(1 << 16, File::prepare(path, destination.overwrite)?);
    write(&mut out)?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.publish()?;
    Ok(())
}

enum Place {
    Standard,
    File(File),
}

impl Output {
    /// Opens what reports will go to, before there are any.
    ///
    /// # Errors
    ///
    /// [`OutputError`]; nothing was made then.
    pub fn open(format: Format, destination: &Destination) -> Result<Self, OutputError> {
        let place = match &destination.file {
            None if format.is_binary() && io::stdout().is_terminal() => {
                return Err(OutputError::Terminal(format));
            }
            None => Place::Standard,
            Some(path) => Place::File(match format.span() {
                Span::EachReport => File::open(path, destination.overwrite)?,
                Span::LastReport => File::prepare(path, destination.overwrite)?,
            }),
        };
        Ok(Self {
            format,
            place,
            last: None,
        })
    }

    /// Writes what is written at the end.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn finish(mut self) -> anyhow::Result<()> {
        if let Some(report) = self.last.take() {
            self.write(&report)?;
            if let Place::File(file) = self.place {
                file.publish()?;
            }
        }
        Ok(())
    }

    fn write(&mut self, report: &Report) -> io::Result<()> {
        let format = self.format;
        self.with_place(|out| report::render(report, format, out))?;
        for line in format.beside(report) {
            match line {
                // Nothing is left to tell if standard error is gone.
                Beside::Verbatim(line) => _ = writeln!(io::stderr(), "{line}"),
                Beside::Warning(line) => tracing::warn!("{line}"),
            }
        }
        Ok(())
    }

    /// In large pieces: a report of many stacks is many megabytes of small ones.
    fn with_place(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let mut standard;
        let out: &mut dyn Write = match &mut self.place {
            Place::Standard => {
                standard = io::stdout().lock();
                &mut standard
            }
            Place::File(file) => file,
        };
        let mut out = BufWriter::with_capacity(1 << 16, out);
        write(&mut out)?;
        out.flush()
    }
}

impl Consumer for Output {
    fn take(&mut self, report: &Arc<Report>) -> anyhow::Result<()> {
        match self.format.span() {
            Span::EachReport => self.write(report)?,
            Span::LastReport => self.last = Some(Arc::clone(report)),
        }
        Ok(())
    }

    fn reach(&mut self, stage: &Stage<'_>) -> anyhow::Result<()> {
        let lines = self.format.said(stage);
        if lines.is_empty() {
            return Ok(());
        }
        let written = self.with_place(|out| lines.iter().try_for_each(|line| writeln!(out, "{line}")));
        Ok(written?)
    }

    fn tell(&mut self, calls: &[Call]) -> anyhow::Result<()> {
        let lines = calls.iter().filter_map(|call| self.format.call_line(call));
        let mut text = lines.collect::<Vec<_>>().join("\n");
        if text.is_empty() {
            return Ok(());
        }
        text.push('\n');
        match self.format.calls_told().is_some_and(|told| told.aside) {
            // Nothing is left to tell if standard error is gone.
            true => _ = io::stderr().write_all(text.as_bytes()),
            false => self.with_place(|out| out.write_all(text.as_bytes()))?,
        }
        Ok(())
    }
}
