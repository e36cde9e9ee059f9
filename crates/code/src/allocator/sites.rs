//! Chooses the instruction of a function that is probed. Pure: code bytes in, an address out.
//!
//! Functions are found by [`discovery`](super::discovery), probes attached by `bpf::attach`.
//!
//! A probe on the entry is always correct and often expensive: glibc's `free` starts with `test %rdi,%rdi`,
//! which the kernel single-steps, and the `je` behind it is emulated at a twentieth of the cost (on AArch64
//! it starts with `cbz`, which is emulated). So the probe moves down to the first emulated instruction at
//! which a handler still sees the same as at the entry, and which runs exactly once per call:
//!
//! 1. no argument that is read has been written, in whole or in part;
//! 2. the stack pointer and the return address, on the stack or in AArch64's `x30`, are unchanged (return
//!    probes, the first frame);
//! 3. the callee-saved registers are unchanged, as the unwinder takes them for the caller's;
//! 4. no branch lands behind the entry and up to the site: it would skip the probe, or hit it twice;
//! 5. nothing between the entry and the site can leave the function's straight line. All conditional branches
//!    except x86-64's `jrcxz` and `loop` are themselves emulated, so that the first one *is* the site, before
//!    it is decided: `free(NULL)` still reaches the probe, and the handler ignores its null pointer;
//! 6. the site lies within [`WINDOW`] bytes.
//!
//! A branch back to the entry itself (a loop, or a tail call to itself) does not count: it runs through the
//! entry and through the site alike, so that moving changes nothing.
//!
//! Not detected is an indirect jump into the window, from a `switch` or an exception landing pad: no compiler
//! puts such a target before a function's first branch unless a direct branch goes there too.

mod aarch64;
mod x86_64;

use thiserror::Error;
use unwind_tables::Architecture;
use unwind_tables::addr::Svma;

use super::probing::{SiteCost, Unprobeable};

/// Maximum distance from the entry to a site, in bytes.
pub const WINDOW: u64 = 64;

#[derive(Debug, Clone, Copy)]
pub struct FunctionCode<'a> {
    architecture: Architecture,
    text: &'a [u8],
    text_start: Svma,
    entry: Svma,
    size: u64,
}

impl<'a> FunctionCode<'a> {
    /// The function of `size` bytes at `entry`, in the segment whose file-backed bytes are `text`.
    ///
    /// A size of 0 (hand-written assembly) means up to the end of the segment. `None` if the entry is not in
    /// the segment.
    pub fn new(
        architecture: Architecture,
        text: &'a [u8],
        text_start: Svma,
        entry: Svma,
        size: u64,
    ) -> Option<Self> {
        let at = entry.get().checked_sub(text_start.get())?;
        let left = u64::try_from(text.len())
            .ok()?
            .checked_sub(at)
            .filter(|&left| left > 0)?;
        let size = if size == 0 { left } else { size.min(left) };
        Some(Self {
            architecture,
            text,
            text_start,
            entry,
            size,
        })
    }

    fn bytes_at(&self, start: Svma, length: u64) -> &'a [u8] {
        let from = usize::try_from(start.offset_from(self.text_start)).unwrap_or(usize::MAX);
        let rest = self.text.get(from..).unwrap_or_default();
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(rest.len());
        rest.get(..length).unwrap_or_default()
    }
}

/// The chosen instruction of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    pub svma: Svma,
    pub cost: SiteCost,
    pub why: SiteReason,
}

/// Reason for the choice of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SiteReason {
    #[error("the entry is cheap to probe")]
    CheapEntry,
    /// A later instruction gives the same information at a lower cost.
    #[error("moved {0} bytes down to a cheap instruction")]
    Moved(u64),
    /// The entry is expensive, and no cheap instruction gives the same information.
    #[error("no cheap instruction gives the same information: {0}")]
    ExpensiveEntry(Obstacle),
}

/// Reason why the search for a cheaper instruction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Obstacle {
    #[error("argument {0} is overwritten before it")]
    ArgumentOverwritten(u8),
    /// Changed before, by an instruction that is single-stepped.
    #[error("the stack pointer changes before it")]
    StackPointerChanged,
    #[error("the return address may be overwritten before it")]
    ReturnAddressWritten,
    /// A callee-saved register is overwritten first, without having been pushed.
    #[error("a callee-saved register is overwritten before it")]
    CalleeSavedOverwritten,
    /// A call, return, system call, or a jump that is not emulated comes first.
    #[error("control may leave the function before it")]
    ControlLeaves,
    #[error("the branch at {0} lands between the entry and it")]
    BranchLandsBefore(Svma),
    /// None within [`WINDOW`] bytes, or within the function.
    #[error("there is none near the entry")]
    TooFar,
    #[error("the code near the entry cannot be decoded")]
    Undecodable,
}

/// Chooses the instruction to probe, given the arguments (counted from 0) that the probe reads. Fails if no
/// instruction of the function can be probed.
pub fn choose(code: &FunctionCode, arguments: impl IntoIterator<Item = u8>) -> Result<Choice, Unprobeable> {
    let arguments: Vec<u8> = arguments.into_iter().collect();
    match code.architecture {
        Architecture::X86_64 => choose_for::<x86_64::Instruction>(code, &arguments),
        Architecture::Aarch64 => choose_for::<aarch64::Instruction>(code, &arguments),
    }
}

/// Properties of an architecture's instructions that the choice needs.
trait Decoded<'a>: Sized {
    /// The function's instructions near its entry.
    fn near_entry(code: &FunctionCode<'a>) -> impl Iterator<Item = Self>;
    /// Rule 4: no direct branch lands behind the entry and up to `site`.
    fn check_straight(code: &FunctionCode<'a>, site: Svma) -> Result<(), Obstacle>;
    fn at(&self) -> Svma;
    /// Returns how the kernel executes it under a probe.
    fn probing(&self) -> Result<SiteCost, Unprobeable>;
    /// Rules 1, 2, 3 and 5: fails if the instruction must not run before the probe.
    fn check_effects(&self, arguments: &[u8]) -> Result<(), Obstacle>;
}

fn choose_for<'a, I: Decoded<'a>>(code: &FunctionCode<'a>, arguments: &[u8]) -> Result<Choice, Unprobeable> {
    let cheap = |svma, why| Choice {
        svma,
        cost: SiteCost::Emulated,
        why,
    };
    match cheap_site::<I>(code, arguments) {
        Ok(svma) if svma == code.entry => Ok(cheap(svma, SiteReason::CheapEntry)),
        Ok(svma) => Ok(cheap(svma, SiteReason::Moved(svma.offset_from(code.entry)))),
        Err(obstacle) => Ok(Choice {
            svma: code.entry,
            cost: I::near_entry(code)
                .next()
                .ok_or(Unprobeable::Invalid)?
                .probing()?,
            why: SiteReason::ExpensiveEntry(obstacle),
        }),
    }
}

/// The first emulated instruction that gives the same information as the entry.
fn cheap_site<'a, I: Decoded<'a>>(code: &FunctionCode<'a>, arguments: &[u8]) -> Result<Svma, Obstacle> {
    for instruction in I::near_entry(code) {
        if instruction.probing() == Ok(SiteCost::Emulated) {
            let site = instruction.at();
            if site != code.entry {
                I::check_straight(code, site)?;
            }
            return Ok(site);
        }
        instruction.check_effects(arguments)?;
    }
    Err(Obstacle::TooFar)
}

#[cfg(test)]
mod tests;
