//! BPF arrays and rings of events mapped into this process, shared with the kernel.
//!
//! The only place where such memory is mapped. All access is atomic, since the kernel writes at the same
//! time; ordering between accesses is up to the caller (`publish` waits for a grace period, `code_log`
//! acquires and releases positions).

#![allow(unsafe_code, reason = "memory that the kernel writes, too")]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use memmap2::{MmapOptions, MmapRaw};

/// Types that are valid for any bytes and that may change under a shared reference: atomic integers, and
/// structures of them.
pub(super) trait Word {}
impl Word for AtomicU32 {}
impl Word for AtomicU64 {}

/// Declares a structure of `bpf/` as one of atomic integers, with the same names at the same offsets.
macro_rules! shared_record {
    ($(#[$meta:meta])* $name:ident = $c:ty { $($field:ident: $kind:ty),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug)]
        #[repr(C)]
        pub(super) struct $name {
            $(pub(super) $field: $kind),+
        }

        impl $crate::bpf::memory::Word for $name {}

        const _: () = assert!(size_of::<$name>() == size_of::<$c>() && align_of::<$name>() == align_of::<$c>());
        $(const _: () = assert!(std::mem::offset_of!($name, $field) == std::mem::offset_of!($c, $field));)+
    };
}
pub(super) use shared_record;

/// Shared memory as a slice of atomic words.
#[derive(Debug)]
pub struct SharedWords<W> {
    map: MmapRaw,
    words: PhantomData<W>,
}

impl SharedWords<AtomicU32> {
    /// The words as plain integers, for an array that BPF programs only read. An owner that also writes it
    /// must not share it.
    pub(super) fn plain(&self) -> &[u32] {
        let words = self.words();
        // SAFETY: an `AtomicU32` has the layout of a `u32`. The kernel's programs do not write this array,
        // and its owner writes it only through exclusive access (`TableStore`), so that the words do not
        // change while they are borrowed.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len()) }
    }
}

impl SharedWords<AtomicU64> {
    /// Record `number` of an array of records of `words` words; empty if out of range.
    pub(super) fn record(&self, words: usize, number: u32) -> &[AtomicU64] {
        let mut records = self.words().chunks_exact(words);
        records.nth(number as usize).unwrap_or_default()
    }
}

#[allow(private_bounds, reason = "what a word is, is decided here")]
impl<W: Word> SharedWords<W> {
    /// Maps the first `length` words of `map`, which is a BPF array or the ring of an event.
    ///
    /// # Errors
    ///
    /// If it is not mappable or is smaller, or if the kernel refuses a ring of that size.
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
        // `len / size_of::<W>()` words; the kernel's memory cannot shrink while it is mapped. `W` consists of
        // atomic integers: any bytes are a valid value, and changes by the kernel's programs, which write
        // integers of the same size at the same alignment, are atomic. Bytes of a ring are written once,
        // before the kernel publishes the position behind them.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast(), self.map.len() / size_of::<W>()) }
    }
}
