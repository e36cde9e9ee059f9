//! A file's bytes, memory-mapped. What happens when the file is cut short meanwhile is in `cut_short`.
//!
//! Mapped and not read: a target can map gigabytes of libraries of which a tracer needs `.eh_frame`
//! and a few symbols, so a private copy would cost memory and start-up time that the page cache
//! already paid for.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapOptions, UncheckedAdvice};

use super::cut_short::Watched;

/// The bytes of a regular file, read-only.
#[derive(Debug)]
pub(super) struct MappedFile {
    // Before the mapping: what is no longer mapped is no longer watched.
    watched: Watched,
    bytes: Mmap,
}

impl MappedFile {
    /// Maps the whole of `file`, which the caller has found to be a regular file.
    ///
    /// Shared: into a private mapping of code, the kernel writes the breakpoints of probes that other tools have on
    /// every process (`valid_vma` in Linux, `kernel/events/uprobes.c`), and the file would seem to hold them.
    ///
    /// The file can change while it is mapped. Who truncates it takes away pages: what was on them reads as zero then, see
    /// [`MappedFile::was_cut_short`]. Who overwrites it changes bytes under a parser. That is accepted: parsers check every
    /// length and index against the slice and trust no value twice, so that changed bytes give wrong rows of that file at
    /// worst, and an executable in use cannot be opened for writing (ETXTBSY).
    ///
    /// # Errors
    ///
    /// It cannot be mapped, or too many files are.
    pub(super) fn map(file: &File) -> io::Result<Self> {
        let options = MmapOptions::new();
        // SAFETY: the mapping is read-only, lives as long as this value, and is only
        // handed out as a slice borrowed from it. That no one else modifies the file cannot be
        // guaranteed for any file mapping; the consequences are bounded as described above, and
        // every user of the slice treats it as untrusted input.
        let bytes = unsafe { options.map(file) }?;
        let watched = Watched::new(bytes.as_ptr_range())?;
        Ok(Self { watched, bytes })
    }

    /// Gives back the memory that holds what was read of it. Reading on is as before, and takes as long as at first.
    pub(super) fn release(&self) {
        // SAFETY: the mapping is of a file and shared, so that the pages are read from the file again.
        let released = unsafe { self.bytes.unchecked_advise(UncheckedAdvice::DontNeed) };
        // The kernel knows it for every mapping of a file; without it, there is more memory resident.
        _ = released;
    }

    /// The file's bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether bytes were read that the file had no more: what was read of it is not to be relied on.
    pub(super) fn was_cut_short(&self) -> bool {
        self.watched.was_cut_short()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a file that is cut short, what is left is read as before, and the rest as zero, however often.
    #[test]
    fn files_are_cut_short() {
        let file = tempfile::tempfile().expect("a file");
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 5 * 4096], 0).expect("written");
        let mapped = MappedFile::map(&file).expect("it is mapped");
        let sum = || mapped.bytes().iter().map(|&byte| u64::from(byte)).sum::<u64>();
        assert_eq!((sum(), mapped.was_cut_short()), (7 * 5 * 4096, false));
        file.set_len(2 * 4096 + 100).expect("it is ours");
        for _ in 0..2 {
            assert_eq!((sum(), mapped.was_cut_short()), (7 * (2 * 4096 + 100), true));
            mapped.release();
        }
        file.set_len(0).expect("it is ours");
        assert_eq!(sum(), 0);
    }
}
