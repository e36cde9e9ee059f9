//! Packed rules of AArch64 frames.
//!
//! Functions save the return address with the caller's frame pointer below it, as a frame record, or alone,
//! or not at all. Offsets of slots are from the same register as the CFA's: slots are nearly always within a
//! few words of it, however large the frame. `b` is split: its highest bit is set if the return address is
//! signed, the others are `s`.
//!
//! | kind | name | rule |
//! |---|---|---|
//! | 1 | sp   | `cfa = sp + 8a`; s = 0: `ra = lr`, `fp` same; else `fp = *(sp + 8(s - 1))`, `ra` next to it |
//! | 2 | fp   | as sp, with fp instead of sp |
//! | 3 | lone | `cfa = sp + 8a`, `ra = *(sp + 8(s - 1))`, `fp` same; s > 0 |

use super::{A_BITS, B_BITS, PackedRule, SLOT, kind, low_bits, unsigned_slots};
use crate::rule::{CfaRule, FrameRule, Register, Saved, UnwindRule};

/// Number of bits of `b` for the slot.
pub const SLOT_BITS: u32 = B_BITS - 1;
/// Bit of `b` that is set if the return address is signed.
pub const SIGNED: u32 = 1 << SLOT_BITS;

pub(super) fn pack(frame: FrameRule) -> Option<PackedRule> {
    let CfaRule::Offset { register, offset } = frame.cfa else {
        return None;
    };
    if frame.signal_frame {
        return None;
    }
    let slot = |from_cfa: i32| {
        let slots = unsigned_slots(offset.checked_add(from_cfa)?, SLOT_BITS)?;
        Some(slots + 1).filter(|&slot| slot <= low_bits(SLOT_BITS))
    };
    let of_base = match register {
        Register::Sp => kind::SP,
        Register::Fp => kind::FP,
    };
    let (kind, slot) = match (frame.ra, frame.fp) {
        (Saved::Same, Saved::Same) => (of_base, 0),
        (Saved::AtCfa(ra), Saved::AtCfa(fp)) if fp.checked_add(SLOT) == Some(ra) => (of_base, slot(fp)?),
        (Saved::AtCfa(ra), Saved::Same) if register == Register::Sp => (kind::LONE, slot(ra)?),
        _ => return None,
    };
    let signed = if frame.ra_signed { SIGNED } else { 0 };
    Some(PackedRule::new(
        kind,
        unsigned_slots(offset, A_BITS)?,
        slot | signed,
    ))
}

pub(super) fn unpack(rule: PackedRule) -> Option<UnwindRule> {
    let offset = i32::try_from(rule.a()).ok()? * SLOT;
    let register = match rule.kind() {
        kind::SP | kind::LONE => Register::Sp,
        kind::FP => Register::Fp,
        _ => return None,
    };
    let at = |slot: u32| Some(Saved::AtCfa(i32::try_from(slot).ok()? * SLOT - offset));
    let (ra, fp) = match (rule.kind(), rule.b() & low_bits(SLOT_BITS)) {
        (kind::LONE, 0) => return None,
        (kind::LONE, slot) => (at(slot - 1)?, Saved::Same),
        (_, 0) => (Saved::Same, Saved::Same),
        (_, slot) => (at(slot)?, at(slot - 1)?),
    };
    Some(UnwindRule::Frame(FrameRule {
        cfa: CfaRule::Offset { register, offset },
        ra,
        ra_signed: rule.b() & SIGNED != 0,
        fp,
        signal_frame: false,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::architecture::Architecture::Aarch64;
    use crate::program::Programs;

    fn frame(register: Register, offset: i32, ra: Saved, fp: Saved) -> FrameRule {
        FrameRule {
            cfa: CfaRule::Offset { register, offset },
            ra,
            ra_signed: false,
            fp,
            signal_frame: false,
        }
    }

    /// Frames that compilers write fit, signed or not, up to the widest offsets, and are unchanged after
    /// unpacking.
    #[test]
    fn packed_rules_round_trip() {
        use Register::{Fp, Sp};
        use Saved::{AtCfa, Same};
        for rule in [
            frame(Sp, 0, Same, Same),
            frame(Sp, 1_048_568, Same, Same),
            frame(Sp, 64, AtCfa(-56), AtCfa(-64)),
            frame(Sp, 540_128, AtCfa(-540_120), AtCfa(-540_128)),
            frame(Sp, 8192, AtCfa(-8), AtCfa(-16)),
            frame(Fp, 16, AtCfa(-8), AtCfa(-16)),
            frame(Sp, 16, AtCfa(-16), Same),
            frame(Sp, 16, AtCfa(-8), Same),
        ] {
            for ra_signed in [false, true] {
                let rule = UnwindRule::Frame(FrameRule { ra_signed, ..rule });
                let packed = PackedRule::pack(rule, Aarch64);
                assert_eq!(packed.and_then(|packed| packed.unpack(Aarch64)), Some(rule));
            }
        }
    }

    /// A rule that does not fit is rejected, never truncated; it becomes a program.
    #[test]
    fn rules_that_do_not_fit_become_programs() {
        use Register::{Fp, Sp};
        use Saved::{AtCfa, Same};
        for rule in [
            frame(Sp, 1_048_576, Same, Same),
            frame(Sp, 12, Same, Same),
            frame(Sp, 16, AtCfa(-24), Same),
            frame(Sp, 32, AtCfa(-16), AtCfa(-32)),
            frame(Sp, 32, AtCfa(-32), AtCfa(-24)),
            frame(Sp, 32, Same, AtCfa(-32)),
            frame(Sp, 8208, AtCfa(-8), AtCfa(-16)),
            frame(Fp, 16, AtCfa(-8), Same),
            FrameRule {
                signal_frame: true,
                ..frame(Sp, 64, AtCfa(-56), AtCfa(-64))
            },
        ] {
            assert_eq!(
                PackedRule::pack(UnwindRule::Frame(rule), Aarch64),
                None,
                "{rule:?}"
            );
            for ra_signed in [false, true] {
                let rule = Programs::new(Aarch64).rule(FrameRule { ra_signed, ..rule });
                assert!(matches!(rule, Ok(UnwindRule::Program(_))), "{rule:?}");
            }
        }
    }
}
