//! Chooses the instruction of a function that is probed. Pure: code bytes in, an address out.
//!
//! Finding the function is [`discovery`](super::discovery)'s business, attaching `bpf::attach`'s.
//!
//! A probe on the entry is always right and often dear: glibc's `free` starts with
//! `test %rdi,%rdi`, which the kernel single-steps, and the `je` behind it is emulated at a
//! twentieth of the cost. So the probe moves down to the first emulated instruction at which a
//! handler still sees what it would have seen at the entry, and which runs exactly once per call:
//!
//! 1. no argument that is read has been written, in whole or in part;
//! 2. `rsp` and the return address it points to are untouched (return probes, the first frame);
//! 3. so are `rbp`, `rbx` and `r12`–`r15`, which the unwinder takes for the caller's;
//! 4. no branch lands behind the entry and up to the site: it would skip the probe, or hit it twice;
//! 5. nothing between the entry and the site can leave the function's straight line. All
//!    conditional branches but `jrcxz` and `loop` are themselves emulated, so that the first one
//!    *is* the site, before it is decided: `free(NULL)` still reaches the probe, and its null
//!    pointer is for the handler to ignore;
//! 6. the site lies within [`WINDOW`] bytes.
//!
//! A branch back to the entry itself (a loop, or a tail call to itself) does not count: it runs
//! through the entry and through the site alike, so that moving changes nothing.
//!
//! What cannot be seen is an indirect jump into the window, from a `switch` or an exception
//! landing pad: no compiler puts such a target ahead of a function's first branch unless a direct
//! branch goes there too.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register,
    UsedMemory,
};
use thiserror::Error;
use unwind_tables::addr::Svma;

use super::probing::{SiteCost, Unprobeable, probing};

/// How far behind the entry a site may lie, in bytes.
pub const WINDOW: u64 = 64;

/// Short branches reach 127 bytes; one further away than this cannot land in the window.
const SHORT_BRANCH_REACH: u64 = WINDOW + 128;

/// The registers of the first six arguments (System V psABI, figure 3.4).
const ARGUMENTS: [Register; 6] = [
    Register::RDI,
    Register::RSI,
    Register::RDX,
    Register::RCX,
    Register::R8,
    Register::R9,
];

/// What a caller expects back, `rsp` apart (System V psABI, figure 3.4).
const CALLEE_SAVED: [Register; 6] = [
    Register::RBX,
    Register::RBP,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// A function within the executable segment that holds it.
#[derive(Debug, Clone, Copy)]
pub struct FunctionCode<'a> {
    text: &'a [u8],
    text_start: Svma,
    entry: Svma,
    size: u64,
}

impl<'a> FunctionCode<'a> {
    /// The function of `size` bytes at `entry`, in the segment whose file-backed bytes are `text`.
    ///
    /// A size of 0 (hand-written assembly) means up to the end of the segment. `None` when the
    /// entry is not in the segment.
    pub fn new(text: &'a [u8], text_start: Svma, entry: Svma, size: u64) -> Option<Self> {
        let at = entry.get().checked_sub(text_start.get())?;
        let left = u64::try_from(text.len())
            .ok()?
            .checked_sub(at)
            .filter(|&left| left > 0)?;
        let size = if size == 0 { left } else { size.min(left) };
        Some(Self {
            text,
            text_start,
            entry,
            size,
        })
    }

    /// The function's instructions that start within `limit` bytes of its entry.
    fn instructions(&self, limit: u64) -> impl Iterator<Item = (Instruction, &'a [u8])> + use<'a> {
        const LONGEST_INSTRUCTION: u64 = 15;
        let code = self.bytes_at(
            self.entry,
            limit.saturating_add(LONGEST_INSTRUCTION).min(self.size),
        );
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let mut decoder = Decoder::with_ip(64, code, self.entry.get(), DecoderOptions::NONE);
        std::iter::from_fn(move || {
            let from = decoder.position();
            let instruction = (from < limit && decoder.can_decode()).then(|| decoder.decode())?;
            Some((instruction, code.get(from..decoder.position())?))
        })
    }

    fn bytes_at(&self, start: Svma, length: u64) -> &'a [u8] {
        let from = usize::try_from(start.offset_from(self.text_start)).unwrap_or(usize::MAX);
        let rest = self.text.get(from..).unwrap_or_default();
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(rest.len());
        rest.get(..length).unwrap_or_default()
    }
}

/// Where to probe a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The instruction.
    pub svma: Svma,
    /// What a hit costs.
    pub cost: SiteCost,
    /// How it was found.
    pub why: Why,
}

/// How a site was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Why {
    /// The entry itself is emulated.
    #[error("the entry is cheap to probe")]
    CheapEntry,
    /// A later instruction tells the same for less.
    #[error("moved {0} bytes down to a cheap instruction")]
    Moved(u64),
    /// The entry is dear, and every other place would tell less.
    #[error("no cheap instruction tells the same: {0}")]
    DearEntry(Obstacle),
}

/// Why the search for a cheaper place ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Obstacle {
    /// An argument that is read is overwritten first.
    #[error("argument {0} is overwritten before it")]
    ArgumentOverwritten(u8),
    /// `rsp` changes first, in a way that costs two traps itself.
    #[error("the stack pointer changes before it")]
    StackPointerChanged,
    /// The return address may be overwritten first.
    #[error("the return address may be overwritten before it")]
    ReturnAddressWritten,
    /// A callee-saved register is overwritten first, without having been pushed.
    #[error("a callee-saved register is overwritten before it")]
    CalleeSavedOverwritten,
    /// A call, return, system call, or a jump that is not emulated comes first.
    #[error("control may leave the function before it")]
    ControlLeaves,
    /// A branch lands between the entry and the place.
    #[error("the branch at {0} lands between the entry and it")]
    BranchLandsBefore(Svma),
    /// There is none within [`WINDOW`] bytes, or within the function.
    #[error("there is none near the entry")]
    TooFar,
    /// The code cannot be decoded.
    #[error("the code near the entry cannot be decoded")]
    Undecodable,
}

/// Chooses the instruction to probe, given which arguments (counted from 0) the probe reads.
///
/// Fails when nothing in the function can be probed.
pub fn choose(code: &FunctionCode, arguments: impl IntoIterator<Item = u8>) -> Result<Choice, Unprobeable> {
    let arguments: Vec<u8> = arguments.into_iter().collect();
    let obstacle = match cheap_site(code, &arguments) {
        Ok(svma) if svma == code.entry => {
            return Ok(Choice {
                svma,
                cost: SiteCost::Emulated,
                why: Why::CheapEntry,
            });
        }
        Ok(svma) => {
            let why = Why::Moved(svma.offset_from(code.entry));
            return Ok(Choice {
                svma,
                cost: SiteCost::Emulated,
                why,
            });
        }
        Err(obstacle) => obstacle,
    };
    let (entry, bytes) = code.instructions(WINDOW).next().ok_or(Unprobeable::Invalid)?;
    let cost = probing(&entry, bytes)?;
    Ok(Choice {
        svma: code.entry,
        cost,
        why: Why::DearEntry(obstacle),
    })
}

/// The first emulated instruction that tells what the entry tells.
fn cheap_site(code: &FunctionCode, arguments: &[u8]) -> Result<Svma, Obstacle> {
    let mut facts = InstructionInfoFactory::new();
    for (instruction, bytes) in code.instructions(WINDOW) {
        if probing(&instruction, bytes) == Ok(SiteCost::Emulated) {
            let site = Svma::new(instruction.ip());
            check_straight(code, site)?;
            return Ok(site);
        }
        check_effects(&instruction, &mut facts, arguments)?;
    }
    Err(Obstacle::TooFar)
}

/// Rules 1, 2, 3 and 5 for an instruction that would run before the probe.
fn check_effects(
    instruction: &Instruction,
    facts: &mut InstructionInfoFactory,
    arguments: &[u8],
) -> Result<(), Obstacle> {
    if instruction.is_invalid() {
        return Err(Obstacle::Undecodable);
    }
    if instruction.flow_control() != FlowControl::Next {
        return Err(Obstacle::ControlLeaves);
    }
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

/// Whether a store relative to `rsp` reaches beyond the red zone below it.
///
/// `rsp` is still the entry's here. Stores through other registers go where the program's data is.
fn may_hit_return_address(memory: &UsedMemory) -> bool {
    if memory.base() != Register::RSP && memory.index() != Register::RSP {
        return false;
    }
    let size = i64::try_from(memory.memory_size().size()).unwrap_or(i64::MAX);
    let end = memory.displacement().cast_signed().saturating_add(size);
    memory.index() != Register::None || end > 0
}

/// Rule 4: no direct branch lands behind the entry and up to `site`.
fn check_straight(code: &FunctionCode, site: Svma) -> Result<(), Obstacle> {
    if site == code.entry {
        return Ok(());
    }
    let lands_before = |target: u64| code.entry.get() < target && target <= site.get();
    for (instruction, _) in code.instructions(SHORT_BRANCH_REACH) {
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

fn near_branch_target(instruction: &Instruction) -> Option<u64> {
    let near = matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    );
    near.then(|| instruction.near_branch_target())
}

/// Everything in the segment that could be a `jmp rel32` or `jcc rel32`: where it is, where it goes.
///
/// Every byte is taken for the start of an instruction, so that neither data between functions nor
/// the cold part of a function, which compilers put megabytes away from it, hides a branch.
/// Chance hits are rare: a window of 64 bytes is met by one in 2³² / 64 displacements, and the
/// price is a dearer probe.
fn far_branches(text: &[u8], start: Svma) -> impl Iterator<Item = (Svma, Svma)> + '_ {
    let candidate = move |(at, bytes): (u64, &[u8])| {
        let (length, displacement) = match *bytes {
            [0xe9, a, b, c, d, _] => (5, [a, b, c, d]),
            [0x0f, 0x80..=0x8f, a, b, c, d] => (6, [a, b, c, d]),
            _ => return None,
        };
        let from = start.wrapping_add(at);
        let displacement = i64::from(i32::from_le_bytes(displacement)).cast_unsigned();
        Some((from, from.wrapping_add(length).wrapping_add(displacement)))
    };
    (0u64..).zip(text.windows(6)).filter_map(candidate)
}

#[cfg(test)]
mod tests;
