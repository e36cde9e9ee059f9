//! Determines whether the frame pointer of code without CFI is that code's own, or that of a caller. Mirrors
//! `bpf/walk/own_frame.h`.
//!
//! A function F that keeps frame pointers can call a function G, without CFI, that leaves the register alone.
//! In G's frame, it still leads to the frame of F, and a step by it goes to the caller of F: F is left out.
//! Four observations help:
//!
//! * In this case, the return address of G is in a slot between G's stack pointer and the place that the
//!   frame pointer leads to. If no slot there contains an address behind a call that may have called G, the
//!   frame pointer is G's own.
//! * If G's code continues to a return directly behind an instruction that restores the frame pointer, G has
//!   pushed the frame pointer first, next to its return address. If no two slots there contain such a pair,
//!   the frame pointer is G's own, and an address in a slot is left over from an earlier call. If it is
//!   restored from where the frame pointer leads (`leave`), or used as the base of the frame directly behind
//!   the call, such a pair is left over, too.
//! * The CFI of the calling function says where its own return address is. If there is no return address in
//!   that place, or if the place is beyond the frame that the frame pointer leads to, the address in the slot
//!   is stale.
//! * A direct call shows its target. Take the call before the return address that the frame pointer leads to:
//!   if code without a gap reaches from its target to the code of G's frame, the target is the function that
//!   G's frame is in, unless one of the slots contains an address behind a call of a function in between.
//!
//! If this does not prove that the frame pointer is G's own, the step is taken all the same, since the frame
//! that it leads to is on the stack. But that frame is marked
//! ([`FoundBy::FpUncertain`](super::FoundBy::FpUncertain)), and the stack does not count as complete.

use super::call::HowItReturns;
use super::{MappingKind, Walk, call};
use crate::addr::Avma;
use crate::architecture::Architecture;
use crate::mapping::{self, Mapping};
use crate::packed::kind;

/// Maximum number of slots of a frame of code without CFI, from its stack pointer to its frame pointer, that
/// are searched for a skipped frame. A larger frame of generated code ends the walk; the frame pointer of a
/// larger frame of native code is doubtful.
pub const MAX_FRAME_SLOTS: u64 = 2048;

/// Bytes at the beginning of a function that are searched for a jump to another one.
pub const JUMPS_LOOKED_FOR: u64 = 120;

/// Bytes of code that are searched for a function's return, in parts of [`JUMPS_LOOKED_FOR`].
pub const RETURN_LOOKED_FOR: u64 = 8 * JUMPS_LOOKED_FOR;

/// Objects of a search in a frame of code without CFI.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LookFor {
    /// A pair of this frame pointer and a return address: the frame ends there.
    pub(super) pair: bool,
    /// A return address of the frame: the frame pointer may be another frame's.
    pub(super) caller: bool,
}

impl<R: FnMut(Avma) -> Option<u64>> Walk<'_, R> {
    /// Sets `is_doubtful` if the frame pointer of native code without CFI may be another frame's.
    pub(super) fn judge_frame_pointer(&mut self) {
        let (sp, fp) = (self.aligned_sp(), self.fp.get());
        // Such a frame pointer is not followed.
        if fp < sp || !fp.is_multiple_of(8) {
            return;
        }
        // Interrupted code can have its return address in the link register, where there is one.
        let has_link = self.tables.architecture == Architecture::Aarch64 && self.pc_adjust == 0;
        let look_for = LookFor {
            pair: true,
            caller: true,
        };
        if has_link || (fp - sp) / 8 > MAX_FRAME_SLOTS {
            self.is_doubtful = true;
        } else if !self.look_at_frame(sp, fp, look_for) {
            self.is_doubtful = self.pc_adjust == 0 || self.how_frame_returns() != Some(HowItReturns::ByFp);
        }
    }

    /// The frame's stack pointer, rounded up to a slot.
    pub(super) fn aligned_sp(&self) -> u64 {
        self.sp.get().wrapping_add(7) & !7
    }

    /// Looks at the slots of the frame from `sp` to `end`, at most [`MAX_FRAME_SLOTS`]. Returns false if the
    /// frame ends before `end`, or if a slot cannot be read.
    pub(super) fn look_at_frame(&mut self, sp: u64, end: u64, look_for: LookFor) -> bool {
        let entry = look_for.caller.then(|| self.entry_by_frame_pointer()).flatten();
        for slot in (sp..end).step_by(8).map(Avma::new) {
            let Some(word) = (self.read)(slot) else {
                return false;
            };
            if look_for.pair && word == self.fp.get() && self.may_hold_return_address(slot.wrapping_add(8)) {
                return false;
            }
            if look_for.caller && !self.is_doubtful {
                let ra = Avma::new(self.tables.architecture.strip(word));
                self.is_doubtful = self.may_return_to(slot, ra, entry);
            }
        }
        if self.is_doubtful && self.pc_adjust != 0 {
            let how = self.how_frame_returns();
            self.is_doubtful = !matches!(how, Some(HowItReturns::WithFp | HowItReturns::ByFp));
        }
        true
    }

    /// Returns how the frame's function returns; `None` if that cannot be seen. If it uses the frame pointer
    /// as the base of its frame before, it returns by it.
    fn how_frame_returns(&mut self) -> Option<HowItReturns> {
        let architecture = self.tables.architecture;
        let code = (self.read)(self.pc).zip((self.read)(self.pc.wrapping_add(7)));
        if code.is_some_and(|(code, behind_seven)| call::uses_own_frame(architecture, code, behind_seven)) {
            return Some(HowItReturns::ByFp);
        }
        for part in 0..RETURN_LOOKED_FOR / JUMPS_LOOKED_FOR {
            let start = self.pc.wrapping_add(part * JUMPS_LOOKED_FOR);
            let part = self.part_of_code(start)?;
            // Parts overlap: the first 8 bytes of each part but the first were also the last of the part
            // before.
            let seen = if start == self.pc { 0 } else { 8 };
            let mut code = 0;
            for (number, byte) in (0..).zip(part) {
                code = code >> 8 | u64::from(byte) << 56;
                let end = start.wrapping_add(number + 1);
                let how = call::how_it_returns(architecture, code, end);
                if number >= seen && how.is_some() {
                    return how;
                }
            }
        }
        None
    }

    /// [`JUMPS_LOOKED_FOR`] bytes of code, and 8 more.
    fn part_of_code(&mut self, start: Avma) -> Option<Vec<u8>> {
        let words = (0..JUMPS_LOOKED_FOR / 8 + 1).map(|word| (self.read)(start.wrapping_add(8 * word)));
        let words: Vec<u64> = words.collect::<Option<_>>()?;
        Some(words.into_iter().flat_map(u64::to_le_bytes).collect())
    }

    /// Returns the function that is called before the return address that the frame pointer leads to. This is
    /// the function of the frame if the frame pointer is the frame's own. `None` if the frame's code cannot
    /// be in that function, or if the function is not known.
    fn entry_by_frame_pointer(&mut self) -> Option<Avma> {
        let at = self.pc.wrapping_sub(self.pc_adjust);
        let &here = mapping::find(self.tables.mappings, at)?;
        let called = self.called_by_caller()?;
        self.is_one_piece(here, called, at).then_some(called)
    }

    /// Returns the target of the call before the return address that the frame pointer leads to, if it is a
    /// direct call.
    fn called_by_caller(&mut self) -> Option<Avma> {
        let ra = (self.read)(self.fp.wrapping_add(8))?;
        let ra = Avma::new(self.tables.architecture.strip(ra));
        let code = (self.read)(ra.wrapping_sub(8))?;
        let called = call::called_directly(self.tables.architecture, ra, code)?;
        Some(self.behind_jumps(called))
    }

    /// Returns true if `mapping` contains everything from `address` to `at`, as one piece of code without
    /// CFI.
    fn is_one_piece(&self, mapping: Mapping, address: Avma, at: Avma) -> bool {
        if address < mapping.start || address > at {
            return false;
        }
        let image = self.image(mapping.image_at);
        let row = |address| image.row_at(mapping.bias.to_svma(address));
        mapping.kind != MappingKind::Table || row(address) == row(at)
    }

    /// Returns the function that a call of `address` reaches, through up to two jumps.
    fn behind_jumps(&mut self, address: Avma) -> Avma {
        let architecture = self.tables.architecture;
        let address = call::behind_jump(architecture, address, &mut self.read);
        call::behind_jump(architecture, address, &mut self.read)
    }

    /// Returns true if the function with the call before `ra` can have a frame below the one that the frame
    /// pointer leads to, or can have that one. This is judged by its CFI, if that computes the CFA from the
    /// stack pointer, which was right above `slot` (x86-64).
    fn fits_below_frame_pointer(&mut self, slot: Avma, ra: Avma) -> bool {
        let mapping = mapping::find(self.tables.mappings, ra.wrapping_sub(1));
        let Some(mapping) = mapping.filter(|mapping| mapping.kind == MappingKind::Table) else {
            return true;
        };
        let image = self.image(mapping.image_at);
        let rule = image.rule_at(mapping.bias.to_svma(ra.wrapping_sub(1)));
        if self.tables.architecture != Architecture::X86_64 || rule.kind() != kind::SP {
            return true;
        }
        let cfa = slot.wrapping_add(8 + 8 * u64::from(rule.a()));
        if cfa > self.fp {
            return cfa == self.fp.wrapping_add(16);
        }
        let caller = (self.read)(cfa.wrapping_sub(8)).map(Avma::new);
        caller.is_none_or(|caller| self.is_trampoline(caller) || self.is_after_call(caller))
    }

    /// Returns true if the frame may return to `ra`, which is in one of its slots: if `ra` is behind a call,
    /// which may be of the function that the frame's code is in.
    fn may_return_to(&mut self, slot: Avma, ra: Avma, entry: Option<Avma>) -> bool {
        let architecture = self.tables.architecture;
        let at = self.pc.wrapping_sub(self.pc_adjust);
        if self.is_trampoline(ra) {
            return true;
        }
        let is_mapped = mapping::find(self.tables.mappings, ra.wrapping_sub(1)).is_some();
        if (!is_mapped && !self.tables.changing) || !call::is_aligned(architecture, ra) {
            return false;
        }
        let code = (self.read)(ra.wrapping_sub(8));
        let Some(code) = code
            .filter(|&code| call::precedes(architecture, ra, code) && !call::is_local(architecture, code))
        else {
            return false;
        };
        if !self.fits_below_frame_pointer(slot, ra) {
            return false;
        }
        let Some(called) = call::called_directly(architecture, ra, code) else {
            return true;
        };
        let called = self.behind_jumps(called);
        match entry {
            Some(entry) => called > entry && called <= at,
            None => match mapping::find(self.tables.mappings, at) {
                None => true,
                Some(&here) => {
                    self.is_one_piece(here, called, at) || self.may_jump_to(called, here.start, at)
                }
            },
        }
    }

    /// Returns true if the function at `entry` may go on at a place from `start` to `end` by a tail call: if
    /// there may be such a jump at its beginning.
    fn may_jump_to(&mut self, entry: Avma, start: Avma, end: Avma) -> bool {
        let Some(code) = self.part_of_code(entry) else {
            return true;
        };
        let mut places = code.windows(8).zip(0..JUMPS_LOOKED_FOR);
        places.any(|(bytes, offset)| {
            let code = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            call::may_be_jump(
                self.tables.architecture,
                code,
                entry.wrapping_add(offset),
                entry,
                start..=end,
            )
        })
    }

    /// Returns true if a slot contains the return address of a frame, or may contain one: any address of
    /// code, including code that is newer than the mappings, except for an address that a call within a frame
    /// has pushed.
    fn may_hold_return_address(&mut self, slot: Avma) -> bool {
        let Some(word) = (self.read)(slot) else {
            return true;
        };
        let architecture = self.tables.architecture;
        let ra = Avma::new(architecture.strip(word));
        let is_mapped = mapping::find(self.tables.mappings, ra.wrapping_sub(1)).is_some();
        match (self.read)(ra.wrapping_sub(8)) {
            Some(code) if call::is_local(architecture, code) => false,
            Some(code) => is_mapped || call::precedes(architecture, ra, code),
            None => is_mapped,
        }
    }
}
