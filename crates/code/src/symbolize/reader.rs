//! Reader of a debug section whose addresses are only those of code that is in the file.
//!
//! Linkers keep the debug information of functions that they remove, with 0 or another number for the
//! function's address. Taken literally, it describes the code at that address. So such an address is
//! replaced, when it is read, by the one that DWARF 6 reserves for removed code (-1). This drops everything
//! that begins there: functions, ranges and lines.

use std::borrow::Cow;
use std::sync::Arc;

use gimli::{Error, LittleEndian, Reader as GimliReader, ReaderOffsetId, SectionId};

use super::live_code::LiveCode;

/// Part of a debug section.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    section: Arc<Section>,
    start: usize,
    /// At least `start`, and at most the section's length.
    end: usize,
}

#[derive(Debug)]
struct Section {
    bytes: Arc<[u8]>,
    /// Number of the section, and the code that decides on its addresses; `None` if all are kept.
    addresses: Option<(SectionId, Arc<LiveCode>)>,
}

impl Reader {
    /// Makes a reader of all of a section, whose addresses are kept as they are.
    pub(super) fn new(bytes: Arc<[u8]>) -> Self {
        Self::of(bytes, None)
    }

    /// Makes a reader of all of section `id` whose addresses `code` decides on.
    pub(super) fn with_addresses(bytes: Arc<[u8]>, id: SectionId, code: Arc<LiveCode>) -> Self {
        Self::of(bytes, Some((id, code)))
    }

    fn of(bytes: Arc<[u8]>, addresses: Option<(SectionId, Arc<LiveCode>)>) -> Self {
        Self {
            start: 0,
            end: bytes.len(),
            section: Arc::new(Section { bytes, addresses }),
        }
    }

    /// Returns a reader of the same part, in which `code` decides on addresses.
    pub(super) fn decided_by(&self, id: SectionId, code: Arc<LiveCode>) -> Self {
        let bytes = self.section.bytes.clone();
        Self {
            section: Arc::new(Section {
                bytes,
                addresses: Some((id, code)),
            }),
            ..*self
        }
    }

    /// The part from `start` to `end`, as far as there is one.
    pub(super) fn range(&self, start: usize, end: usize) -> Self {
        let clamped = |at: usize| self.start.saturating_add(at).min(self.end);
        Self {
            section: self.section.clone(),
            start: clamped(start),
            end: clamped(end.max(start)),
        }
    }

    /// The bytes that are left.
    fn bytes(&self) -> &[u8] {
        self.section.bytes.get(self.start..self.end).unwrap_or_default()
    }

    fn ended(&self) -> Error {
        Error::UnexpectedEof(self.offset_id())
    }
}

impl GimliReader for Reader {
    type Endian = LittleEndian;
    type Offset = usize;

    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    #[inline]
    fn len(&self) -> usize {
        self.end - self.start
    }

    fn empty(&mut self) {
        self.end = self.start;
    }

    #[inline]
    fn truncate(&mut self, len: usize) -> gimli::Result<()> {
        if self.len() < len {
            return Err(self.ended());
        }
        self.end = self.start + len;
        Ok(())
    }

    #[inline]
    fn offset_from(&self, base: &Self) -> usize {
        self.start.saturating_sub(base.start)
    }

    #[inline]
    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.bytes().as_ptr() as u64)
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        let offset = id.0.checked_sub(self.offset_id().0)?;
        usize::try_from(offset)
            .ok()
            .filter(|&offset| offset <= self.len())
    }

    fn find(&self, byte: u8) -> gimli::Result<usize> {
        memchr::memchr(byte, self.bytes()).ok_or_else(|| self.ended())
    }

    #[inline]
    fn skip(&mut self, len: usize) -> gimli::Result<()> {
        if self.len() < len {
            return Err(self.ended());
        }
        self.start += len;
        Ok(())
    }

    #[inline]
    fn split(&mut self, len: usize) -> gimli::Result<Self> {
        let mut first = self.clone();
        first.truncate(len)?;
        self.start += len;
        Ok(first)
    }

    fn to_slice(&self) -> gimli::Result<Cow<'_, [u8]>> {
        Ok(self.bytes().into())
    }

    fn to_string(&self) -> gimli::Result<Cow<'_, str>> {
        let text = std::str::from_utf8(self.bytes());
        text.map(Cow::from).map_err(|_| Error::BadUtf8)
    }

    fn to_string_lossy(&self) -> gimli::Result<Cow<'_, str>> {
        Ok(String::from_utf8_lossy(self.bytes()))
    }

    #[inline]
    fn read_slice(&mut self, buffer: &mut [u8]) -> gimli::Result<()> {
        match self.bytes().get(..buffer.len()) {
            Some(bytes) => {
                buffer.copy_from_slice(bytes);
                self.start += buffer.len();
                Ok(())
            }
            None => Err(self.ended()),
        }
    }

    fn read_address(&mut self, address_size: u8) -> gimli::Result<u64> {
        let offset = self.start;
        let address = match address_size {
            1 | 2 | 4 | 8 => self.read_uint(usize::from(address_size))?,
            _ => return Err(Error::UnsupportedAddressSize(address_size)),
        };
        let addresses = self.section.addresses.as_ref();
        Ok(addresses.map_or(address, |(section, code)| code.address(*section, offset, address)))
    }
}
