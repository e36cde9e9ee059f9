//! Recognizes calls in the code before a return address. Mirrors `bpf/walk/x86_64.h` and `bpf/walk/aarch64.h`.

use crate::addr::Avma;
use crate::architecture::Architecture;

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
