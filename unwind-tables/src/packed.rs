//! Packed rules, as in the kernel side's tables: 31 bits for nearly every rule, a program for the rest.
//!
//! ```text
//!  bit 31   30        20 19                 3 2    0
//!     +---+------------+--------------------+------+
//!     | 0 |     b      |         a          | kind |
//!     +---+------------+--------------------+------+
//! ```
//!
//! | kind | name | rule |
//! |---|---|---|
//! | 0 | none | never stored; an empty cache slot |
//! | 1 | sp   | `cfa = sp + 8a`, `ra = *(cfa - 8)`, `fp` same or, for b > 0, `*(cfa - 8b)` |
//! | 2 | fp   | `cfa = fp + 8a`, the rest as above |
//! | 3 | plt  | `cfa = sp + 8 + (pc & 15 >= a ? 8 : 0)`, `ra = *(cfa - 8)`, `fp` same |
//! | 4 | drap | `cfa = *(fp + 8a)`, `ra = *(cfa - 8)`, `fp = *(fp + 8b)`; a and b signed |
//! | 5 | wide | the program that starts at op `a + (b << 17)` of the object's programs |
//! | 6 | stop | a = 0 end of stack, 1 gap (b = 1: with a frame pointer of its own), 2 + reason unsupported |
//! | 7 | chain | never stored; in the rule cache, a return address that a frame-pointer walk has checked |
//!
//! Kinds 1 to 4 are those of x86-64; for AArch64 see [`aarch64`].
//!
//! Bit 31 is reserved for the rule cache, whose 64-bit entries are a rule, a bit, and a 32-bit tag.

pub mod aarch64;

use crate::architecture::Architecture;
use crate::program::ProgramId;
use crate::rule::{CfaRule, FrameRule, Reason, Register, Saved, UnwindRule};

/// Numbers of the rule kinds, as in `bpf/walk/rules.h`.
pub mod kind {
    /// `cfa = sp + 8a`
    pub const SP: u32 = 1;
    /// `cfa = fp + 8a`
    pub const FP: u32 = 2;
    /// An entry of a procedure linkage table (PLT).
    pub const PLT: u32 = 3;
    /// A return address saved alone (AArch64).
    pub const LONE: u32 = 3;
    /// A function that realigned its stack.
    pub const DRAP: u32 = 4;
    /// A rule program.
    pub const WIDE: u32 = 5;
    /// No caller: end of stack, gap, or unsupported.
    pub const STOP: u32 = 6;
    /// A return address that a frame-pointer walk has checked.
    pub const CHAIN: u32 = 7;
}

/// Values of `a` in a stop rule.
pub mod stop {
    /// The outermost frame.
    pub const END: u32 = 0;
    /// No CFI.
    pub const GAP: u32 = 1;
    /// Unsupported: this value plus the reason's number.
    pub const UNSUPPORTED: u32 = 2;
}

/// Value of `b` in the stop rule of a gap: the frame pointer is the function's own.
pub const FRAMED: u32 = 1;

/// Number of bits of a packed rule's kind.
pub const KIND_BITS: u32 = 3;
/// Number of bits of a packed rule's first operand.
pub const A_BITS: u32 = 17;
/// Number of bits of a packed rule's second operand.
pub const B_BITS: u32 = 11;
/// Stack slots are 8 bytes; offsets are stored in slots.
const SLOT: i32 = 8;

/// A rule in 31 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct PackedRule(u32);

impl PackedRule {
    /// No CFI.
    pub const GAP: Self = Self::new(kind::STOP, stop::GAP, 0);
    /// No CFI, and the function that the code is in has set up a frame pointer of its own.
    pub const FRAMED_GAP: Self = Self::new(kind::STOP, stop::GAP, FRAMED);
    /// The outermost frame.
    pub const END_OF_STACK: Self = Self::new(kind::STOP, stop::END, 0);

    const fn new(kind: u32, a: u32, b: u32) -> Self {
        Self(kind | (a & low_bits(A_BITS)) << KIND_BITS | (b & low_bits(B_BITS)) << (KIND_BITS + A_BITS))
    }

    /// Returns the rule with these raw bits, unchecked.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns the raw bits.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the kind, one of [`kind`].
    pub const fn kind(self) -> u32 {
        self.0 & low_bits(KIND_BITS)
    }

    /// Returns the first operand.
    pub const fn a(self) -> u32 {
        self.0 >> KIND_BITS & low_bits(A_BITS)
    }

    /// Returns the second operand.
    pub const fn b(self) -> u32 {
        self.0 >> (KIND_BITS + A_BITS) & low_bits(B_BITS)
    }

    /// Returns the first operand, sign-extended.
    pub const fn signed_a(self) -> i32 {
        sign_extend(self.a(), A_BITS)
    }

    /// Returns the second operand, sign-extended.
    pub const fn signed_b(self) -> i32 {
        sign_extend(self.b(), B_BITS)
    }

    /// Returns the number of the first op of a wide rule's program.
    pub const fn wide_index(self) -> u32 {
        self.a() | self.b() << A_BITS
    }

    /// Returns the rule whose program starts at op `index`; `None` from 2^28 on.
    pub const fn wide(index: u32) -> Option<Self> {
        if index >> (A_BITS + B_BITS) != 0 {
            return None;
        }
        Some(Self::new(kind::WIDE, index, index >> A_BITS))
    }

    /// Returns the rule for a row that no rule expresses, for `reason`.
    pub const fn unsupported(reason: Reason) -> Self {
        Self::new(kind::STOP, stop::UNSUPPORTED + reason as u32, 0)
    }

    /// Packs `rule` of code for `architecture`; `None` if it must become a program.
    pub fn pack(rule: UnwindRule, architecture: Architecture) -> Option<Self> {
        match rule {
            UnwindRule::Frame(frame) => match architecture {
                Architecture::X86_64 => Self::pack_x86_64(frame),
                Architecture::Aarch64 => aarch64::pack(frame),
            },
            UnwindRule::Program(program) => Self::wide(program.0),
            UnwindRule::EndOfStack => Some(Self::END_OF_STACK),
            UnwindRule::Gap => Some(Self::GAP),
            UnwindRule::Unsupported(reason) => Some(Self::unsupported(reason)),
        }
    }

    fn pack_x86_64(frame: FrameRule) -> Option<Self> {
        if frame.ra != Saved::AtCfa(-SLOT) || frame.ra_signed || frame.signal_frame {
            return None;
        }
        match frame.cfa {
            CfaRule::Offset { register, offset } => {
                let kind = match register {
                    Register::Sp => kind::SP,
                    Register::Fp => kind::FP,
                };
                let a = unsigned_slots(offset, A_BITS)?;
                let b = match frame.fp {
                    Saved::Same => 0,
                    Saved::AtCfa(at) => unsigned_slots(at.checked_neg()?, B_BITS).filter(|&b| b > 1)?,
                    Saved::At { .. } => return None,
                };
                Some(Self::new(kind, a, b))
            }
            CfaRule::Plt { threshold } => {
                (frame.fp == Saved::Same).then(|| Self::new(kind::PLT, threshold.into(), 0))
            }
            CfaRule::Deref {
                register: Register::Fp,
                at,
                offset: 0,
            } => match frame.fp {
                Saved::At {
                    register: Register::Fp,
                    offset,
                } => Some(Self::new(
                    kind::DRAP,
                    signed_slots(at, A_BITS)?,
                    signed_slots(offset, B_BITS)?,
                )),
                Saved::Same | Saved::AtCfa(_) | Saved::At { .. } => None,
            },
            CfaRule::Deref { .. } => None,
        }
    }

    /// Unpacks a rule of a table of code for `architecture`; `None` for bits that are not a valid rule.
    pub fn unpack(self, architecture: Architecture) -> Option<UnwindRule> {
        match (self.kind(), architecture) {
            (kind::WIDE, _) => Some(UnwindRule::Program(ProgramId(self.wide_index()))),
            (kind::STOP, _) => match self.a() {
                stop::END => Some(UnwindRule::EndOfStack),
                stop::GAP => Some(UnwindRule::Gap),
                number => Reason::from_number(number - stop::UNSUPPORTED).map(UnwindRule::Unsupported),
            },
            (_, Architecture::X86_64) => self.unpack_x86_64(),
            (_, Architecture::Aarch64) => aarch64::unpack(self),
        }
    }

    fn unpack_x86_64(self) -> Option<UnwindRule> {
        // Both operands are below 2^17, so slots fit an i32.
        let slots = |count: u32| i32::try_from(count).ok().map(|count| count * SLOT);
        let frame = |cfa, fp| {
            Some(UnwindRule::Frame(FrameRule {
                cfa,
                ra: Saved::AtCfa(-SLOT),
                ra_signed: false,
                fp,
                signal_frame: false,
            }))
        };
        let saved_fp = match self.b() {
            0 => Saved::Same,
            b => Saved::AtCfa(-slots(b)?),
        };
        match self.kind() {
            kind::SP => frame(
                CfaRule::Offset {
                    register: Register::Sp,
                    offset: slots(self.a())?,
                },
                saved_fp,
            ),
            kind::FP => frame(
                CfaRule::Offset {
                    register: Register::Fp,
                    offset: slots(self.a())?,
                },
                saved_fp,
            ),
            kind::PLT => frame(
                CfaRule::Plt {
                    threshold: u8::try_from(self.a()).ok()?,
                },
                Saved::Same,
            ),
            kind::DRAP => frame(
                CfaRule::Deref {
                    register: Register::Fp,
                    at: self.signed_a() * SLOT,
                    offset: 0,
                },
                Saved::At {
                    register: Register::Fp,
                    offset: self.signed_b() * SLOT,
                },
            ),
            _ => None,
        }
    }
}

fn word(offset: i32) -> u32 {
    u32::from_le_bytes(offset.to_le_bytes())
}

const fn low_bits(bits: u32) -> u32 {
    (1 << bits) - 1
}

const fn sign_extend(value: u32, bits: u32) -> i32 {
    let unused = 32 - bits;
    (value << unused).cast_signed() >> unused
}

fn unsigned_slots(bytes: i32, bits: u32) -> Option<u32> {
    let slots = u32::try_from(bytes).ok().filter(|_| bytes % SLOT == 0)? / SLOT.unsigned_abs();
    (slots >> bits == 0).then_some(slots)
}

fn signed_slots(bytes: i32, bits: u32) -> Option<u32> {
    let slots = word(bytes / SLOT) & low_bits(bits);
    (bytes % SLOT == 0 && sign_extend(slots, bits) * SLOT == bytes).then_some(slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::architecture::Architecture::X86_64;
    use crate::program::Programs;

    const RA: Saved = Saved::AtCfa(-8);

    fn frame(cfa: CfaRule, fp: Saved) -> UnwindRule {
        UnwindRule::Frame(FrameRule {
            cfa,
            ra: RA,
            ra_signed: false,
            fp,
            signal_frame: false,
        })
    }

    /// A rule that fits in 31 bits is unchanged after packing and unpacking, up to the widest offsets of each
    /// form.
    #[test]
    fn packed_rules_round_trip() {
        let offset = |register, offset| CfaRule::Offset { register, offset };
        let drap = |at| CfaRule::Deref {
            register: Register::Fp,
            at,
            offset: 0,
        };
        let at_fp = |offset| Saved::At {
            register: Register::Fp,
            offset,
        };
        for rule in [
            frame(offset(Register::Sp, 8), Saved::Same),
            frame(offset(Register::Sp, 540_128), Saved::AtCfa(-16)),
            frame(offset(Register::Fp, 16), Saved::AtCfa(-16_376)),
            frame(offset(Register::Sp, 1_048_568), Saved::Same),
            frame(CfaRule::Plt { threshold: 11 }, Saved::Same),
            frame(drap(-8), at_fp(0)),
            frame(drap(-524_288), at_fp(-8192)),
            frame(drap(524_280), at_fp(8184)),
            UnwindRule::EndOfStack,
            UnwindRule::Gap,
            UnwindRule::Unsupported(Reason::Malformed),
        ] {
            let packed = PackedRule::pack(rule, X86_64);
            assert_eq!(packed.and_then(|packed| packed.unpack(X86_64)), Some(rule));
        }
    }

    /// A rule that does not fit is rejected, never truncated.
    #[test]
    fn rules_that_do_not_fit_become_programs() {
        let sp = |offset| CfaRule::Offset {
            register: Register::Sp,
            offset,
        };
        let deref = |register, at, offset| CfaRule::Deref { register, at, offset };
        let at_fp = |offset| Saved::At {
            register: Register::Fp,
            offset,
        };
        for rule in [
            frame(sp(1_048_576), Saved::Same),
            frame(sp(-8), Saved::Same),
            frame(sp(12), Saved::Same),
            frame(sp(16), Saved::AtCfa(-16_384)),
            frame(sp(16), Saved::AtCfa(8)),
            frame(sp(16), Saved::AtCfa(-8)),
            frame(deref(Register::Sp, 16, 8), Saved::Same),
            frame(deref(Register::Fp, -8, 8), at_fp(0)),
            frame(deref(Register::Fp, -8, 0), at_fp(8192)),
            UnwindRule::Frame(FrameRule {
                cfa: sp(16),
                ra: RA,
                ra_signed: false,
                fp: Saved::Same,
                signal_frame: true,
            }),
        ] {
            assert_eq!(PackedRule::pack(rule, X86_64), None, "{rule:?}");
            let UnwindRule::Frame(frame) = rule else {
                unreachable!()
            };
            let rule = Programs::default().rule(frame);
            assert!(matches!(rule, Ok(UnwindRule::Program(_))), "{rule:?}");
        }
    }
}
