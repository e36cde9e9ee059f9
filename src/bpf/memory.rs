//! BPF arrays mapped into this process, shared with the kernel.
//!
//! The only place where such memory is mapped. All access is atomic, since programs run at the same time; ordering between
//! writes is up to the caller (`publish` waits for a grace period).

#![allow(unsafe_code, reason = "memory that the kernel writes, too")]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use memmap2::{MmapOptions, MmapRaw};

/// Types that are valid for any bytes and that may change under a shared reference.
pub(super) trait Word {}
impl Word for AtomicU32 {}
impl Word for AtomicU64 {}

/// A mapped BPF array as a slice of atomic words.
#[derive(Debug)]
pub struct SharedWords<W> {
    map: MmapRaw,
    words: PhantomData<W>,
}

#[allow(private_bounds, reason = "what a word is, is decided here")]
impl<W: Word> SharedWords<W> {
    /// Maps the first `length` words of the BPF array `map`.
    ///
    /// # Errors
    ///
    /// If the array is not mappable or is smaller.
    pub(super) fn map(map: impl AsFd, length: usize) -> io::Result<Self> {
        let bytes = length
            .checked_mul(size_of::<W>())
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapOptions::new().len(bytes).map_raw(map.as_fd().as_raw_fd())?;
        Ok(Self {
            map,
            words: PhantomData,
        })
    }

    pub fn words(&self) -> &[W] {
        // SAFETY: the mapping is page-aligned, readable, writable, as long as `self`, and holds
        // `len / size_of::<W>()` words; the array's memory cannot shrink while it is mapped. `W` is an atomic
        // integer: any bytes are a valid value, and changes by the kernel's programs, which write
        // words of the same size at the same alignment, are atomic.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.map.len() / size_of::<W>()) }
    }
}
