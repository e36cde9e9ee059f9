//! Reads recordings: definitions at once, reports when they are asked for.
//!
//! A file may end anywhere, be changed anywhere, or be made to do harm. What is before the first chunk that is not whole
//! is read, and what comes after it is not; what a chunk refers to and how much it asks for is checked.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::chunk::{self, Chunk, FORMAT, HEADER_BYTES, Kind, Next};
use super::chunks::{
    self, Done, LIMITS, MAX_BLOCKS, MAX_FRAMES, MAX_STACKS, MAX_TARGETS, Numbered, StackBlocks,
};
use super::{About, ReadError};
use leak_report::model::dictionary::{Definitions, Invalid};
use leak_report::model::{Dictionary, Report, Stack};

/// The most that is read from what is no file, as a pipe.
const MAX_FROM_PIPES: u64 = 4 << 30;

/// How a recording ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As it should.
    Done {
        /// Reports that were made, recorded or not.
        made: u64,
    },
    /// Between two chunks: memleak still writes it, or was killed.
    Open,
    /// Within a chunk that begins here.
    Cut(u64),
    /// At a chunk that is not what was written, or not by this version.
    Damaged {
        /// Where it begins.
        at: u64,
        /// What is wrong with it.
        why: String,
    },
}

/// Where a report is.
#[derive(Clone, Debug)]
struct Place {
    /// Its stacks.
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
    /// Its number among all that were made, from 1; not all need be recorded.
    pub number: u64,
    /// The report.
    pub report: Report,
}

/// What is known of a report at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glance {
    /// Its number among all that were made, from 1.
    pub number: u64,
    /// When totals were read.
    pub read_at: SystemTime,
    /// The kernel's version, if it was traced.
    pub kernel: Option<String>,
}

impl Recording {
    /// Opens the recording at `path`, `-` being standard input; one in a pipe is read to its end.
    ///
    /// # Errors
    ///
    /// It is none, cannot be read, or has no report that can be.
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

    /// Finds the chunks, and reads the definitions.
    fn index(&mut self, end: u64) -> io::Result<()> {
        let mut at = HEADER_BYTES as u64;
        let mut parts = Vec::new();
        loop {
            let chunk = match chunk::next(&self.file, at, end)? {
                Next::Chunk(chunk) => chunk,
                Next::End => return Ok(()),
                Next::Cut => {
                    self.ending = Ending::Cut(at);
                    return Ok(());
                }
                Next::Damaged => {
                    let why = "its checksum is wrong".to_owned();
                    self.ending = Ending::Damaged { at, why };
                    return Ok(());
                }
            };
            if let Err(Wrong(why)) = self.note(chunk, &mut parts)? {
                self.ending = Ending::Damaged { at, why };
                return Ok(());
            }
            if matches!(self.ending, Ending::Done { .. }) {
                return Ok(());
            }
            at = chunk.end();
        }
    }

    /// Notes what a chunk is; `parts` are those of the next report.
    fn note(&mut self, chunk: Chunk, parts: &mut Vec<Chunk>) -> io::Result<Result<(), Wrong>> {
        let Some(kind) = chunk.kind else {
            return Ok(Ok(()));
        };
        let unreadable = || Ok(Err(Wrong("it is not what was written".to_owned())));
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
                    return Ok(defined.map_err(Wrong::from));
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

    /// How many reports can be read; at least one.
    pub fn count(&self) -> usize {
        self.reports.len()
    }

    /// Where it comes from.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// How it ends.
    pub fn ending(&self) -> &Ending {
        &self.ending
    }

    /// Everything that stacks of its reports refer to.
    pub fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What can be known of a report without reading its stacks; the first has index 0.
    ///
    /// # Errors
    ///
    /// As [`Recording::report`].
    pub fn glance(&self, index: usize) -> Result<Glance, ReadError> {
        self.checked(index, self.try_glance(index))
    }

    fn try_glance(&self, index: usize) -> io::Result<Result<Glance, Wrong>> {
        let Some(place) = self.reports.get(index) else {
            return Ok(Err(Wrong("there is no such report".to_owned())));
        };
        let Some(Numbered { number, report, .. }) = place.report.read(&self.file)? else {
            return Ok(Err(Wrong("it is not what was written".to_owned())));
        };
        Ok(Ok(Glance {
            number,
            read_at: report.read_at,
            kernel: report.kernel.map(|kernel| kernel.release),
        }))
    }

    /// Reads a report; the first has index 0.
    ///
    /// # Errors
    ///
    /// It is damaged, or there is none.
    pub fn report(&self, index: usize) -> Result<Recorded, ReadError> {
        self.checked(index, self.try_report(index))
    }

    fn checked<T>(&self, index: usize, read: io::Result<Result<T, Wrong>>) -> Result<T, ReadError> {
        let path = || self.path.clone();
        let read = read.map_err(|error| ReadError::File { path: path(), error });
        read?.map_err(|Wrong(what)| ReadError::Damaged {
            path: path(),
            report: index + 1,
            what,
        })
    }

    fn try_report(&self, index: usize) -> io::Result<Result<Recorded, Wrong>> {
        let unreadable = |what: &str| Ok(Err(Wrong(what.to_owned())));
        let Some(place) = self.reports.get(index) else {
            return unreadable("there is no such report");
        };
        let mut stacks = Stacks::new(&self.dictionary);
        for chunk in &place.parts {
            let added = match chunk.kind {
                Some(Kind::Blocks) => chunk.read(&self.file)?.map(|blocks| stacks.add_blocks(blocks)),
                // There are no others.
                _ => chunk.read(&self.file)?.map(|part| stacks.add(part)),
            };
            match added {
                Some(Ok(())) => {}
                Some(Err(wrong)) => return Ok(Err(wrong)),
                None => return unreadable("its stacks are not what was written"),
            }
        }
        let Some(numbered) = place.report.read::<Numbered>(&self.file)? else {
            return unreadable("it is not what was written");
        };
        Ok(self.whole(numbered, stacks.stacks))
    }

    /// The report with its stacks.
    fn whole(&self, numbered: Numbered, stacks: Vec<Stack>) -> Result<Recorded, Wrong> {
        let Numbered {
            number,
            stacks: all,
            age_bounds_ns,
            report,
        } = numbered;
        if all != stacks.len() {
            return Err(Wrong("stacks are missing".to_owned()));
        }
        if age_bounds_ns != chunks::age_bounds() {
            return Err(Wrong("ages are in other classes than this version's".to_owned()));
        }
        if report.targets.len() > MAX_TARGETS {
            return Err(Wrong("more processes than can be recorded".to_owned()));
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

/// The reason why a chunk whose checksum is right is refused: it was not made by this program, or by a newer one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wrong(String);

impl From<Invalid> for Wrong {
    fn from(invalid: Invalid) -> Self {
        Self(invalid.to_string())
    }
}

/// The stacks of a report, while they are read. A recording may be anybody's, so their number has a bound, and that of their
/// frames, which take no memory but time.
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

    fn add(&mut self, part: Vec<Stack>) -> Result<(), Wrong> {
        for stack in &part {
            self.dictionary.check(stack)?;
            self.frames += self.dictionary.frames(stack.path).len();
        }
        self.stacks.extend(part);
        if self.stacks.len() > MAX_STACKS || self.frames > MAX_FRAMES {
            return Err(Wrong("more stacks than can be recorded".to_owned()));
        }
        Ok(())
    }

    /// Adds single blocks to those of stacks that were added.
    fn add_blocks(&mut self, part: Vec<StackBlocks>) -> Result<(), Wrong> {
        for StackBlocks { stack, blocks } in part {
            self.blocks += blocks.listed.len();
            if self.blocks > MAX_BLOCKS {
                return Err(Wrong("more blocks than can be recorded".to_owned()));
            }
            let Some(stack) = self.stacks.get_mut(stack) else {
                return Err(Wrong("blocks of a stack that is not there".to_owned()));
            };
            stack.blocks.get_or_insert_default().append(blocks);
        }
        Ok(())
    }
}

/// The same file, or what a pipe has as one, and where it ends.
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

/// What a file is instead, as far as can be told.
fn not_a_recording(path: &Path, file: &File) -> ReadError {
    let mut start = [0; 64];
    let length = file.read_at(&mut start, 0).unwrap_or(0);
    let start = String::from_utf8_lossy(&start[..length]);
    match start.starts_with('{') && start.contains("\"schema_version\"") {
        true => ReadError::Json(path.to_owned()),
        false => ReadError::NotARecording(path.to_owned()),
    }
}
