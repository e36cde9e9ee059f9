//! Recognizes calls in the code before a return address. Mirrors `bpf/walk/returns.h`,
//! `bpf/walk/x86_64.h` and `bpf/walk/aarch64.h`.

use std::ops::RangeInclusive;

use super::Walk;
use crate::addr::Avma;
use crate::architecture::Architecture;
use crate::mapping::{self, MappingKind};

/// Meanings of an address on the stack, by the code that it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Returns {
    /// A return address: behind a call, or a trampoline.
    Yes,
    /// An address in generated code that is not behind a call: a return address if the walk leads to native
    /// code.
    OnTrial,
    /// Not a return address.
    No,
}

impl<R: FnMut(Avma) -> Option<u64>> Walk<'_, R> {
    /// Judges whether `ra` can be a return address: after a call, in a trampoline, or in generated code.
    ///
    /// The mapping need not be current: the lookup of the rule checks that. An address behind a call counts
    /// without a mapping, too: generated code can be newer than the known mappings. The walk then ends, and
    /// user space may finish it with newer mappings.
    pub(super) fn judge_return_address(&mut self, ra: Avma) -> Returns {
        let mapping = mapping::find(self.tables.mappings, ra.wrapping_sub(1)).map(|mapping| mapping.kind);
        let is_known = match mapping {
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
            | MappingKind::AnonymousStub
            | MappingKind::AnonymousPushed,
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

/// For code that returns at once: the bytes of the stack that it frees before, and whether it then pops the
/// frame pointer. `None` for other code. JIT compilers end small functions in this way; on AArch64, such
/// functions have frame records.
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
    // ret; N is a signed byte: it must be a whole number of slots, and not negative.
    (code & 0xff == 0xc3 && freed & 0x87 == 0).then_some((freed, pops_fp))
}

/// Maximum number of bytes that a call within a frame skips.
const MAX_LOCAL_CALL: u64 = 16;

/// Returns whether the 8 code bytes before an address end in a call over a few bytes only, which pushes an
/// address within a frame. HotSpot's interpreter does that before it calls native code: the call is to the
/// instruction behind the jump that follows.
pub(super) fn is_local(architecture: Architecture, code: u64) -> bool {
    architecture == Architecture::X86_64 && code >> 24 & 0xff == 0xe8 && code >> 32 <= MAX_LOCAL_CALL
}

/// Returns whether `address` is aligned for an instruction.
pub(super) fn is_aligned(architecture: Architecture, address: Avma) -> bool {
    match architecture {
        Architecture::X86_64 => true,
        Architecture::Aarch64 => address.get().is_multiple_of(4),
    }
}

/// Returns the target of the direct call that these 8 code bytes before `ra` end in; `None` if the call is
/// not direct, or may not be.
pub(super) fn called_directly(architecture: Architecture, ra: Avma, code: u64) -> Option<Avma> {
    let [_, _, _, opcode, bytes @ ..] = code.to_le_bytes();
    match architecture {
        Architecture::X86_64 => {
            let is_direct = opcode == 0xe8 && !ends_in_indirect_call(code);
            is_direct.then(|| ra.wrapping_add(i64::from(i32::from_le_bytes(bytes)).cast_unsigned()))
        }
        Architecture::Aarch64 => {
            let instruction = u32::from_le_bytes(bytes);
            let is_direct = instruction & 0xfc00_0000 == 0x9400_0000;
            is_direct.then(|| branched_to(ra.wrapping_sub(4), instruction))
        }
    }
}

/// The target of AArch64's `b` or `bl` at `address`: 26 bits with a signed number of instructions.
fn branched_to(address: Avma, instruction: u32) -> Avma {
    address.wrapping_add(((i64::from(instruction) << 38) >> 36).cast_unsigned())
}

/// Returns true if the code at `address`, in the function at `entry`, is or may be an indirect jump, or a
/// jump to one of these places. On x86-64, short and conditional jumps leave the function only if they go to
/// an address before it.
pub(super) fn may_be_jump(
    architecture: Architecture,
    code: u64,
    address: Avma,
    entry: Avma,
    places: RangeInclusive<Avma>,
) -> bool {
    let [a, b, c, d, e, f, ..] = code.to_le_bytes();
    let behind = |length: u64, offset: i64| address.wrapping_add(length).wrapping_add(offset.cast_unsigned());
    match architecture {
        Architecture::X86_64 => {
            let (target, is_far) = match (a, b) {
                (0xff, _) => return b & 0x38 == 0x20,
                (0xe9, _) => (behind(5, i32::from_le_bytes([b, c, d, e]).into()), true),
                (0xeb | 0x70..=0x7f, _) => (behind(2, i8::from_le_bytes([b]).into()), false),
                (0x0f, 0x80..=0x8f) => (behind(6, i32::from_le_bytes([c, d, e, f]).into()), false),
                _ => return false,
            };
            places.contains(&target) && (is_far || target < entry)
        }
        Architecture::Aarch64 => {
            let instruction = u32::from_le_bytes([a, b, c, d]);
            let by_register =
                instruction & 0xffff_fc1f == 0xd61f_0000 || instruction & 0xfeff_f800 == 0xd61f_0800;
            let is_direct = instruction & 0xfc00_0000 == 0x1400_0000;
            let target = branched_to(address, instruction);
            address.get().is_multiple_of(4) && (by_register || (is_direct && places.contains(&target)))
        }
    }
}

/// Way in which a function returns, by the code that its frame continues with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HowItReturns {
    /// Restores the frame pointer last.
    WithFp,
    /// Restores the frame pointer last, from where it leads: it is the function's own.
    ByFp,
    /// Returns in another way, or in one that cannot be recognized.
    Otherwise,
}

/// Returns the way in which a function returns whose code contains these 8 bytes, which end at `end`; `None`
/// if they do not show it.
///
/// On x86-64, the frame pointer is restored by `pop %rbp; ret`, or by the frame pointer itself: by
/// `leave; ret`, `mov %rbp, %rsp; pop %rbp`, or `mov (%rbp), %rbp; add $N, %rsp`, as V8 does before it jumps
/// to its next function. Boundaries of instructions are not known: a byte c3 or c9 that may be an operand is
/// not taken for `ret` or `leave`. Two int3 are padding between functions. On AArch64, the frame pointer is
/// restored together with the link register, as a pair.
pub(super) fn how_it_returns(architecture: Architecture, code: u64, end: Avma) -> Option<HowItReturns> {
    let [.., earlier, before, last] = code.to_le_bytes();
    let instruction = (code >> 32) as u32;
    match architecture {
        Architecture::X86_64 => match (earlier, before, last) {
            _ if matches!(instruction, 0x5de5_8b48 | 0x5dec_8948) => Some(HowItReturns::ByFp),
            _ if matches!(code << 8 >> 8, 0xc4_8348_006d_8b48 | 0xc4_8148_006d_8b48) => {
                Some(HowItReturns::ByFp)
            }
            (_, 0xcc, 0xcc) | (0x41, 0x5d, 0xc3) => Some(HowItReturns::Otherwise),
            (0x41, 0x5d, 0xc2) => None,
            (_, 0x5d, 0xc2 | 0xc3) => Some(HowItReturns::WithFp),
            // xor and mov of %ecx.
            (0x31 | 0x33 | 0x89 | 0x8b, 0xc9, 0xc3) => Some(HowItReturns::Otherwise),
            (0x31 | 0x33 | 0x89 | 0x8b, 0xc9, 0xc2) => None,
            (_, 0xc9, 0xc2 | 0xc3) => Some(HowItReturns::ByFp),
            // mov, test, arithmetic and others, whose operands are %rbx and another register.
            (_, 0x81 | 0x83 | 0x85 | 0x89 | 0x8b | 0xc7, 0xc3) | (0x0f, _, 0xc3) => None,
            // With a prefix for registers of 64 bits.
            (0x40..=0x4f, before, 0xc3) if before & 0xc4 == 0 || matches!(before, 0x63 | 0xf7 | 0xff) => None,
            (_, _, 0xc3) => Some(HowItReturns::Otherwise),
            _ => None,
        },
        Architecture::Aarch64 if !end.get().is_multiple_of(4) => None,
        // ldp x29, x30, [sp], N; ldp x29, x30, [sp, N]
        Architecture::Aarch64 if matches!(instruction & 0xffc0_7fff, 0xa8c0_7bfd | 0xa940_7bfd) => {
            Some(HowItReturns::WithFp)
        }
        // ret, retaa, retab; 0 is no instruction.
        Architecture::Aarch64 => {
            let returns = matches!(instruction, 0 | 0xd65f_03c0 | 0xd65f_0bff | 0xd65f_0fff);
            returns.then_some(HowItReturns::Otherwise)
        }
    }
}

/// Returns true if code behind a call uses the frame pointer as the base of its own frame: on x86-64, by
/// `mov -N(%rbp), %reg`, or by `cmp N(%r13), %rax; je; leave`, as V8 calls native code. Given are its first 8
/// bytes, and the 8 behind the first 7.
pub(super) fn uses_own_frame(architecture: Architecture, code: u64, behind_seven: u64) -> bool {
    match architecture {
        Architecture::X86_64 if code & 0x80c7_fffb == 0x8045_8b48 => true,
        Architecture::X86_64 => {
            code & 0xff_ffff == 0x85_3b49 && behind_seven & 0xff_0000_0000_ffff == 0xc9_0000_0000_840f
        }
        Architecture::Aarch64 => false,
    }
}

/// Returns the target of the code at `address` if it only jumps, as entries of a PLT and functions that
/// consist of a tail call do; else the address itself.
pub(super) fn behind_jump(
    architecture: Architecture,
    address: Avma,
    mut read: impl FnMut(Avma) -> Option<u64>,
) -> Avma {
    let Some(code) = read(address) else {
        return address;
    };
    // endbr64; bti c
    let landing = match architecture {
        Architecture::X86_64 => 0xfa1e_0ff3,
        Architecture::Aarch64 => 0xd503_245f,
    };
    let (address, code) = match code & u64::from(u32::MAX) == landing {
        true => (address.wrapping_add(4), read(address.wrapping_add(4))),
        false => (address, Some(code)),
    };
    let target = code.and_then(|code| match architecture {
        Architecture::X86_64 => jumps_to(address, code, read),
        Architecture::Aarch64 => branches_to(address, code, read),
    });
    target.unwrap_or(address)
}

/// Target of an x86-64 `jmp N`, also a short one, or `jmp *N(%rip)`, which may have the prefix `bnd`.
fn jumps_to(address: Avma, code: u64, mut read: impl FnMut(Avma) -> Option<u64>) -> Option<Avma> {
    let (address, code) = match code & 0xff == 0xf2 {
        true => (address.wrapping_add(1), code >> 8),
        false => (address, code),
    };
    let behind = |length: u64, opcode: u32| {
        let [a, b, c, d, ..] = (code >> opcode).to_le_bytes();
        let offset = i64::from(i32::from_le_bytes([a, b, c, d])).cast_unsigned();
        address.wrapping_add(length).wrapping_add(offset)
    };
    match code.to_le_bytes() {
        [0xff, 0x25, ..] => read(behind(6, 16)).map(Avma::new),
        [0xe9, ..] => Some(behind(5, 8)),
        [0xeb, offset, ..] => {
            let offset = i64::from(i8::from_le_bytes([offset])).cast_unsigned();
            Some(address.wrapping_add(2).wrapping_add(offset))
        }
        _ => None,
    }
}

/// Target of AArch64's `b N`, or of `adrp x16, N; ldr x17, [x16, #M]`, with which an entry of a PLT begins.
fn branches_to(address: Avma, code: u64, mut read: impl FnMut(Avma) -> Option<u64>) -> Option<Avma> {
    let [a, b, c, d, e, f, g, h] = code.to_le_bytes();
    let (first, second) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
    if first & 0xfc00_0000 == 0x1400_0000 {
        return Some(branched_to(address, first));
    }
    if first & 0x9f00_001f != 0x9000_0010 || second & 0xffc0_03ff != 0xf940_0211 {
        return None;
    }
    let pages = i64::from((first >> 5 & 0x7_ffff) << 2 | (first >> 29 & 3));
    let page = Avma::new(address.get() & !0xfff).wrapping_add(((pages << 43) >> 31).cast_unsigned());
    read(page.wrapping_add(8 * u64::from(second >> 10 & 0xfff))).map(Avma::new)
}

/// Returns whether an instruction is AArch64's `bl` or `blr`, the latter also with authentication of its
/// address (`blraa`, `blrab`, `blraaz`, `blrabz`).
pub fn is_branch_with_link(instruction: u32) -> bool {
    instruction & 0xfc00_0000 == 0x9400_0000
        || instruction & 0xffff_fc1f == 0xd63f_0000
        || instruction & 0xfeff_f800 == 0xd63f_0800
}

/// Returns whether the 8 code bytes before a return address end in an x86-64 `call`.
///
/// Direct: `e8` and four bytes. Indirect: `ff /2` with each length that its ModRM and SIB bytes can require.
fn ends_in_call(code: u64) -> bool {
    code >> 24 & 0xff == 0xe8 || ends_in_indirect_call(code)
}

fn ends_in_indirect_call(code: u64) -> bool {
    // byte(n) is the byte n before the return address.
    let byte = |n: u32| (code >> (64 - 8 * n) & 0xff) as u8;
    let indirect = |length: u32| {
        let (opcode, modrm) = (byte(length), byte(length - 1));
        opcode == 0xff && modrm & 0x38 == 0x10 && indirect_call_length(modrm, byte(length - 2)) == length
    };
    is_register_call(byte(2), byte(1)) || (3..=7).any(indirect)
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
