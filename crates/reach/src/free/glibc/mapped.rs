//! Chunks that have their own mappings.
//!
//! The first word of the header is the number of bytes of the mapping before the chunk, which an alignment
//! can ask for. Until 2.42, the chunk's size is that of the rest of the mapping. Since 2.43, it lacks the
//! header's size, so that a block's end is computed as that of other blocks is, and the first word can have a
//! flag.

use super::walk::{FLAGS, HEADER, IS_MMAPPED, PAGE, size};

/// Flag in the first word: the mapping is of huge pages.
const IN_HUGE_PAGES: u64 = 1;

/// Addresses of a chunk that has its own mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    /// Start of the mapping.
    pub(super) start: u64,
    /// End of the memory that the program uses.
    pub(super) usable_end: u64,
    /// End of the mapping.
    pub(super) end: u64,
}

impl Mapped {
    /// Reads the header of the chunk at `chunk`; `None` if it has no mapping of its own.
    pub(super) fn read(chunk: u64, [before, word]: [u64; 2]) -> Option<Self> {
        let is_page = |address: &u64| address.is_multiple_of(PAGE);
        // No other flag is set.
        if word & FLAGS != IS_MMAPPED || size(word) < HEADER {
            return None;
        }
        let start = chunk.checked_sub(before & !IN_HUGE_PAGES).filter(is_page)?;
        let sized = chunk.checked_add(size(word))?;
        let (usable_end, end) = if is_page(&sized) {
            (sized, sized)
        } else {
            let end = sized.checked_add(HEADER).filter(is_page)?;
            (end - 8, end)
        };
        Some(Self {
            start,
            usable_end,
            end,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 0x7f00_0010_0000;

    fn mapped(start: u64, usable_end: u64, end: u64) -> Option<Mapped> {
        Some(Mapped {
            start,
            usable_end,
            end,
        })
    }

    /// Headers as glibc 2.36 writes them, by `malloc` and by `aligned_alloc`.
    #[test]
    fn until_2_42() {
        let end = CHUNK + 0x3_1000;
        assert_eq!(Mapped::read(CHUNK, [0, 0x3_1002]), mapped(CHUNK, end, end));
        let chunk = CHUNK + 0x1f0;
        let end = chunk + 0x4_9e10;
        assert_eq!(Mapped::read(chunk, [0x1f0, 0x4_9e12]), mapped(CHUNK, end, end));
    }

    /// Headers as glibc 2.43 writes them, the last in huge pages.
    #[test]
    fn since_2_43() {
        let end = CHUNK + 0x2_1000;
        assert_eq!(Mapped::read(CHUNK, [0, 0x2_0ff2]), mapped(CHUNK, end - 8, end));
        let chunk = CHUNK + 0x1f0;
        let end = chunk + 0x4_9e10;
        assert_eq!(
            Mapped::read(chunk, [0x1f0, 0x4_9e02]),
            mapped(CHUNK, end - 8, end)
        );
        let end = CHUNK + 0x40_1000;
        assert_eq!(Mapped::read(CHUNK, [1, 0x40_0ff2]), mapped(CHUNK, end - 8, end));
    }

    /// Chunks of arenas, also one that ends with a page, words that are no header, and sizes that overflow.
    #[test]
    fn others() {
        for header in [
            [0, 0x3_1001],
            [0, 0x3_1003],
            [0, 0x3_0008],
            [0, 0x3_0802],
            [0x800, 0x3_1002],
            [u64::MAX, 0x3_1002],
            [0, 2],
            [0, !0xfff | 2],
        ] {
            assert_eq!(Mapped::read(CHUNK, header), None, "{header:x?}");
        }
    }
}
