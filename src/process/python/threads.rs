//! Where glibc has what belongs to a thread, from its thread pointer on (`nptl/descr.h`, and `tls.h` of each machine).
//!
//! On x86-64 a thread's structure, `struct pthread`, is at the thread pointer, which is what `pthread_self` returns. On AArch64 it ends there,
//! and its size is not the same in all releases: `pthread_self` of the C library that is loaded tells it.

use unwind_tables::Architecture;
use unwind_tables::elf::ElfView;

use super::exports::{bytes_at, exported};
use super::noted::{MAX_CODE, distance_below};
use crate::process::Module;

/// Bytes before the value in a key's place in `specific_1stblock`.
const KEYS_OWN: u32 = 8;
/// MAX bytes of a `struct pthread`.
const MAX_DESCRIPTOR: u32 = 1 << 14;

/// Offsets of one C library, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadPlaces {
    /// How far below the thread pointer `struct pthread` begins, whose address is the thread's id.
    pub(crate) id_below: u32,
    /// The value of the first thread-specific key, from that structure's start on: `specific_1stblock[0].data`. The same from 2.31 to 2.42.
    pub(crate) values: u32,
    /// The address of the table of objects' variables, from the thread pointer on: `dtv` of `tcbhead_t`.
    pub(crate) objects: u32,
}

const X86_64: ThreadPlaces = ThreadPlaces {
    id_below: 0,
    values: 0x310 + KEYS_OWN,
    objects: 8,
};

/// All but the size, which is 0x700 in 2.31, 0x740 in 2.36 and 0x720 in 2.41.
const AARCH64: ThreadPlaces = ThreadPlaces {
    id_below: 0,
    values: 0x110 + KEYS_OWN,
    objects: 0,
};

impl ThreadPlaces {
    /// The places in a process with this loader and these modules; `None` if its C library is needed, and not there yet: a program begins before it
    /// is. Else why they are not known.
    pub(crate) fn of<'a>(
        loader: Option<&Module>,
        modules: impl IntoIterator<Item = &'a Module>,
    ) -> Result<Option<Self>, &'static str> {
        if !loader.is_some_and(Module::is_glibc_loader) {
            return Err("its frames are read where the C library is glibc");
        }
        match Architecture::HOST {
            Architecture::X86_64 => Ok(Some(X86_64)),
            Architecture::Aarch64 => {
                let library = modules.into_iter().find(|module| module.is_glibc());
                library.map(|library| Self::aarch64(library.bytes())).transpose()
            }
        }
    }

    /// The places by a C library for AArch64.
    fn aarch64(elf: &[u8]) -> Result<Self, &'static str> {
        let id_below = ElfView::parse_any(elf).ok().and_then(|view| {
            let [function] = exported(elf, ["pthread_self"])?;
            let function = function?;
            let code = bytes_at(elf, &view, function.svma, function.bytes.min(MAX_CODE))?;
            u32::try_from(distance_below(code)?).ok()
        });
        let id_below = id_below.filter(|id_below| (AARCH64.values..MAX_DESCRIPTOR).contains(id_below));
        let id_below = id_below.ok_or("its frames are read where `pthread_self` is as glibc has it")?;
        Ok(Self { id_below, ..AARCH64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is no C library for AArch64 does not say where threads are.
    #[test]
    fn others_are_refused() {
        let own = std::fs::read("/proc/self/exe").expect("own program");
        for elf in [&own[..], b"", b"\x7fELF"] {
            assert!(ThreadPlaces::aarch64(elf).is_err());
        }
    }
}
