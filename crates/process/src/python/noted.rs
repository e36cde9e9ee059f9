//! Places where threads note their states: from 3.15 on in a thread-local variable, before that under a
//! pthread key.
//!
//! The variable is not exported, but a function that extensions need returns it
//! (`PyGILState_GetThisThreadState`). The function's code is one of a few sequences of instructions,
//! depending on how the file is linked (Drepper, "ELF Handling For Thread-Local Storage"; for AArch64, ELF
//! for the Arm 64-bit Architecture). Other sequences are unknown. Pure: code in, a place out.

mod aarch64;
mod x86_64;

pub(super) use self::aarch64::distance_below;
use unwind_tables::Architecture;
use unwind_tables::addr::Svma;

/// Maximum number of bytes of the function that are read. It has 13 to 48.
pub(super) const MAX_CODE: u64 = 64;

/// Place of a thread's own state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    /// Under the pthread key whose number is at `RuntimeFields::key`.
    Key,
    /// `state = *(thread pointer + distance)`: in a program.
    Fixed { distance: i64 },
    /// `state = *(thread pointer + *distance)`: in a library that is loaded at the start.
    Distance { distance: Svma },
    /// `state = *(variables of object *object + offset)`: in any library.
    Object { object: Svma, offset: u32 },
    /// In any library for AArch64: the two words at `descriptor` are a function of the loader and its
    /// argument. The argument is the distance from the thread pointer, or, if the library was loaded too late
    /// for that, the address of the object's number and of the offset.
    Descriptor { descriptor: Svma },
}

/// Finds the place from which a function's code reads its result. `word` returns the file's word at an
/// address, if the loader does not change it.
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
