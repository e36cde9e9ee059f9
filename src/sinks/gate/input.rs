//! Text files of the user's, line by line. Bounded in size.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Bytes of the largest file that is read. A site of a baseline takes some kilobytes.
const MAX_BYTES: u64 = 64 << 20;

/// A file that does not say what it should.
#[derive(Debug, Error)]
pub enum InputError {
    /// It cannot be read.
    #[error("cannot read `{}`: {error}", .path.display())]
    File {
        /// Its name.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A line of it is wrong.
    #[error("{place}: {problem}")]
    Line {
        /// File and line.
        place: String,
        /// What is wrong with it, and what would be right.
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
    /// It cannot be read, is too large, or is not text.
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

    /// The lines of `text`, of which errors say that it is in `path`.
    pub(super) fn of(path: &Path, text: String) -> Self {
        Self {
            path: path.to_owned(),
            text,
        }
    }

    /// The lines with their numbers, which begin with 1.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// File and line, for people.
    pub(super) fn place(&self, number: usize) -> String {
        format!("{}:{number}", self.path.display())
    }

    /// That a line is wrong.
    pub(super) fn wrong(&self, number: usize, problem: String) -> InputError {
        InputError::Line {
            place: self.place(number),
            problem,
        }
    }
}
