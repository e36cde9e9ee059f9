//! AArch64 steps: frame records, and the link register. Mirrors `bpf/walk/aarch64.h`.

use super::{End, Step, Walk};
use crate::addr::Avma;
use crate::architecture::Architecture;
use crate::packed::aarch64::SIGNED;
use crate::packed::{PackedRule, kind};

impl<R: FnMut(Avma) -> Option<u64>> Walk<'_, R> {
    /// Returns whether the frame's `sp` is exact. After a frame-pointer step on AArch64 it is only a lower
    /// bound: a frame record can be anywhere in its frame.
    pub(super) fn sp_is_known(&self) -> bool {
        self.tables.architecture == Architecture::X86_64 || !self.found_by.is_by_fp()
    }

    /// Goes to the caller by the rules of `packed::aarch64`.
    pub(super) fn apply_record(&mut self, rule: PackedRule) -> Step {
        let slot = slot_of(rule);
        let from_fp = rule.kind() == kind::FP;
        if !from_fp && !self.sp_is_known() {
            return self.apply_record_without_sp(rule);
        }
        let base = if from_fp { self.fp } else { self.sp };
        let cfa = base.wrapping_add(8 * u64::from(rule.a()));
        if slot == 0 {
            return self.return_by_link_register(rule, cfa);
        }
        if cfa <= self.sp && !(from_fp && self.may_switch_stack()) {
            return Err(End::NoProgress);
        }
        let first = base.wrapping_add(8 * (slot - 1));
        let (fp, ra_slot) = if rule.kind() == kind::LONE {
            (self.fp, first)
        } else {
            (Avma::new(self.read_slot(first)?), first.wrapping_add(8))
        };
        let ra = self.read_slot(ra_slot)?;
        self.go_to(self.return_address(rule, ra), cfa, fp);
        Ok(())
    }

    /// Goes to the caller by the link register, which holds the return address of a running frame that has
    /// not saved it.
    fn return_by_link_register(&mut self, rule: PackedRule, cfa: Avma) -> Step {
        let ra = self.lr.ok_or(End::UnsupportedRule)?;
        if cfa < self.sp {
            return Err(End::NoProgress);
        }
        self.go_to(self.return_address(rule, ra), cfa, self.fp);
        Ok(())
    }

    /// Goes to the caller without an exact `sp`: by the frame pointer, if the function has a frame record,
    /// else not at all.
    fn apply_record_without_sp(&mut self, rule: PackedRule) -> Step {
        if rule.kind() == kind::SP && slot_of(rule) != 0 {
            self.apply_fp(End::UnsupportedRule)
        } else {
            Err(End::UnsupportedRule)
        }
    }

    fn return_address(&self, rule: PackedRule, ra: u64) -> Avma {
        let signed = rule.b() & SIGNED != 0;
        Avma::new(if signed {
            self.tables.architecture.strip(ra)
        } else {
            ra
        })
    }
}

/// Returns the number of the rule's slot, 1-based; 0 for none.
fn slot_of(rule: PackedRule) -> u64 {
    u64::from(rule.b() & (SIGNED - 1))
}
