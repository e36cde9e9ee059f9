//! The traced process.
mod mapped_file;
pub mod maps;
mod stat;
