//! Choice of sites on AArch64.

use unwind_tables::addr::Svma;

use super::{Decoded, FunctionCode, Obstacle, WINDOW};
use crate::allocator::machine::Flow;
use crate::allocator::machine::aarch64::{BYTES, LR, SP, branch_target, flow, words, written};
use crate::allocator::probing::{SiteCost, Unprobeable, aarch64::probing};

/// Callee-saved registers except stack pointer and return address: x19 to x29 (AAPCS64, 6.1.1).
const CALLEE_SAVED: u32 = 0x3ff8_0000;

pub(super) struct Instruction {
    at: Svma,
    word: u32,
}

impl<'a> Decoded<'a> for Instruction {
    fn near_entry(code: &FunctionCode<'a>) -> impl Iterator<Item = Self> {
        let bytes = code.bytes_at(code.entry, WINDOW.min(code.size));
        words(bytes, code.entry).map(|(at, word)| Self { at, word })
    }

    /// Checks the whole segment: a cold part of the function can be anywhere, and data in it rarely looks
    /// like a branch to this address.
    fn check_straight(code: &FunctionCode<'a>, site: Svma) -> Result<(), Obstacle> {
        let lands_before = |target: Svma| code.entry < target && target <= site;
        // Instructions are aligned, even if the segment is not.
        let skipped = code.text_start.get().wrapping_neg() % BYTES;
        let text = code.bytes_at(code.text_start.wrapping_add(skipped), u64::MAX);
        let mut branches = words(text, code.text_start.wrapping_add(skipped))
            .filter_map(|(at, word)| branch_target(word, at).map(|target| (at, target)));
        match branches.find(|&(_, target)| lands_before(target)) {
            Some((from, _)) => Err(Obstacle::BranchLandsBefore(from)),
            None => Ok(()),
        }
    }

    fn at(&self) -> Svma {
        self.at
    }

    fn probing(&self) -> Result<SiteCost, Unprobeable> {
        probing(self.word)
    }

    fn check_effects(&self, arguments: &[u8]) -> Result<(), Obstacle> {
        // `svc`, whose flow is `Next`.
        if flow(self.word, self.at) != Flow::Next || self.word >> 24 == 0xd4 {
            return Err(Obstacle::ControlLeaves);
        }
        let written = written(self.word).ok_or(Obstacle::Undecodable)?;
        if written & SP != 0 {
            return Err(Obstacle::StackPointerChanged);
        }
        if written & LR != 0 {
            return Err(Obstacle::ReturnAddressWritten);
        }
        if written & CALLEE_SAVED != 0 {
            return Err(Obstacle::CalleeSavedOverwritten);
        }
        let overwritten = arguments.iter().find(|&&argument| written >> argument & 1 == 1);
        overwritten.map_or(Ok(()), |&argument| Err(Obstacle::ArgumentOverwritten(argument)))
    }
}
