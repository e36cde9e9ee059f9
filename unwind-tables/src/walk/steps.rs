//! Steps from a frame to its caller, with which rules of all kinds end.

use super::{End, FoundBy, Step, Walk};
use crate::addr::Avma;

impl<R: FnMut(Avma) -> Option<u64>> Walk<'_, R> {
    /// Goes to the caller whose stack pointer is the CFA, reading its return address and frame pointer (no
    /// slot: unchanged).
    pub(super) fn go_to_caller(&mut self, cfa: Avma, ra_slot: Avma, fp_slot: Option<Avma>) -> Step {
        match cfa > self.sp {
            true => self.read_caller(cfa, ra_slot, fp_slot),
            false => Err(End::NoProgress),
        }
    }

    /// Goes to the caller by a rule that computes the CFA from the frame pointer: the caller can be on a
    /// stack at lower addresses.
    pub(super) fn go_to_caller_by_fp(&mut self, cfa: Avma, ra_slot: Avma, fp_slot: Option<Avma>) -> Step {
        match cfa > self.sp || self.may_switch_stack() {
            true => self.read_caller(cfa, ra_slot, fp_slot),
            false => Err(End::NoProgress),
        }
    }

    /// Returns true if the walk may go down to another stack, because CFI computes the CFA from a register
    /// other than the stack pointer. Counts this as one of [`MAX_STACK_SWITCHES`](super::MAX_STACK_SWITCHES).
    pub(super) fn may_switch_stack(&mut self) -> bool {
        let left = self.switches_left.checked_sub(1);
        self.switches_left = left.unwrap_or(0);
        left.is_some()
    }

    fn read_caller(&mut self, cfa: Avma, ra_slot: Avma, fp_slot: Option<Avma>) -> Step {
        let caller_fp = match fp_slot {
            Some(slot) => Avma::new(self.read_slot(slot)?),
            None => self.fp,
        };
        let ra = self.read_slot(ra_slot)?;
        self.go_to(Avma::new(ra), cfa, caller_fp);
        Ok(())
    }

    pub(super) fn go_to(&mut self, pc: Avma, sp: Avma, fp: Avma) {
        self.pc = pc;
        self.sp = sp;
        self.fp = fp;
        self.pc_adjust = 1;
        self.found_by = FoundBy::Cfi;
        self.lr = None;
    }

    pub(super) fn read_slot(&mut self, slot: Avma) -> Result<u64, End> {
        (self.read)(slot).ok_or(End::ReadFault)
    }
}
