//! Errors that make a whole file or image unusable. A fault in a single row is a
//! [`Reason`](crate::rule::Reason) instead.

use thiserror::Error;

/// Error of a file that cannot be compiled into a table.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableError {
    /// The bytes are not an ELF file.
    #[error("not an ELF file; give an executable or a shared library")]
    NotElf,
    /// The ELF file is of an unsupported class, type or machine.
    #[error("unsupported ELF file: {0}")]
    Unsupported(&'static str),
    /// The ELF headers are inconsistent with each other or with the file's size.
    #[error("malformed ELF file: {0}")]
    Malformed(&'static str),
    /// The table does not fit the image layout.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// Error of rows that do not fit an image, or of words that are not an image.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageError {
    /// The rows are more than `image::MAX_ROWS`.
    #[error("{0} rows are more than an image can hold")]
    TooManyRows(usize),
    /// The span of the addresses, in bytes, is too large for a block index.
    #[error("code spans {0:#x} bytes, too far for a block index")]
    TooSparse(u64),
    /// The distinct rules are more than an image can hold.
    #[error("too many distinct rules")]
    TooManyRules,
    /// The words are not an image of this version.
    #[error("not an unwind table image of this version")]
    BadMagic,
    /// A count, offset or reference in the words is wrong.
    #[error("damaged unwind table image: {0}")]
    Damaged(&'static str),
}
