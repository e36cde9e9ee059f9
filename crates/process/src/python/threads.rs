//! Offsets of a thread's data in glibc, from its thread pointer (`nptl/descr.h`, and `tls.h` of each
//! machine).
//!
//! On x86-64, a thread's `struct pthread` begins at the thread pointer, which is what `pthread_self` returns.
//! On AArch64, it ends there, and its size differs between releases: it is read from the code of
//! `pthread_self` in the C library that is loaded.

use unwind_tables::Architecture;
use unwind_tables::elf::ElfView;

use super::exports::{bytes_at, exported};
use super::noted::{MAX_CODE, distance_below};
use crate::Module;

/// Bytes before the value in an element of `specific_1stblock`.
const KEYS_OWN: u32 = 8;
/// Maximum size of a `struct pthread` in bytes.
const MAX_DESCRIPTOR: u32 = 1 << 14;

/// Offsets of one C library, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPlaces {
    /// Distance of the start of `struct pthread`, whose address is the thread's id, below the thread pointer.
    pub id_below: u32,
    /// The value of the first thread-specific key, from that structure's start on:
    /// `specific_1stblock[0].data`. The same from 2.31 to 2.42.
    pub values: u32,
    /// Offset of the pointer to the table of objects' variables, from the thread pointer on: `dtv` of
    /// `tcbhead_t`.
    pub objects: u32,
}

const X86_64: ThreadPlaces = ThreadPlaces {
    id_below: 0,
    values: 0x310 + KEYS_OWN,
    objects: 8,
};

/// All except `id_below`, the size of `struct pthread`, which is 0x700 in 2.31, 0x740 in 2.36 and 0x720 in
/// 2.41.
const AARCH64: ThreadPlaces = ThreadPlaces {
    id_below: 0,
    values: 0x110 + KEYS_OWN,
    objects: 0,
};

impl ThreadPlaces {
    /// Determines the offsets in a process with this loader and these modules; `None` if its C library is
    /// needed, and not mapped yet, as when a program begins. The error is the reason why they are unknown.
    pub fn of<'a>(
        loader: Option<&Module>,
        modules: impl IntoIterator<Item = &'a Module>,
    ) -> Result<Option<Self>, &'static str> {
        if !loader.is_some_and(Module::is_glibc_loader) {
            return Err("its frames are read only if the C library is glibc");
        }
        match Architecture::HOST {
            Architecture::X86_64 => Ok(Some(X86_64)),
            Architecture::Aarch64 => {
                let library = modules.into_iter().find(|module| module.is_glibc());
                library.map(|library| Self::aarch64(library.bytes())).transpose()
            }
        }
    }

    /// Determines the offsets by a C library for AArch64.
    fn aarch64(elf: &[u8]) -> Result<Self, &'static str> {
        let id_below = ElfView::parse_any(elf).ok().and_then(|view| {
            let [function] = exported(elf, ["pthread_self"])?;
            let function = function?;
            let code = bytes_at(elf, &view, function.svma, function.bytes.min(MAX_CODE))?;
            u32::try_from(distance_below(code)?).ok()
        });
        let id_below = id_below.filter(|id_below| (AARCH64.values..MAX_DESCRIPTOR).contains(id_below));
        let id_below =
            id_below.ok_or("its frames are read only if `pthread_self` is as in known versions of glibc")?;
        Ok(Self { id_below, ..AARCH64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is not a C library for AArch64 is refused.
    #[test]
    fn others_are_refused() {
        let own = std::fs::read("/proc/self/exe").expect("own program");
        for elf in [&own[..], b"", b"\x7fELF"] {
            assert!(ThreadPlaces::aarch64(elf).is_err());
        }
    }
}
