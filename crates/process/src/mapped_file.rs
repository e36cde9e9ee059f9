//! A file's bytes, memory-mapped. With `shortened`, the only `unsafe` code for reading files.
//!
//! Mapped and not read: a process can map gigabytes of libraries of which a tracer needs `.eh_frame` and a
//! few symbols, so a private copy would cost memory and start-up time that the page cache has already paid
//! for.
#![allow(unsafe_code, reason = "others can change a mapped file")]

use std::fs::File;
use std::io;

use memmap2::{Mmap, MmapOptions, UncheckedAdvice};

use super::shortened::Watch;

#[derive(Debug)]
pub(super) struct MappedFile {
    // Fields are dropped in order: the watch must end before the mapping that it covers.
    watch: Watch,
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole of `file`, which the caller has checked to be a regular file.
    ///
    /// Shared: into a private mapping of code, the kernel writes the breakpoints of probes that other tools
    /// have placed in every process (`valid_vma` in Linux, `kernel/events/uprobes.c`), and the file would
    /// seem to contain them.
    ///
    /// Whoever can write the file can truncate it, after which the missing part reads as zeros ([`Watch`]),
    /// or overwrite it, which changes bytes under a parser. Parsers check every length and index against the
    /// slice and never rely on reading a value twice, so that changed bytes give wrong rows of that file at
    /// worst. (An executable in use cannot be opened for writing, ETXTBSY, and package managers and linkers
    /// replace a library by renaming, which leaves the mapped inode unchanged.)
    pub(super) fn map(file: &File) -> io::Result<Self> {
        let options = MmapOptions::new();
        // SAFETY: the mapping is read-only, lives as long as this value, and is only
        // handed out as a slice borrowed from it. That no one else modifies the file cannot be
        // guaranteed for any file mapping; the consequences are bounded as described above, and
        // every user of the slice treats it as untrusted input.
        let map = unsafe { options.map(file) }?;
        let watch = Watch::over(&map)?;
        Ok(Self { watch, map })
    }

    /// Releases the resident pages. Later reads work as before, and are as slow as the first.
    pub(super) fn release(&self) {
        // SAFETY: the mapping is of a file and shared, so that the pages are read from the file again.
        let released = unsafe { self.map.unchecked_advise(UncheckedAdvice::DontNeed) };
        // The kernel supports this for every mapping of a file; if it fails, more memory stays resident.
        _ = released;
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// True if the file was truncated while mapped: the missing part was read as zeros.
    pub(super) fn is_cut(&self) -> bool {
        self.watch.is_cut()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    const PAGES: u64 = 64;
    const PAGE: u64 = 4096;

    /// Makes a file of pages full of ones, and maps it.
    fn mapped() -> (File, MappedFile) {
        let mut file = tempfile::tempfile().expect("a file");
        let bytes = usize::try_from(PAGES * PAGE).expect("small");
        file.write_all(&vec![1; bytes]).expect("written");
        let mapped = MappedFile::map(&file).expect("mapped");
        (file, mapped)
    }

    fn ones(mapped: &MappedFile) -> u64 {
        mapped.bytes().iter().map(|&byte| u64::from(byte)).sum()
    }

    /// The truncated part of a file reads as zeros, also after its memory was released and after the file has
    /// grown again; the rest reads as before, and another file is unaffected.
    #[test]
    fn truncated_parts_read_as_zeros() {
        let ((file, cut), (other_file, other)) = (mapped(), mapped());
        assert_eq!((ones(&cut), cut.is_cut()), (PAGES * PAGE, false));
        file.set_len(10 * PAGE + 5).expect("cut off");
        // The kernel clears the rest of the last page.
        for _ in 0..2 {
            assert_eq!((ones(&cut), cut.is_cut()), (10 * PAGE + 5, true));
            cut.release();
        }
        file.set_len(PAGES * PAGE).expect("a hole");
        assert_eq!((ones(&cut), cut.is_cut()), (10 * PAGE + 5, true));
        file.set_len(0).expect("cut off");
        cut.release();
        assert_eq!((ones(&cut), cut.is_cut()), (0, true));
        assert_eq!((ones(&other), other.is_cut()), (PAGES * PAGE, false));
        // A watch slot that was used before starts fresh.
        drop((cut, other));
        let (_file, second) = mapped();
        assert_eq!((ones(&second), second.is_cut()), (PAGES * PAGE, false));
        drop(other_file);
    }

    /// Threads that read files which are truncated and rewritten all the time do not crash.
    #[test]
    fn readers_survive_constant_truncation() {
        let done = AtomicBool::new(false);
        let (file, _) = mapped();
        file.set_len(0).expect("cut off");
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    file.set_len(0).expect("cut off");
                    file.set_len(PAGES * PAGE).expect("a hole");
                    file.write_all_at(&[1], 7 * PAGE).expect("written");
                }
            });
            let read = || {
                let mut cut = 0;
                while cut < 20 {
                    // The file may be empty at this moment, which cannot be mapped.
                    let Ok(mapped) = MappedFile::map(&file) else {
                        continue;
                    };
                    assert!(ones(&mapped) <= 1);
                    cut += usize::from(mapped.is_cut());
                }
            };
            let readers = [scope.spawn(read), scope.spawn(read)];
            let ended = readers.map(std::thread::ScopedJoinHandle::join);
            done.store(true, Ordering::Relaxed);
            for reader in ended {
                reader.expect("it is not ended");
            }
        });
    }
}
