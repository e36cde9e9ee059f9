//! What makes a whole file or image unusable. What is wrong with a single row is a
//! [`Reason`](crate::rule::Reason) instead.

use thiserror::Error;

/// The ELF file cannot be compiled into a table at all.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableError {
    /// The bytes are not an ELF file.
    #[error("not an ELF file; give an executable or a shared library")]
    NotElf,
    /// The ELF file is not of a kind that can be unwound here.
    #[error("unsupported ELF file: {0}")]
    Unsupported(&'static str),
    /// The ELF headers contradict themselves or the file's size.
    #[error("malformed ELF file: {0}")]
    Malformed(&'static str),
    /// The table would not fit the image layout.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// Rows cannot be laid out as an image, or words are not an image.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageError {
    /// More rows than an image may hold.
    #[error("{0} rows are more than an image can hold")]
    TooManyRows(usize),
    /// The addresses lie too far apart for a block index.
    #[error("code spans {0:#x} bytes, too far for a block index")]
    TooSparse(u64),
    /// More distinct rules than an image may hold.
    #[error("too many distinct rules")]
    TooManyRules,
    /// The words are not an image of this version.
    #[error("not an unwind table image of this version")]
    BadMagic,
    /// A count, offset or reference in the words is wrong.
    #[error("damaged unwind table image: {0}")]
    Damaged(&'static str),
}
