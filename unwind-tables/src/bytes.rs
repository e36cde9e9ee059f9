//! Untrusted little-endian bytes: reads out of range return `None` and never panic.

/// A byte slice with 64-bit offsets, as in files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn len(self) -> u64 {
        self.0.len() as u64
    }

    /// Returns `size` bytes from `start`.
    pub(crate) fn at(self, start: u64, size: u64) -> Option<Self> {
        let start = usize::try_from(start).ok()?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        self.0.get(start..end).map(Self)
    }

    fn array<const N: usize>(self, at: u64) -> Option<[u8; N]> {
        let start = usize::try_from(at).ok()?;
        self.0.get(start..)?.first_chunk().copied()
    }

    pub(crate) fn u8(self, at: u64) -> Option<u8> {
        self.array(at).map(u8::from_le_bytes)
    }

    pub(crate) fn u32(self, at: u64) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(self, at: u64) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }
}
