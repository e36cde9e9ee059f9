//! Finds the value of a register other than rsp and rbp in the current frame of a walk. Mirrors
//! `bpf/walk/registers.h`.
//!
//! From the current frame back towards the probe, the nearest frame that saved the register has its value; if
//! none did, it is unchanged since the probe. A walk inspects at most `MAX_LOOKS` frames in total, and only
//! frames that are kept: it ends where it would need another.

use super::{End, MAX_FRAMES, MappingKind, OUTERMOST_FRAMES, Walk};
use crate::addr::Avma;
use crate::mapping;
use crate::saves::{self, Saved, long};

/// Location of a register of a frame's caller.
enum Place {
    /// The register itself, unchanged by the frame.
    Same,
    /// In this slot.
    Slot(Avma),
}

impl<R: FnMut(Avma) -> Option<u64>> Walk<'_, R> {
    pub(super) fn find_register(&mut self, number: u8) -> Result<u64, End> {
        let current = self.frames.len().wrapping_sub(1);
        for (step, callee) in (0..current).rev().enumerate() {
            // The innermost one of the outermost frames has a callee that is not kept.
            if self.frames.len() > MAX_FRAMES && step >= OUTERMOST_FRAMES - 1 {
                return Err(End::LookLimit);
            }
            self.looks_left = self.looks_left.checked_sub(1).ok_or(End::LookLimit)?;
            if let Place::Slot(slot) = self.place(callee, number)? {
                return self.read_slot(slot);
            }
        }
        let at_probe = self.at_probe.get(usize::from(number));
        at_probe.copied().ok_or(End::UnsupportedRule)
    }

    /// Returns the location of the register in the caller of frame number `callee`.
    fn place(&mut self, callee: usize, number: u8) -> Result<Place, End> {
        let unknown = End::UnsupportedRule;
        let [frame, caller] = self.frames.get(callee..callee + 2).ok_or(unknown)? else {
            return Err(unknown);
        };
        if caller.found_by.is_by_fp() {
            return Err(unknown);
        }
        let address = frame.pc.wrapping_sub(u64::from(!frame.exact));
        // The walk has used a rule of this mapping, so it was found current.
        let mapping = mapping::find(self.tables.mappings, address);
        let mapping = mapping.filter(|mapping| mapping.kind == MappingKind::Table);
        let mapping = *mapping.ok_or(unknown)?;
        let Some(saves) = self.image(mapping.image_at).saves() else {
            self.saves_wanted = Some(address);
            return Err(End::TableNotLoaded);
        };
        let rule = saves.rule_at(mapping.bias.to_svma(address));
        let [(sp, fp), (cfa, _)] = *self.bases.get(callee..callee + 2).ok_or(unknown)? else {
            return Err(unknown);
        };
        let place =
            |base: Avma, offset: i32| Place::Slot(base.wrapping_add(i64::from(offset).cast_unsigned()));
        match saves::saved(self.image(0), rule, number) {
            Saved::Same => Ok(Place::Same),
            Saved::Slot(long::AT_CFA, offset) => Ok(place(cfa, offset)),
            Saved::Slot(long::AT_SP, offset) => Ok(place(sp, offset)),
            Saved::Slot(long::AT_FP, offset) => Ok(place(fp, offset)),
            Saved::Slot(..) | Saved::Unknown => Err(unknown),
        }
    }
}
