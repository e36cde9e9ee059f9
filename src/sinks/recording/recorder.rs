//! Writes reports to a file as they are made, and keeps it below its limit.
//!
//! The file is valid at any moment: if memleak is killed, everything up to the last report is there. When the
//! file would exceed its limit, every second report is removed from it, and from then on only every second is
//! recorded, then every fourth, and so on, so that the recorded reports are spread evenly over any length of
//! trace. The last report always has room, and the first is kept as long as it fits.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use super::RecordError;
use super::anonymize::Anonymizer;
use super::chunk::{self, Kind};
use super::chunks::{Done, Encoded, Encoder};
use crate::sinks::output::File;
use leak_report::model::Report;
use leak_report::render::{ReportSink, counted, size};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The file to write.
    pub file: PathBuf,
    /// True if an existing file is replaced.
    pub overwrite: bool,
    /// Maximum number of bytes of the file.
    pub limit: u64,
    /// True if names are replaced by meaningless ones.
    pub anonymize: bool,
}

impl Settings {
    /// Default limit in bytes.
    pub const DEFAULT_LIMIT: u64 = 256 << 20;
    /// Minimum limit in bytes.
    pub const MIN_LIMIT: u64 = 64 << 10;
}

/// Bytes reserved for the last chunk, which has two numbers.
const DONE_BYTES: u64 = 128;

/// A range of the file: one report, or one run of definitions.
#[derive(Clone, Copy, Debug)]
struct Piece {
    at: u64,
    bytes: u64,
    /// Number of the report; `None` for the header and for definitions.
    report: Option<u64>,
}

/// A recording in progress.
pub struct Recorder {
    settings: Settings,
    file: fs::File,
    /// True if the file did not exist before.
    is_new: bool,
    /// The header and first chunk, until the first report: a file that is replaced keeps its content until
    /// then.
    start: Option<Vec<u8>>,
    anonymizer: Option<Anonymizer>,
    encoder: Encoder,
    pieces: Vec<Piece>,
    /// Bytes written.
    length: u64,
    /// Number of the last report made, from 1.
    made: u64,
    /// A report is recorded if its number is 1 plus a multiple of this.
    stride: u64,
    /// The last report if the stride skips it; [`Self::finish`] writes it.
    pending: Option<(u64, Vec<u8>)>,
    /// The error after which nothing is recorded.
    failed: Option<RecordError>,
}

impl Recorder {
    /// Opens the file; nothing is written to it before the first report.
    pub fn create(settings: &Settings) -> Result<Self, RecordError> {
        Self::create_with(settings, &super::About::current())
    }

    /// Opens the file for reports that were recorded before, with their origin `about`.
    pub fn create_with(settings: &Settings, about: &super::About) -> Result<Self, RecordError> {
        let anonymizer = settings.anonymize.then(Anonymizer::of_this_machine);
        let mut start = chunk::header().to_vec();
        start.extend(chunk::encode(Kind::Head, &about.of_copy(settings.anonymize))?);
        let (file, is_new) = File::open_to_rewrite(&settings.file, settings.overwrite)?;
        Ok(Self {
            file,
            is_new,
            start: Some(start),
            settings: settings.clone(),
            anonymizer,
            encoder: Encoder::default(),
            pieces: Vec::new(),
            length: 0,
            made: 0,
            stride: 1,
            pending: None,
            failed: None,
        })
    }

    /// Records report `number` of all that were made, from 1. One that the stride skips is kept in case it is
    /// the last.
    pub fn record(&mut self, number: u64, report: &Report) -> Result<(), RecordError> {
        self.made = number;
        self.begin()?;
        let anonymous = self.anonymizer.as_ref().map(|names| names.report(report));
        let report = anonymous.as_ref().unwrap_or(report);
        let encoded = self.encoder.encode(number, report)?;
        if !self.make_room(&encoded)? {
            return self.start_over(number, report);
        }
        self.append(&encoded.definitions, None)?;
        if self.is_due(number) {
            self.append(&encoded.report, Some(number))?;
            self.pending = None;
        } else {
            self.pending = Some((number, encoded.report));
        }
        Ok(())
    }

    /// Before the first report, empties the file and writes the header.
    fn begin(&mut self) -> Result<(), RecordError> {
        let Some(start) = self.start.take() else {
            return Ok(());
        };
        let emptied = self.file.set_len(0);
        emptied.map_err(|error| self.cannot_write(error))?;
        self.append(&start, None)
    }

    fn is_due(&self, number: u64) -> bool {
        number.saturating_sub(1).is_multiple_of(self.stride)
    }

    fn has_room(&self, length: u64, encoded: &Encoded) -> bool {
        let more = (encoded.definitions.len() + encoded.report.len()) as u64;
        length + more + DONE_BYTES <= self.settings.limit
    }

    /// Doubles the stride and removes reports from the file until `encoded` fits. Returns whether it does.
    fn make_room(&mut self, encoded: &Encoded) -> Result<bool, RecordError> {
        let (before, mut length) = (self.stride, self.length);
        while !self.has_room(length, encoded) {
            let taken_out = self.pieces.iter().filter(|piece| !self.stays(piece));
            length = self.length - taken_out.map(|piece| piece.bytes).sum::<u64>();
            if self.has_room(length, encoded) {
                break;
            }
            match self.stride.checked_mul(2) {
                Some(stride) => self.stride = stride,
                None => {
                    self.stride = before;
                    return Ok(false);
                }
            }
        }
        if length < self.length {
            let kept: Vec<_> = self
                .pieces
                .iter()
                .copied()
                .filter(|piece| self.stays(piece))
                .collect();
            self.rewrite(&kept, &[])?;
        }
        if before == 1 && self.stride > 1 {
            tracing::info!(
                "the recording has reached its limit: from now on it keeps fewer reports, spread evenly over \
                 the trace"
            );
        }
        Ok(true)
    }

    /// Returns whether a piece stays in the file at the current stride; definitions always do, as they are
    /// numbered in file order.
    fn stays(&self, piece: &Piece) -> bool {
        piece.report.is_none_or(|number| self.is_due(number))
    }

    /// Drops everything but this report, because the definitions of all reports leave no room for even one.
    fn start_over(&mut self, number: u64, report: &Report) -> Result<(), RecordError> {
        // The old definitions are dropped, so numbering starts over.
        self.encoder = Encoder::default();
        let encoded = self.encoder.encode(number, report)?;
        let Some(&start) = self.pieces.first() else {
            return Ok(());
        };
        if !self.has_room(start.bytes, &encoded) {
            let needed = start.bytes + (encoded.definitions.len() + encoded.report.len()) as u64 + DONE_BYTES;
            return Err(RecordError::NoRoom {
                needed,
                limit: self.settings.limit,
            });
        }
        self.pending = None;
        self.rewrite(
            &[start],
            &[(&encoded.definitions, None), (&encoded.report, Some(number))],
        )
    }

    /// Replaces the file by `kept` pieces of it followed by `new` ones.
    fn rewrite(&mut self, kept: &[Piece], new: &[(&[u8], Option<u64>)]) -> Result<(), RecordError> {
        let mut file = File::prepare(&self.settings.file, true)?;
        let mut pieces = Vec::with_capacity(kept.len() + new.len());
        let mut length = 0;
        let mut put = |bytes: &[u8], report| {
            let piece = Piece {
                at: length,
                bytes: bytes.len() as u64,
                report,
            };
            length += piece.bytes;
            pieces.push(piece);
            file.write_all(bytes)
        };
        let written = kept.iter().try_for_each(|piece| {
            let mut bytes = vec![0; usize::try_from(piece.bytes).unwrap_or(usize::MAX)];
            self.file.read_exact_at(&mut bytes, piece.at)?;
            put(&bytes, piece.report)
        });
        let written = written.and_then(|()| new.iter().try_for_each(|(bytes, report)| put(bytes, *report)));
        written.map_err(|error| self.cannot_write(error))?;
        self.file = file.publish()?;
        (self.pieces, self.length) = (pieces, length);
        Ok(())
    }

    /// Appends whole chunks; on failure, cuts a partial write off.
    fn append(&mut self, bytes: &[u8], report: Option<u64>) -> Result<(), RecordError> {
        if bytes.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.file.write_all_at(bytes, self.length) {
            // Try to end the file with a whole chunk again; if this fails, readers stop at the partial one.
            _ = self.file.set_len(self.length);
            return Err(self.cannot_write(error));
        }
        let bytes = bytes.len() as u64;
        self.pieces.push(Piece {
            at: self.length,
            bytes,
            report,
        });
        self.length += bytes;
        Ok(())
    }

    fn cannot_write(&self, error: io::Error) -> RecordError {
        let path = self.settings.file.clone();
        RecordError::Write { path, error }
    }

    fn recorded(&self) -> u64 {
        self.pieces.iter().filter(|piece| piece.report.is_some()).count() as u64
    }

    /// Writes the last report and the totals. Without any report, an existing file stays as it was, and a new
    /// one is removed.
    ///
    /// # Errors
    ///
    /// An earlier failure to record a report, or a failed write.
    pub fn finish(mut self) -> Result<(), RecordError> {
        if self.start.is_some() {
            if self.is_new {
                // A leftover empty file does no harm.
                _ = fs::remove_file(&self.settings.file);
            }
            return Ok(());
        }
        let pending = self.pending.take();
        let kept = pending.map_or(Ok(()), |(number, report)| self.append(&report, Some(number)));
        let done = Done {
            made: self.made,
            recorded: self.recorded(),
        };
        let appended = self.append(&chunk::encode(Kind::Done, &done)?, None);
        if let Some(error) = self.failed {
            return Err(error);
        }
        kept.and(appended)?;
        tracing::info!(
            "recorded {} in `{}`, {}",
            counted(done.recorded, "report"),
            self.settings.file.display(),
            size(self.length)
        );
        Ok(())
    }
}

impl ReportSink for Recorder {
    /// Logs a failure instead of returning it, as the trace and its other outputs continue;
    /// [`Recorder::finish`] returns it.
    fn report(&mut self, report: &Arc<Report>) -> anyhow::Result<()> {
        let number = self.made + 1;
        if self.failed.is_some() {
            self.made = number;
        } else if let Err(error) = self.record(number, report) {
            tracing::warn!("{error}; later reports are not recorded");
            self.failed = Some(error);
        }
        Ok(())
    }
}
