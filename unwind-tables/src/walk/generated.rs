//! Steps through code that a program generated (a JIT compiler, an interpreter made of templates). Mirrors
//! `bpf/walk/generated.h`.
//!
//! There is no CFI, so callers are found by the frame pointer, which can be wrong in two ways. If code does
//! not set the frame pointer, it leads past the code's own caller; this can be seen from the values that the
//! code has pushed. And it can have any value if it leads to a return address that is not behind a call,
//! which would confirm it, as in HotSpot's interpreter, which jumps. Such frames are on trial until the walk
//! arrives at native code; if it does not, they are dropped.

use super::call::Returns;
use super::own_frame::{LookFor, MAX_FRAME_SLOTS};
use super::{End, FoundBy, INNERMOST_FRAMES, Step, Walk, call, kept, mapping_stop};
use crate::addr::Avma;
use crate::packed::{PackedRule, kind, stop};

/// State of a walk before it followed frame pointers on trial.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    frame_count: usize,
    pc: Avma,
}

impl<R: FnMut(Avma) -> Option<u64>> Walk<'_, R> {
    /// Goes to the caller of generated code: by the way in which it returns, if its code shows that, else by
    /// the frame pointer, if that is this frame's own. `known` is the stop value of its mapping, which tells
    /// what is known about the program's generated code.
    pub(super) fn apply_generated(&mut self, known: u32) -> Step {
        if self.go_by_return() {
            return Ok(());
        }
        if known == mapping_stop::ANONYMOUS_STUB && self.calls_native() {
            self.fp = self.sp;
        }
        if !self.frame_is_linked(known) {
            return Err(End::AnonymousCode);
        }
        self.apply_fp(End::AnonymousCode)
    }

    /// Goes to the caller of a function that returns as soon as its callee has, by the instructions with
    /// which it does. Returns false if the function is not such a one.
    fn go_by_return(&mut self) -> bool {
        let code = match self.pc_adjust != 0 && self.sp_is_known() {
            true => (self.read)(self.pc),
            false => None,
        };
        let how = code.and_then(|code| call::returns_at_once(self.tables.architecture, code));
        let Some((freed, pops_fp)) = how else {
            return false;
        };
        let fp_slot = pops_fp.then(|| self.sp.wrapping_add(freed));
        let ra_slot = fp_slot.map_or_else(|| self.sp.wrapping_add(freed), |slot| slot.wrapping_add(8));
        let Some(ra) = (self.read)(ra_slot) else {
            return false;
        };
        let is_known = self.judge_return_address(Avma::new(ra)) == Returns::Yes;
        is_known
            && self
                .go_to_caller(ra_slot.wrapping_add(8), ra_slot, fp_slot)
                .is_ok()
    }

    /// Returns whether the frame called native code: the stack pointer is where it was at the call.
    fn calls_native(&self) -> bool {
        self.pc_adjust != 0 && matches!(self.found_by, FoundBy::Probe | FoundBy::Cfi)
    }

    /// Returns true if the frame pointer is this frame's own. Code that does not set the frame pointer has
    /// pushed it, as all code does that may change it, next to the return address above. If there is such a
    /// pair between the stack pointer and the place that the frame pointer leads to, the frame ends there,
    /// and the frame pointer is another frame's. An interrupted instruction can be before the push, so its
    /// frame pointer is not trusted.
    ///
    /// A JVM that keeps frame pointers has a few stubs that do not set them, and call native code: their pair
    /// is at the stack pointer. Methods are not such stubs. Stubs that are known have a mapping kind of their
    /// own; the search here is for the others.
    fn frame_is_linked(&mut self, known: u32) -> bool {
        let (sp, fp) = (self.aligned_sp(), self.fp.get());
        if self.pc_adjust == 0 || fp < sp || !fp.is_multiple_of(8) {
            return false;
        }
        let end = match known {
            mapping_stop::ANONYMOUS | mapping_stop::ANONYMOUS_PUSHED => fp,
            mapping_stop::ANONYMOUS_LINKED if self.calls_native() && fp > sp => sp + 8,
            _ => sp,
        };
        let look_for = LookFor {
            pair: true,
            caller: known == mapping_stop::ANONYMOUS,
        };
        (end - sp) / 8 <= MAX_FRAME_SLOTS && self.look_at_frame(sp, end, look_for)
    }

    /// Notes that the frames from here on are on trial.
    pub(super) fn begin_trial(&mut self) {
        self.trial.get_or_insert(Trial {
            frame_count: self.frames.len(),
            pc: self.pc,
        });
    }

    /// Ends the trial if the walk has arrived at native code with CFI, by a return address that is behind a
    /// call.
    pub(super) fn settle_trial(&mut self, rule: PackedRule) {
        if rule.kind() != kind::STOP || rule.a() == stop::END {
            self.trial = None;
        }
    }

    /// Drops the frames on trial at the end of a walk, for which a step found `end`, and returns the end of
    /// the rest. If only a table or a mapping is missing, that cause and its address remain: once it is
    /// there, the walk may go on. On a deep stack, frames on trial can have taken the places of others; then
    /// only the innermost ones are left.
    pub(super) fn end_of_trial(&mut self, end: End) -> End {
        let Some(trial) = self.trial.take() else {
            return end;
        };
        let (count, end_of_trial) = match kept::are_kept(trial.frame_count, self.frames.len()) {
            true => (trial.frame_count, End::AnonymousCode),
            false => (INNERMOST_FRAMES, End::DepthLimit),
        };
        self.frames.truncate(count);
        self.bases.truncate(count);
        if matches!(end, End::TableNotLoaded | End::NoMapping | End::NoTable) {
            return end;
        }
        self.pc = trial.pc;
        end_of_trial
    }

    /// The way in which a step by the frame pointer finds a frame.
    pub(super) fn found_by_fp(&self) -> FoundBy {
        match self.trial {
            _ if self.is_doubtful => FoundBy::FpUncertain,
            Some(_) => FoundBy::FpGenerated,
            None => FoundBy::Fp,
        }
    }
}
