//! Reasons why the kernel side cannot be loaded.

use nix::errno::Errno;
use thiserror::Error;

use super::refused::{RefusedProgram, errno_of, release};
use crate::base::{memory_limit, open_files};

#[derive(Debug, Error)]
pub enum LoadError {
    #[error("{name} of {value} is too large; the maximum is {max}")]
    Capacity {
        name: &'static str,
        value: u64,
        max: u64,
    },
    #[error("{0}")]
    Program(RefusedProgram),
    #[error("the kernel (Linux {release}) refused the map {name} ({errno:?}): it lacks a BPF feature that \
             memleak needs (docs/limits.md)",
        release = release())]
    Map { name: String, errno: Errno },
    #[error(
        "the kernel (Linux {release}) refused an array of {bytes} bytes ({errno:?}): before 6.0, arrays have at most 4 MiB \
         (docs/limits.md)",
        release = release()
    )]
    LargeArray { bytes: u32, errno: Errno },
    #[error("too many open files for BPF programs and maps{}", open_files::remedy())]
    OpenFiles,
    #[error(
        "there is not enough memory for BPF programs and maps{}",
        memory_limit::remedy()
    )]
    Memory,
    #[error("the kernel refused the BPF programs")]
    Refused(#[source] libbpf_rs::Error),
}

impl From<libbpf_rs::Error> for LoadError {
    fn from(error: libbpf_rs::Error) -> Self {
        match errno_of(&error) {
            Some(Errno::EMFILE) => Self::OpenFiles,
            Some(Errno::ENOMEM) => Self::Memory,
            Some(_) | None => Self::Refused(error),
        }
    }
}
