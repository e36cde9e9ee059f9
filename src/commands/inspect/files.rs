//! Finds the ELF files below some paths, each file once, however many names it has.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::process::foreign::open_exactly;
use leak_report::units::size;

/// Maximum size of a file; no file with code is larger.
const MAX_BYTES: u64 = 4 << 30;
/// Maximum depth of directories.
const MAX_DEPTH: usize = 64;
const MAGIC: [u8; 4] = *b"\x7fELF";

/// A file that begins with the ELF magic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ElfFile {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// Result of a search.
#[derive(Debug, Default)]
pub(super) struct SearchResult {
    /// Sorted by path.
    pub(super) files: Vec<ElfFile>,
    /// Files and directories that could not be read, and why.
    pub(super) unreadable: Vec<(PathBuf, io::Error)>,
    seen: HashSet<(u64, u64)>,
}

/// Finds all ELF files at or below `paths`. Symbolic links are followed only where they are given.
///
/// # Errors
///
/// Fails if a given path does not exist, or is neither a directory nor a regular file.
pub(super) fn find(paths: &[impl AsRef<Path>]) -> anyhow::Result<SearchResult> {
    let mut found = SearchResult::default();
    for path in paths.iter().map(AsRef::as_ref) {
        let metadata = fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
        if metadata.is_dir() {
            found.add_directory(path, MAX_DEPTH);
        } else if metadata.is_file() {
            found.add_file(path, &metadata);
        } else {
            bail!("{} is neither a directory nor a regular file", path.display());
        }
    }
    found.files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

impl SearchResult {
    fn add_directory(&mut self, path: &Path, depth: usize) {
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) => return self.unreadable.push((path.to_owned(), error)),
        };
        for entry in entries.flatten() {
            // Metadata of the entry itself: links are not followed.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() && depth > 0 {
                self.add_directory(&entry.path(), depth - 1);
            } else if metadata.is_file() {
                self.add_file(&entry.path(), &metadata);
            }
        }
    }

    fn add_file(&mut self, path: &Path, metadata: &Metadata) {
        if !self.seen.insert((metadata.dev(), metadata.ino())) {
            return;
        }
        match begins_as_elf(path) {
            Ok(false) => {}
            Ok(true) => self.files.push(ElfFile {
                path: path.to_owned(),
                bytes: metadata.len(),
            }),
            Err(error) => self.unreadable.push((path.to_owned(), error)),
        }
    }
}

fn begins_as_elf(path: &Path) -> io::Result<bool> {
    let mut first = [0; MAGIC.len()];
    match open_exactly(path)?.read_exact(&mut first) {
        Ok(()) => Ok(first == MAGIC),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads a regular file of at most [`MAX_BYTES`].
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let file = open_exactly(path)?;
    let metadata = file.metadata()?;
    if metadata.len() > MAX_BYTES {
        bail!("it is larger than {}", size(MAX_BYTES));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
