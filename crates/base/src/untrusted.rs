//! Bytes of untrusted files, for parsers that believe every length in them.
//!
//! A sparse file can have any size and occupy no space, and a name can extend to the file's end. Parsers that
//! read through [`Untrusted`] get neither pieces nor names larger than any linked file has, so that the cost
//! of a lookup is bounded by their number, not by the sizes they claim.

use std::ops::Range;

use object::ReadRef;

/// Maximum length of a name in bytes. Longer ones, which some template libraries have, are read as absent.
pub const MAX_NAME: usize = 4096;
/// Maximum number of sections. Chromium's debug build has 50; linkers that do not merge the sections of
/// functions write one for each function.
pub const MAX_SECTIONS: usize = 1 << 20;
/// Maximum bytes of a table in a mapped file. Code and data of the largest browsers are half of it.
const MAX_MAPPED: u64 = 1 << 30;
/// Maximum bytes of a table that is copied, such as symbols. The largest browsers have some two million
/// symbols.
const MAX_COPIED: u64 = 256 << 20;

/// Bytes of a file, readable in pieces of limited size.
#[derive(Clone, Copy, Debug)]
pub struct Untrusted<R> {
    bytes: R,
    max: u64,
}

impl<'a> Untrusted<&'a [u8]> {
    /// Bytes of a file that is in memory or mapped.
    pub fn mapped(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            max: MAX_MAPPED,
        }
    }
}

impl<R> Untrusted<R> {
    /// Bytes of a file that is copied as it is read.
    pub fn copied(bytes: R) -> Self {
        Self {
            bytes,
            max: MAX_COPIED,
        }
    }
}

impl<'a, R: ReadRef<'a>> ReadRef<'a> for Untrusted<R> {
    fn len(self) -> Result<u64, ()> {
        self.bytes.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        match size > self.max {
            true => Err(()),
            false => self.bytes.read_bytes_at(offset, size),
        }
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let end = range.start.saturating_add(MAX_NAME as u64).min(range.end);
        self.bytes.read_bytes_at_until(range.start..end, delimiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and pieces up to their limits are read; longer ones are an error.
    #[test]
    fn names_and_pieces_are_bounded() {
        let mut bytes = vec![b'x'; 3 * 4096];
        bytes[4095] = 0;
        bytes[2 * 4096] = 0;
        let untrusted = Untrusted {
            bytes: &bytes[..],
            max: 5000,
        };
        let name = |start| untrusted.read_bytes_at_until(start..bytes.len() as u64, 0);
        assert_eq!(name(0).map(<[u8]>::len), Ok(4095));
        assert_eq!(name(4096), Err(()));
        assert_eq!(name(4097).map(<[u8]>::len), Ok(4095));
        assert_eq!(untrusted.read_bytes_at(1, 5000).map(<[u8]>::len), Ok(5000));
        assert_eq!(untrusted.read_bytes_at(0, 5001), Err(()));
    }
}
