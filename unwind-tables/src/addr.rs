//! The three address spaces, and the only conversions between them.
//!
//! * [`Avma`]: actual virtual memory address, in the running process.
//! * [`Svma`]: stated virtual memory address, as in the ELF file's own headers.
//! * [`FileOffset`]: byte position in the ELF file; probes are placed by it.
//!
//! A mapping's [`Bias`] converts between AVMA and SVMA; ELF segments convert between SVMA and file offset
//! (`ElfView`).

use std::fmt;
use std::ops::Range;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Wraps a raw value that is known to be in this space.
            pub const fn new(raw: u64) -> Self {
                Self(raw)
            }

            /// Returns the raw value.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// Adds `bytes`; returns `None` past the end of the address space.
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(raw) => Some(Self(raw)),
                    None => None,
                }
            }

            /// Adds `bytes`, wrapping.
            pub const fn wrapping_add(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }

            /// Subtracts `bytes`, wrapping.
            pub const fn wrapping_sub(self, bytes: u64) -> Self {
                Self(self.0.wrapping_sub(bytes))
            }

            /// Returns the bytes from `lower` up to this address, wrapping.
            pub const fn offset_from(self, lower: Self) -> u64 {
                self.0.wrapping_sub(lower.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

address! {
    /// An address in the running process.
    Avma
}
address! {
    /// An address in an ELF file's own space (`st_value`, `p_vaddr`, the space of its CFI).
    Svma
}
address! {
    /// A byte position in an ELF file.
    FileOffset
}

/// `avma - svma` of one mapping, wrapping: the same for every address in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(transparent)]
pub struct Bias(u64);

impl Bias {
    /// Returns the bias of a mapping in which `avma` and `svma` are the same byte.
    pub const fn between(avma: Avma, svma: Svma) -> Self {
        Self(avma.0.wrapping_sub(svma.0))
    }

    /// Returns the raw difference, for the kernel's mapping list.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the bias with this raw difference.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// Converts `avma` to the ELF file's own address space.
    pub const fn to_svma(self, avma: Avma) -> Svma {
        Svma(avma.0.wrapping_sub(self.0))
    }

    /// Converts `svma` to the process's address space.
    pub const fn to_avma(self, svma: Svma) -> Avma {
        Avma(svma.0.wrapping_add(self.0))
    }
}

impl fmt::Debug for Bias {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bias({:#x})", self.0)
    }
}

/// Returns the SVMA of a byte of a loaded segment, given the segment's start in both spaces.
///
/// `None` if `offset` lies before the segment.
pub fn segment_svma(offset: FileOffset, segment_offset: FileOffset, segment_svma: Svma) -> Option<Svma> {
    let into = offset.0.checked_sub(segment_offset.0)?;
    segment_svma.checked_add(into)
}

/// Returns the file offset of an SVMA in a loaded segment, given the segment's start in both spaces.
///
/// `None` if `svma` lies before the segment.
pub fn segment_offset(svma: Svma, segment_svma: Svma, segment_offset: FileOffset) -> Option<FileOffset> {
    let into = svma.0.checked_sub(segment_svma.0)?;
    segment_offset.checked_add(into)
}

/// Returns whether `address` lies in `range`, for all three spaces.
pub fn contains<T: PartialOrd + Copy>(range: &Range<T>, address: T) -> bool {
    range.start <= address && address < range.end
}
