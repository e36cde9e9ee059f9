//! A file's bytes, memory-mapped. The only `unsafe` of `target`.
//!
//! Mapped and not read: a target can map gigabytes of libraries of which a tracer needs `.eh_frame`
//! and a few symbols, so a private copy would cost memory and start-up time that the page cache
//! already paid for.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapOptions, UncheckedAdvice};

/// The bytes of a regular file, read-only.
#[derive(Debug)]
pub(super) struct MappedFile(Mmap);

impl MappedFile {
    /// Maps the whole of `file`, which the caller has found to be a regular file.
    ///
    /// Shared: into a private mapping of code, the kernel writes the breakpoints of probes that other tools have on
    /// every process (`valid_vma` in Linux, `kernel/events/uprobes.c`), and the file would seem to hold them.
    ///
    /// The risk that remains: who truncates the file in place makes the next read of a page past
    /// its new end raise SIGBUS, which ends this process, and who overwrites it changes bytes
    /// under a parser. Both are accepted, because of what they are bounded to:
    /// * an executable in use cannot be opened for writing (ETXTBSY), and package managers and
    ///   linkers replace a library by renaming, which leaves the mapped inode alone;
    /// * who truncates a library in place takes the same pages from the target, which has it
    ///   mapped as code;
    /// * our end is not the target's: its probes are removed by the kernel with our last
    ///   descriptor, and nothing of it was ever written;
    /// * parsers check every length and index against the slice and trust no value twice, so
    ///   changed bytes give wrong rows of that file at worst.
    pub(super) fn map(file: &File) -> io::Result<Self> {
        let options = MmapOptions::new();
        // SAFETY: the mapping is read-only, lives as long as this value, and is only
        // handed out as a slice borrowed from it. That no one else modifies the file cannot be
        // guaranteed for any file mapping; the consequences are bounded as described above, and
        // every user of the slice treats it as untrusted input.
        unsafe { options.map(file) }.map(Self)
    }

    /// Gives back the memory that holds what was read of it. Reading on is as before, and takes as long as at first.
    pub(super) fn release(&self) {
        // SAFETY: the mapping is of a file and shared, so that the pages are read from the file again.
        let released = unsafe { self.0.unchecked_advise(UncheckedAdvice::DontNeed) };
        // The kernel knows it for every mapping of a file; without it, there is more memory resident.
        _ = released;
    }

    /// The file's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}
