//! Recognizes calls in the code before a return address. Mirrors `bpf/walk/returns.h`,
//! `bpf/walk/x86_64.h` and `bpf/walk/aarch64.h`.

use super::Walk;
use crate::addr::Avma;
use crate::architecture::Architecture;
use crate::mapping::{self, MappingKind};

/// Meanings of an address on the stack, by the code that it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Returns {
    /// A return address: behind a call, or a trampoline.
    Yes,
    /// An address in generated code that is not behind a call: a return address if the walk leads to native code.
    OnTrial,
    /// Not a return address.
    No,
}

impl<R: FnMut(Avma) -> Option<u64>> Walk<'_, R> {
    /// Returns whether `ra` can be a return address: in executable memory, and after a call, in a trampoline, or
    /// in generated code.
    ///
    /// The mapping need not be current: the lookup of the rule checks that. `from_generated`: a frame of generated code has it,
    /// which may be called by code in memory that is newer than the mappings.
    pub(super) fn judge_return_address(&mut self, ra: Avma, from_generated: bool) -> Returns {
        let mapping = mapping::find(self.tables.mappings, ra.wrapping_sub(1)).map(|mapping| mapping.kind);
        let is_known = match mapping {
            None if !self.tables.changing && !from_generated => self.is_trampoline(ra),
            Some(MappingKind::Trampoline) => true,
            None | Some(_) => self.is_after_call(ra) || self.is_trampoline(ra),
        };
        match is_known {
            true => Returns::Yes,
            false => without_call(mapping),
        }
    }

    pub(super) fn is_after_call(&mut self, ra: Avma) -> bool {
        match (self.read)(ra.wrapping_sub(8)) {
            Some(code) => precedes(self.tables.architecture, ra, code),
            None => false,
        }
    }
}

/// Meaning of an address in a mapping of this kind, or in none, that is not behind a call.
fn without_call(mapping: Option<MappingKind>) -> Returns {
    match mapping {
        Some(
            MappingKind::Anonymous
            | MappingKind::AnonymousLinked
            | MappingKind::AnonymousMethods
            | MappingKind::AnonymousStub,
        ) => Returns::OnTrial,
        Some(
            MappingKind::Table
            | MappingKind::Pending
            | MappingKind::NoTable
            | MappingKind::NoCfi
            | MappingKind::Trampoline,
        )
        | None => Returns::No,
    }
}

/// Returns whether a call precedes `ra`, by the 8 code bytes before it.
pub(super) fn precedes(architecture: Architecture, ra: Avma, code: u64) -> bool {
    match architecture {
        Architecture::X86_64 => ends_in_call(code),
        Architecture::Aarch64 => {
            let [.., a, b, c, d] = code.to_le_bytes();
            ra.get().is_multiple_of(4) && is_branch_with_link(u32::from_le_bytes([a, b, c, d]))
        }
    }
}

/// Bytes that code frees of the stack, and whether it then pops the frame pointer, before it returns at once; `None` if it does something
/// else. Compilers of generated code leave small functions so; those for AArch64 have frame records.
pub(super) fn returns_at_once(architecture: Architecture, code: u64) -> Option<(u64, bool)> {
    if architecture != Architecture::X86_64 {
        return None;
    }
    // add $N, %rsp
    let (freed, code) = match code & 0xff_ffff == 0xc4_8348 {
        true => (code >> 24 & 0xff, code >> 32),
        false => (0, code),
    };
    // pop %rbp
    let (pops_fp, code) = match code & 0xff == 0x5d {
        true => (true, code >> 8),
        false => (false, code),
    };
    // ret; N is a number of slots, and has a sign.
    (code & 0xff == 0xc3 && freed & 0x87 == 0).then_some((freed, pops_fp))
}

/// MAX bytes that a call within a frame skips.
const MAX_LOCAL_CALL: u64 = 16;

/// Returns whether the 8 code bytes before an address end in a call over a few bytes only, which pushes an address within a frame.
/// HotSpot's interpreter does that before it calls native code: the call is to the instruction behind the jump that follows.
pub(super) fn is_local(architecture: Architecture, code: u64) -> bool {
    architecture == Architecture::X86_64 && code >> 24 & 0xff == 0xe8 && code >> 32 <= MAX_LOCAL_CALL
}

/// Returns whether an instruction is AArch64's `bl` or `blr`, the latter also with authentication of its address (`blraa`,
/// `blrab`, `blraaz`, `blrabz`).
pub fn is_branch_with_link(instruction: u32) -> bool {
    instruction & 0xfc00_0000 == 0x9400_0000
        || instruction & 0xffff_fc1f == 0xd63f_0000
        || instruction & 0xfeff_f800 == 0xd63f_0800
}

/// Returns whether the 8 code bytes before a return address end in an x86-64 `call`.
///
/// Direct: `e8` and four bytes. Indirect: `ff /2` with each length that its ModRM and SIB bytes can require.
fn ends_in_call(code: u64) -> bool {
    // byte(n) is the byte n before the return address.
    let byte = |n: u32| (code >> (64 - 8 * n) & 0xff) as u8;
    let indirect = |length: u32| {
        let (opcode, modrm) = (byte(length), byte(length - 1));
        opcode == 0xff && modrm & 0x38 == 0x10 && indirect_call_length(modrm, byte(length - 2)) == length
    };
    byte(5) == 0xe8 || is_register_call(byte(2), byte(1)) || (3..=7).any(indirect)
}

/// Recognizes `ff /2` of two bytes: a register, or memory without SIB and displacement.
fn is_register_call(opcode: u8, modrm: u8) -> bool {
    opcode == 0xff && modrm & 0x38 == 0x10 && indirect_call_length(modrm, 0) == 2
}

/// Returns the length of an indirect call with this ModRM byte and, if it has one, this SIB byte.
fn indirect_call_length(modrm: u8, sib: u8) -> u32 {
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let sib_length = u32::from(mode != 3 && rm == 4);
    let displacement = match mode {
        0 if rm == 5 || (rm == 4 && sib & 7 == 5) => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    2 + sib_length + displacement
}
