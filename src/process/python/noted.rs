//! Where threads note their states: from 3.15 on in a variable that each thread has of its own, before under a pthread key.
//!
//! The variable is not exported, but a function returns it that extensions need (`PyGILState_GetThisThreadState`). How it gets there is one of a
//! few sequences of instructions, by how the file is linked (Drepper, "ELF Handling For Thread-Local Storage"; for AArch64, ELF for the Arm
//! 64-bit Architecture). Any other is not known. Pure: code in, a place out.

mod aarch64;
mod x86_64;

pub(super) use self::aarch64::distance_below;
use unwind_tables::Architecture;
use unwind_tables::addr::Svma;

/// MAX bytes of the function that are read. It has 13 to 48.
pub(super) const MAX_CODE: u64 = 64;

/// How a thread's own state is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    /// Under the pthread key whose number is at [`RuntimeFields::key`](super::layout::RuntimeFields::key).
    Key,
    /// `state = *(thread pointer + distance)`: in a program.
    Fixed { distance: i64 },
    /// `state = *(thread pointer + *distance)`: in a library that is there from the start.
    Distance { distance: Svma },
    /// `state = *(variables of object *object + offset)`: in any library.
    Object { object: Svma, offset: u32 },
    /// In any library for AArch64: the two words at `descriptor` are a function of the loader's and its argument. That is the distance from
    /// the thread pointer, or, where the library came too late for one, the address of the object's number and of the offset.
    Descriptor { descriptor: Svma },
}

/// Where a function's code reads what it returns. `word` is that of the file at an address, if nothing changes it.
pub(super) fn by_code(
    architecture: Architecture,
    code: &[u8],
    start: Svma,
    word: impl Fn(Svma) -> Option<u64>,
) -> Option<Noted> {
    match architecture {
        Architecture::X86_64 => x86_64::by_code(code, start, word),
        Architecture::Aarch64 => aarch64::by_code(code, start),
    }
}
