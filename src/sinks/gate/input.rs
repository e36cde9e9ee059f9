//! Reads the user's text files line by line, with a size limit.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Maximum size of a file in bytes. A site of a baseline takes some kilobytes.
const MAX_BYTES: u64 = 64 << 20;

/// Failure to read or parse a file.
#[derive(Debug, Error)]
pub enum InputError {
    #[error("cannot read `{}`: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("{place}: {problem}")]
    Line {
        /// File name and line number.
        place: String,
        /// Problem and remedy.
        problem: String,
    },
}

/// The lines of a file.
#[derive(Debug)]
pub(super) struct Lines {
    path: PathBuf,
    text: String,
}

impl Lines {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is larger than [`MAX_BYTES`], or is not UTF-8.
    pub(super) fn read(path: &Path) -> Result<Self, InputError> {
        let read = || {
            let mut text = String::new();
            let mut file = File::open(path)?.take(MAX_BYTES + 1);
            file.read_to_string(&mut text)?;
            match file.limit() {
                0 => Err(io::Error::other("it is larger than 64 MiB")),
                _ => Ok(text),
            }
        };
        let text = read().map_err(|error| InputError::File {
            path: path.to_owned(),
            error,
        })?;
        Ok(Self::of(path, text))
    }

    /// The lines of `text`; errors name `path`.
    pub(super) fn of(path: &Path, text: String) -> Self {
        Self {
            path: path.to_owned(),
            text,
        }
    }

    /// The lines with their numbers, from 1.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// File name and line number, for messages.
    pub(super) fn place(&self, number: usize) -> String {
        format!("{}:{number}", self.path.display())
    }

    /// An error about a line.
    pub(super) fn wrong(&self, number: usize, problem: String) -> InputError {
        InputError::Line {
            place: self.place(number),
            problem,
        }
    }
}
