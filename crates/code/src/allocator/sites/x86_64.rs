//! Choice of sites on x86-64.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, OpAccess, OpKind, Register, UsedMemory,
};
use memchr::memchr2_iter;
use unwind_tables::addr::Svma;

use super::{Decoded, FunctionCode, Obstacle, WINDOW};
use crate::allocator::probing::{SiteCost, Unprobeable, probing};

/// Reach of short branches (127 bytes) plus the window; a short branch further away cannot land in it.
const SHORT_BRANCH_REACH: u64 = WINDOW + 128;

/// Registers of the first six arguments (System V psABI, figure 3.4).
const ARGUMENTS: [Register; 6] = [
    Register::RDI,
    Register::RSI,
    Register::RDX,
    Register::RCX,
    Register::R8,
    Register::R9,
];

/// Callee-saved registers except `rsp` (System V psABI, figure 3.4).
const CALLEE_SAVED: [Register; 6] = [
    Register::RBX,
    Register::RBP,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// An instruction and its bytes.
pub(super) struct Instruction<'a>(iced_x86::Instruction, &'a [u8]);

/// The function's instructions that start within `limit` bytes of its entry.
fn instructions<'a>(
    function: &FunctionCode<'a>,
    limit: u64,
) -> impl Iterator<Item = Instruction<'a>> + use<'a> {
    const LONGEST_INSTRUCTION: u64 = 15;
    let code = function.bytes_at(
        function.entry,
        limit.saturating_add(LONGEST_INSTRUCTION).min(function.size),
    );
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut decoder = Decoder::with_ip(64, code, function.entry.get(), DecoderOptions::NONE);
    std::iter::from_fn(move || {
        let from = decoder.position();
        let instruction = (from < limit && decoder.can_decode()).then(|| decoder.decode())?;
        Some(Instruction(instruction, code.get(from..decoder.position())?))
    })
}

impl<'a> Decoded<'a> for Instruction<'a> {
    fn near_entry(code: &FunctionCode<'a>) -> impl Iterator<Item = Self> {
        instructions(code, WINDOW)
    }

    fn check_straight(code: &FunctionCode<'a>, site: Svma) -> Result<(), Obstacle> {
        let lands_before = |target: u64| code.entry.get() < target && target <= site.get();
        for Self(instruction, _) in instructions(code, SHORT_BRANCH_REACH) {
            if instruction.is_invalid() {
                return Err(Obstacle::Undecodable);
            }
            if near_branch_target(&instruction).is_some_and(lands_before) {
                return Err(Obstacle::BranchLandsBefore(Svma::new(instruction.ip())));
            }
        }
        match far_branches(code.text, code.text_start).find(|&(_, target)| lands_before(target.get())) {
            Some((from, _)) => Err(Obstacle::BranchLandsBefore(from)),
            None => Ok(()),
        }
    }

    fn at(&self) -> Svma {
        Svma::new(self.0.ip())
    }

    fn probing(&self) -> Result<SiteCost, Unprobeable> {
        probing(&self.0, self.1)
    }

    fn check_effects(&self, arguments: &[u8]) -> Result<(), Obstacle> {
        check_effects(&self.0, arguments)
    }
}

/// Rules 1, 2, 3 and 5 for an instruction that would run before the probe.
fn check_effects(instruction: &iced_x86::Instruction, arguments: &[u8]) -> Result<(), Obstacle> {
    if instruction.is_invalid() {
        return Err(Obstacle::Undecodable);
    }
    if instruction.flow_control() != FlowControl::Next {
        return Err(Obstacle::ControlLeaves);
    }
    let mut facts = InstructionInfoFactory::new();
    let info = facts.info(instruction);
    for used in info.used_registers().iter().filter(|used| writes(used.access())) {
        check_written(used.register().full_register(), arguments)?;
    }
    if info
        .used_memory()
        .iter()
        .any(|memory| writes(memory.access()) && may_hit_return_address(memory))
    {
        return Err(Obstacle::ReturnAddressWritten);
    }
    Ok(())
}

fn check_written(register: Register, arguments: &[u8]) -> Result<(), Obstacle> {
    if register == Register::RSP {
        return Err(Obstacle::StackPointerChanged);
    }
    if CALLEE_SAVED.contains(&register) {
        return Err(Obstacle::CalleeSavedOverwritten);
    }
    let read = |&&argument: &&u8| ARGUMENTS.get(usize::from(argument)) == Some(&register);
    arguments
        .iter()
        .find(read)
        .map_or(Ok(()), |&argument| Err(Obstacle::ArgumentOverwritten(argument)))
}

fn writes(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

/// True if a store relative to `rsp` may reach above the red zone, where the return address is.
///
/// `rsp` is still the same as at the entry here. Stores through other registers go to the program's data.
fn may_hit_return_address(memory: &UsedMemory) -> bool {
    if memory.base() != Register::RSP && memory.index() != Register::RSP {
        return false;
    }
    let size = i64::try_from(memory.memory_size().size()).unwrap_or(i64::MAX);
    let end = memory.displacement().cast_signed().saturating_add(size);
    memory.index() != Register::None || end > 0
}

fn near_branch_target(instruction: &iced_x86::Instruction) -> Option<u64> {
    let near = matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    );
    near.then(|| instruction.near_branch_target())
}

/// All byte sequences in the segment that could be a `jmp rel32` or `jcc rel32`: address and target.
///
/// Every byte is taken for the start of an instruction, so that neither data between functions nor the cold
/// part of a function, which compilers put megabytes away, hides a branch. False matches are rare: one in 2³²
/// / 64 displacements hits a window of 64 bytes, and only makes a probe more expensive.
fn far_branches(text: &[u8], start: Svma) -> impl Iterator<Item = (Svma, Svma)> + '_ {
    let candidate = move |at: usize| {
        let (length, displacement) = match *text.get(at..at.checked_add(6)?)? {
            [0xe9, a, b, c, d, _] => (5, [a, b, c, d]),
            [0x0f, 0x80..=0x8f, a, b, c, d] => (6, [a, b, c, d]),
            _ => return None,
        };
        let from = start.wrapping_add(u64::try_from(at).ok()?);
        let displacement = i64::from(i32::from_le_bytes(displacement)).cast_unsigned();
        Some((from, from.wrapping_add(length).wrapping_add(displacement)))
    };
    memchr2_iter(0xe9, 0x0f, text).filter_map(candidate)
}
