//! Reports in files: recordings, and JSON with a report in each line. Reports are numbered from 1 across all
//! files.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};

use super::document::Document;
use super::tools::{Listed, Reports};
use crate::commands::replay::{local_time, open};
use crate::sinks::recording::Recording;
use leak_report::model::unix_nanoseconds;
use leak_report::render::printable;

/// Maximum number of bytes of a report in JSON.
const MAX_LINE: u64 = 512 << 20;
/// Maximum number of reports in a file of JSON.
const MAX_LINES: usize = 100_000;

/// The files.
pub struct Files {
    files: Vec<OneFile>,
    /// The report that was read last, with its number.
    last: Option<(u64, Arc<Document>)>,
}

struct OneFile {
    name: String,
    content: Content,
}

enum Content {
    Recording(Box<Recording>),
    Json(File, Lines),
}

/// Offset and length of each line, in bytes.
type Lines = Vec<(u64, u64)>;

impl Files {
    /// Opens the files.
    ///
    /// # Errors
    ///
    /// Fails if one cannot be read, or has no reports.
    pub fn open(paths: &[OsString]) -> anyhow::Result<Self> {
        let files = paths.iter().map(|path| OneFile::open(Path::new(path)));
        Ok(Self {
            files: files.collect::<anyhow::Result<_>>()?,
            last: None,
        })
    }

    /// The file of a report, and the report's index in it.
    fn find(&self, number: u64) -> Option<(&OneFile, usize)> {
        let mut index = usize::try_from(number.checked_sub(1)?).ok()?;
        for file in &self.files {
            match index.checked_sub(file.count()) {
                None => return Some((file, index)),
                Some(rest) => index = rest,
            }
        }
        None
    }
}

impl OneFile {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let content = match lines_of(path).with_context(|| format!("cannot read `{}`", path.display()))? {
            Some((_, lines)) if lines.is_empty() => bail!("`{}` has no report", path.display()),
            Some((file, lines)) => Content::Json(file, lines),
            None => Content::Recording(Box::new(open(path)?)),
        };
        Ok(Self {
            name: printable(&name),
            content,
        })
    }

    fn count(&self) -> usize {
        match &self.content {
            Content::Recording(recording) => recording.count(),
            Content::Json(_, lines) => lines.len(),
        }
    }

    fn time(&self, index: usize) -> Option<String> {
        match &self.content {
            Content::Recording(recording) => {
                let summary = recording.summary(index).ok()?;
                Some(local_time(unix_nanoseconds(summary.read_at)))
            }
            Content::Json(..) => None,
        }
    }

    fn read(&self, index: usize) -> Result<Document, String> {
        match &self.content {
            Content::Recording(recording) => {
                let recorded = recording.report(index).map_err(|error| error.to_string())?;
                Document::of(&recorded.report)
            }
            Content::Json(file, lines) => {
                let &(begin, length) = lines.get(index).ok_or("there is no such report")?;
                let mut line = vec![0; usize::try_from(length).map_err(|error| error.to_string())?];
                file.read_exact_at(&mut line, begin)
                    .map_err(|error| error.to_string())?;
                Document::parse(&line)
            }
        }
    }
}

/// Lines of a JSON file that are reports, without those that `-t` writes; `None` if it is no JSON file.
fn lines_of(path: &Path) -> io::Result<Option<(File, Lines)>> {
    let file = File::open(path)?;
    let mut first = [0];
    // A pipe can be read only once, so only a recording can come from one.
    if !file.metadata()?.is_file() || file.read_at(&mut first, 0)? == 0 || first != *b"{" {
        return Ok(None);
    }
    let mut input = BufReader::with_capacity(1 << 16, &file);
    let (mut lines, mut at) = (Vec::new(), 0);
    while lines.len() < MAX_LINES {
        let Some((length, is_report)) = skip_line(&mut input)? else {
            break;
        };
        if is_report {
            lines.push((at, length));
        }
        at += length;
    }
    drop(input);
    Ok(Some((file, lines)))
}

/// Skips a line. Returns its length, and true if it begins like a report and is not too long; `None` at the
/// end.
fn skip_line(input: &mut impl BufRead) -> io::Result<Option<(u64, bool)>> {
    const BEGIN: &[u8] = b"{\"schema_version\"";
    let mut begin = Vec::new();
    let began = input
        .by_ref()
        .take(BEGIN.len() as u64)
        .read_until(b'\n', &mut begin)?;
    let mut length = began as u64;
    if began == 0 {
        return Ok(None);
    }
    while !begin.ends_with(b"\n") {
        let piece = input.fill_buf()?;
        if piece.is_empty() {
            break;
        }
        let end = memchr::memchr(b'\n', piece);
        let used = end.map_or(piece.len(), |end| end + 1);
        input.consume(used);
        length += used as u64;
        if end.is_some() {
            break;
        }
    }
    Ok(Some((length, begin == BEGIN && length <= MAX_LINE)))
}

impl Reports for Files {
    fn numbers(&mut self) -> Vec<u64> {
        let count: usize = self.files.iter().map(OneFile::count).sum();
        (1..=count as u64).collect()
    }

    fn about(&mut self, number: u64) -> Listed {
        let found = self.find(number);
        found.map_or_else(Listed::default, |(file, index)| Listed {
            file: Some(file.name.clone()),
            time: file.time(index),
        })
    }

    fn state(&mut self) -> &'static str {
        "recorded"
    }

    fn get(&mut self, number: u64) -> Result<Arc<Document>, String> {
        if let Some((_, document)) = self.last.as_ref().filter(|(known, _)| *known == number) {
            return Ok(Arc::clone(document));
        }
        let found = self.find(number);
        let (file, index) = found.ok_or_else(|| format!("there is no report {number}: see `reports`"))?;
        let document = Arc::new(file.read(index)?);
        self.last = Some((number, Arc::clone(&document)));
        Ok(document)
    }
}

/// Returns true if the name of a source is a process: a number, and no file has that name.
pub fn is_process(source: &OsStr) -> bool {
    let is_number = source.to_str().is_some_and(|text| text.parse::<u32>().is_ok());
    is_number && !Path::new(source).exists()
}
