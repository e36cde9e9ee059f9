//! Reads recordings: the definitions when a file is opened, the reports on request.
//!
//! A file may be truncated, damaged or malicious. Chunks are read up to the first that is not whole;
//! references and sizes in chunks are checked.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::chunk::{self, Chunk, FORMAT, HEADER_BYTES, Kind, ReadFrame};
use super::chunks::{
    self, Done, LIMITS, MAX_BLOCKS, MAX_FRAMES, MAX_STACKS, MAX_TARGETS, Numbered, StackBlocks,
};
use super::{About, ReadError};
use leak_report::model::dictionary::{Definitions, Invalid};
use leak_report::model::{Dictionary, Report, Stack};

/// Maximum number of bytes that are read from a pipe.
const MAX_FROM_PIPES: u64 = 4 << 30;

/// End of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Complete.
    Done {
        /// Number of reports made, recorded or not.
        made: u64,
    },
    /// After a whole chunk: memleak is still writing, or was killed.
    Open,
    /// Within the chunk at this file offset.
    Cut(u64),
    /// At a chunk that is damaged, or was not written by this version.
    Damaged {
        /// File offset of the chunk.
        at: u64,
        why: String,
    },
}

/// The chunks of one report.
#[derive(Clone, Debug)]
struct Place {
    /// Stacks and blocks, in the order of the file.
    parts: Vec<Chunk>,
    report: Chunk,
}

/// A recording, open for reading.
pub struct Recording {
    path: PathBuf,
    file: File,
    about: About,
    dictionary: Arc<Dictionary>,
    reports: Vec<Place>,
    ending: Ending,
}

/// A report as it was recorded.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Number among the reports that were made, from 1; recorded numbers can have gaps.
    pub number: u64,
    pub report: Report,
}

/// Summary of a report that is read without its stacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportSummary {
    /// Number among the reports that were made, from 1.
    pub number: u64,
    /// Time at which the totals were read.
    pub read_at: SystemTime,
    /// Kernel release, if the kernel was traced.
    pub kernel: Option<String>,
}

impl Recording {
    /// Opens the recording at `path`, or standard input for `-`; a pipe is copied to a temporary file first.
    ///
    /// # Errors
    ///
    /// The file is not a recording, cannot be read, or has no readable report.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let read = Self::try_open(path).map_err(|error| ReadError::File {
            path: path.to_owned(),
            error,
        });
        let recording = read??;
        match recording.reports.is_empty() {
            true => Err(ReadError::Empty(path.to_owned())),
            false => Ok(recording),
        }
    }

    fn try_open(path: &Path) -> io::Result<Result<Self, ReadError>> {
        let file = match path.as_os_str() == "-" {
            true => io::stdin().as_fd().try_clone_to_owned()?.into(),
            false => File::open(path)?,
        };
        let (file, end) = seekable(file)?;
        if end == 0 {
            return Ok(Err(ReadError::Empty(path.to_owned())));
        }
        let mut header = [0; HEADER_BYTES];
        let beginning = usize::try_from(end).map_or(HEADER_BYTES, |end| end.min(HEADER_BYTES));
        file.read_exact_at(&mut header[..beginning], 0)?;
        let Some((format, writer)) = chunk::read_header(&header).filter(|_| beginning == HEADER_BYTES) else {
            return Ok(Err(not_a_recording(path, &file)));
        };
        if format != FORMAT {
            return Ok(Err(ReadError::Format {
                path: path.to_owned(),
                format,
                writer,
            }));
        }
        let mut recording = Self {
            path: path.to_owned(),
            file,
            about: About::default(),
            dictionary: Arc::default(),
            reports: Vec::new(),
            ending: Ending::Open,
        };
        recording.index(end)?;
        Ok(Ok(recording))
    }

    /// Finds the chunks up to `end` bytes, and reads the definitions.
    fn index(&mut self, end: u64) -> io::Result<()> {
        let mut at = HEADER_BYTES as u64;
        let mut parts = Vec::new();
        loop {
            let chunk = match chunk::next(&self.file, at, end)? {
                ReadFrame::Chunk(chunk) => chunk,
                ReadFrame::End => return Ok(()),
                ReadFrame::Cut => {
                    self.ending = Ending::Cut(at);
                    return Ok(());
                }
                ReadFrame::Damaged => {
                    let why = "its checksum is wrong".to_owned();
                    self.ending = Ending::Damaged { at, why };
                    return Ok(());
                }
            };
            if let Err(Refused(why)) = self.note(chunk, &mut parts)? {
                self.ending = Ending::Damaged { at, why };
                return Ok(());
            }
            if matches!(self.ending, Ending::Done { .. }) {
                return Ok(());
            }
            at = chunk.end();
        }
    }

    /// Indexes one chunk; `parts` collects the stacks and blocks of the next report.
    fn note(&mut self, chunk: Chunk, parts: &mut Vec<Chunk>) -> io::Result<Result<(), Refused>> {
        let Some(kind) = chunk.kind else {
            return Ok(Ok(()));
        };
        let unreadable = || Ok(Err(Refused("its content is not valid".to_owned())));
        match kind {
            Kind::Stacks | Kind::Blocks => parts.push(chunk),
            Kind::Report => self.reports.push(Place {
                parts: std::mem::take(parts),
                report: chunk,
            }),
            Kind::Head => match chunk.read(&self.file)? {
                Some(about) => self.about = about,
                None => return unreadable(),
            },
            Kind::Definitions => match chunk.read::<Definitions>(&self.file)? {
                Some(definitions) => {
                    let defined = Arc::make_mut(&mut self.dictionary).define(definitions, LIMITS);
                    return Ok(defined.map_err(Refused::from));
                }
                None => return unreadable(),
            },
            Kind::Done => match chunk.read::<Done>(&self.file)? {
                Some(done) => self.ending = Ending::Done { made: done.made },
                None => return unreadable(),
            },
        }
        Ok(Ok(()))
    }

    /// Number of readable reports, at least 1.
    pub fn count(&self) -> usize {
        self.reports.len()
    }

    /// The origin of the recording.
    pub fn about(&self) -> &About {
        &self.about
    }

    pub fn ending(&self) -> &Ending {
        &self.ending
    }

    /// The definitions that the reports' stacks refer to.
    pub fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a report's summary without its stacks; the first has index 0.
    pub fn summary(&self, index: usize) -> Result<ReportSummary, ReadError> {
        self.checked(index, self.try_summary(index))
    }

    fn try_summary(&self, index: usize) -> io::Result<Result<ReportSummary, Refused>> {
        let Some(place) = self.reports.get(index) else {
            return Ok(Err(Refused("there is no such report".to_owned())));
        };
        let Some(Numbered { number, report, .. }) = place.report.read(&self.file)? else {
            return Ok(Err(Refused("its content is not valid".to_owned())));
        };
        Ok(Ok(ReportSummary {
            number,
            read_at: report.read_at,
            kernel: report.kernel.map(|kernel| kernel.release),
        }))
    }

    /// Reads a report; the first has index 0.
    pub fn report(&self, index: usize) -> Result<Recorded, ReadError> {
        self.checked(index, self.try_report(index))
    }

    fn checked<T>(&self, index: usize, read: io::Result<Result<T, Refused>>) -> Result<T, ReadError> {
        let path = || self.path.clone();
        let read = read.map_err(|error| ReadError::File { path: path(), error });
        read?.map_err(|Refused(problem)| ReadError::Damaged {
            path: path(),
            report: index + 1,
            problem,
        })
    }

    fn try_report(&self, index: usize) -> io::Result<Result<Recorded, Refused>> {
        let unreadable = |problem: &str| Ok(Err(Refused(problem.to_owned())));
        let Some(place) = self.reports.get(index) else {
            return unreadable("there is no such report");
        };
        let mut stacks = Stacks::new(&self.dictionary);
        for chunk in &place.parts {
            let added = match chunk.kind {
                Some(Kind::Blocks) => chunk.read(&self.file)?.map(|blocks| stacks.add_blocks(blocks)),
                // `note` collects no other kinds.
                _ => chunk.read(&self.file)?.map(|part| stacks.add(part)),
            };
            match added {
                Some(Ok(())) => {}
                Some(Err(wrong)) => return Ok(Err(wrong)),
                None => return unreadable("its stacks are not valid"),
            }
        }
        let Some(numbered) = place.report.read::<Numbered>(&self.file)? else {
            return unreadable("its content is not valid");
        };
        Ok(self.whole(numbered, stacks.stacks))
    }

    /// Combines a report with its stacks, and checks both.
    fn whole(&self, numbered: Numbered, stacks: Vec<Stack>) -> Result<Recorded, Refused> {
        let Numbered {
            number,
            stacks: all,
            age_bounds_ns,
            report,
        } = numbered;
        if all != stacks.len() {
            return Err(Refused("stacks are missing".to_owned()));
        }
        if age_bounds_ns != chunks::age_bounds() {
            return Err(Refused(
                "its age classes differ from those of this version".to_owned(),
            ));
        }
        if report.targets.len() > MAX_TARGETS {
            return Err(Refused("more processes than can be recorded".to_owned()));
        }
        let ends = report.ends.iter().filter_map(|group| group.module);
        let steps = report.steps.iter().filter_map(|steps| steps.module);
        ends.chain(steps)
            .try_for_each(|module| self.dictionary.check_module(module))?;
        let report = Report {
            dictionary: Arc::clone(&self.dictionary),
            stacks,
            ..report
        };
        Ok(Recorded { number, report })
    }
}

/// Reason for refusing a chunk with a valid checksum: written by another program or a newer version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refused(String);

impl From<Invalid> for Refused {
    fn from(invalid: Invalid) -> Self {
        Self(invalid.to_string())
    }
}

/// Collects the stacks of a report. The numbers of stacks, frames and blocks are bounded, as a recording may
/// be from an untrusted source; frames take no memory, but time.
struct Stacks<'a> {
    dictionary: &'a Dictionary,
    stacks: Vec<Stack>,
    frames: usize,
    blocks: usize,
}

impl<'a> Stacks<'a> {
    fn new(dictionary: &'a Dictionary) -> Self {
        Self {
            dictionary,
            stacks: Vec::new(),
            frames: 0,
            blocks: 0,
        }
    }

    fn add(&mut self, part: Vec<Stack>) -> Result<(), Refused> {
        for stack in &part {
            self.dictionary.check(stack)?;
            self.frames += self.dictionary.frames(stack.path).len();
            let (texts, paths) = stack.held.as_ref().map(|held| held.ids()).unwrap_or_default();
            self.frames += texts.len() + paths.len();
            let makeup = stack.makeup.iter();
            self.frames += makeup
                .map(|makeup| makeup.sizes.len() + makeup.threads.len())
                .sum::<usize>();
        }
        self.stacks.extend(part);
        if self.stacks.len() > MAX_STACKS || self.frames > MAX_FRAMES {
            return Err(Refused("more stacks than can be recorded".to_owned()));
        }
        Ok(())
    }

    /// Appends single blocks to stacks that were added before.
    fn add_blocks(&mut self, part: Vec<StackBlocks>) -> Result<(), Refused> {
        for StackBlocks { stack, blocks } in part {
            self.blocks += blocks.listed.len();
            if self.blocks > MAX_BLOCKS {
                return Err(Refused("more blocks than can be recorded".to_owned()));
            }
            self.dictionary.check_blocks(&blocks)?;
            let Some(stack) = self.stacks.get_mut(stack) else {
                return Err(Refused("blocks of a stack that does not exist".to_owned()));
            };
            stack.blocks.get_or_insert_default().append(blocks);
        }
        Ok(())
    }
}

/// A seekable file with its size; the content of a pipe is copied to a temporary file.
fn seekable(mut file: File) -> io::Result<(File, u64)> {
    let metadata = file.metadata()?;
    if metadata.is_file() {
        return Ok((file, metadata.len()));
    }
    let mut copy = tempfile::tempfile()?;
    let bytes = io::copy(&mut (&mut file).take(MAX_FROM_PIPES), &mut copy)?;
    copy.seek(SeekFrom::Start(0))?;
    Ok((copy, bytes))
}

/// The error for a file without the header, with a hint if it looks like a JSON report.
fn not_a_recording(path: &Path, file: &File) -> ReadError {
    let mut start = [0; 64];
    let length = file.read_at(&mut start, 0).unwrap_or(0);
    let start = String::from_utf8_lossy(&start[..length]);
    match start.starts_with('{') && start.contains("\"schema_version\"") {
        true => ReadError::Json(path.to_owned()),
        false => ReadError::NotARecording(path.to_owned()),
    }
}
