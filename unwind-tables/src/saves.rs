//! Saves: where functions save the registers that they preserve for their callers.
//!
//! A walk needs saves only for frames whose rule uses a register other than rsp and rbp. It then goes back
//! through the frames that it has found, to the nearest one that saved that register; if none did, the
//! register is unchanged since the start of the walk. So saves are in an image of their own, with the layout
//! of an image of rules and one of these in place of each rule:
//!
//! ```text
//!  kind 1  five fields of 5 bits, for rbx, r12, r13, r14, r15: 0 not saved yet, 1..30 saved at
//!          *(cfa - 8 * field), 31 unknown. Calls do not preserve other registers.
//!  kind 5  a long entry: a word for each of 16 registers, see [`Saved::word`]
//!  kind 6  all registers unknown
//! ```

use std::collections::HashMap;

use gimli::UnwindSection;

use crate::architecture::Architecture;
use crate::elf::ElfView;
use crate::expression;
use crate::image::ImageView;
use crate::packed::{KIND_BITS, PackedRule, kind};
use crate::plain::{PlainRow, PlainSave};
use crate::program::{FP, Opcode, PC, REGISTERS, SP};
use crate::table::RowRule;
use crate::translate::{RowContext, Slice};

/// Registers that functions preserve, except rsp and rbp, in the order of their fields.
pub const PRESERVED: [u8; 5] = [3, 12, 13, 14, 15];
/// Number of bits of one field.
pub const FIELD_BITS: u32 = 5;
/// Field of a register whose location is unknown.
pub const FIELD_UNKNOWN: u32 = (1 << FIELD_BITS) - 1;
/// Number of words of a long entry.
pub const LONG_WORDS: usize = REGISTERS as usize;

/// Low bits of a long entry's words: kind of location, and for a slot the base of its offset.
pub mod long {
    /// The register has the caller's value.
    pub const SAME: u32 = 0;
    /// The location is unknown.
    pub const UNKNOWN: u32 = 1;
    /// In a slot at an offset from the CFA.
    pub const AT_CFA: u32 = 2;
    /// In a slot at an offset from the frame's rsp.
    pub const AT_SP: u32 = 3;
    /// In a slot at an offset from the frame's rbp.
    pub const AT_FP: u32 = 4;
    /// Number of bits of the kind; the bits above are the offset in bytes, signed.
    pub const KIND_BITS: u32 = 3;
}

/// Location of the caller's value of one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Saved {
    /// In the register itself.
    Same,
    /// Unknown.
    Unknown,
    /// In a slot: one of [`long`]'s bases, and an offset in bytes.
    Slot(u32, i32),
}

impl Saved {
    /// Encodes a location as a word of a long entry.
    fn word(self) -> u32 {
        match self {
            Self::Same => long::SAME,
            Self::Unknown => long::UNKNOWN,
            Self::Slot(base, offset) => base | offset.cast_unsigned() << long::KIND_BITS,
        }
    }

    /// Encodes a location as a field; `None` if it does not fit.
    fn field(self) -> Option<u32> {
        match self {
            Self::Same => Some(0),
            Self::Unknown => Some(FIELD_UNKNOWN),
            Self::Slot(long::AT_CFA, offset) if offset < 0 && offset % 8 == 0 => {
                Some(offset.unsigned_abs() / 8).filter(|&slots| slots < FIELD_UNKNOWN)
            }
            Self::Slot(..) => None,
        }
    }

    fn slot(base: u32, offset: i64) -> Self {
        let fits = -(1 << 28)..1 << 28;
        match i32::try_from(offset) {
            Ok(offset) if fits.contains(&offset) => Self::Slot(base, offset),
            _ => Self::Unknown,
        }
    }
}

/// Returns whether registers other than the stack and frame pointer are tracked through frames: on x86-64
/// only. Objects on AArch64 have a handful of rules at most that use another.
pub(crate) fn are_followed(view: &ElfView<'_>) -> bool {
    view.architecture() == Architecture::X86_64
}

/// Returns the location of one register by `rule`, a result of [`ImageView::rule_at`] for an image of saves.
/// `words` is any view of the same words.
pub fn saved(words: ImageView<'_>, rule: PackedRule, number: u8) -> Saved {
    match rule.kind() {
        kind::SP => short(rule, number).unwrap_or(Saved::Unknown),
        kind::WIDE => long_entry(words.word(rule.wide_index().wrapping_add(number.into()))),
        _ => Saved::Unknown,
    }
}

fn short(rule: PackedRule, number: u8) -> Option<Saved> {
    let field = PRESERVED.iter().position(|&preserved| preserved == number)?;
    let shift = KIND_BITS + FIELD_BITS * u32::try_from(field).ok()?;
    Some(match rule.bits() >> shift & FIELD_UNKNOWN {
        0 => Saved::Same,
        FIELD_UNKNOWN => Saved::Unknown,
        slots => Saved::Slot(long::AT_CFA, -8 * i32::try_from(slots).ok()?),
    })
}

fn long_entry(word: u32) -> Saved {
    match word & ((1 << long::KIND_BITS) - 1) {
        long::SAME => Saved::Same,
        base @ (long::AT_CFA | long::AT_SP | long::AT_FP) => {
            Saved::Slot(base, word.cast_signed() >> long::KIND_BITS)
        }
        _ => Saved::Unknown,
    }
}

/// Packed saves of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavesRule(PackedRule);

impl RowRule for SavesRule {
    const GAP: Self = Self(PackedRule::GAP);

    fn pack(self) -> Option<PackedRule> {
        Some(self.0)
    }
}

/// The distinct long entries of one image.
#[derive(Debug, Default)]
pub struct LongSaves {
    words: Vec<u32>,
    known: HashMap<[u32; LONG_WORDS], SavesRule>,
}

impl LongSaves {
    /// Returns the words of all entries, concatenated.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// Packs the locations of all registers: in the short form if only preserved registers are known and fit,
    /// else as a long entry.
    pub fn pack(&mut self, saved: &[Saved; LONG_WORDS]) -> SavesRule {
        let is_preserved = |number: usize| {
            PRESERVED
                .iter()
                .any(|&preserved| usize::from(preserved) == number)
        };
        let others = saved
            .iter()
            .enumerate()
            .filter(|&(number, _)| !is_preserved(number));
        let only_preserved = others.into_iter().all(|(_, &saved)| saved == Saved::Unknown);
        let fields = PRESERVED.iter().rev().try_fold(0, |fields, &number| {
            Some(fields << FIELD_BITS | saved[usize::from(number)].field()?)
        });
        match fields.filter(|_| only_preserved) {
            Some(fields) => SavesRule(PackedRule::from_bits(fields << KIND_BITS | kind::SP)),
            None => self.intern(saved.map(Saved::word)),
        }
    }

    fn intern(&mut self, entry: [u32; LONG_WORDS]) -> SavesRule {
        if let Some(&known) = self.known.get(&entry) {
            return known;
        }
        // References count ops' two words, like those to programs.
        let number = u32::try_from(self.words.len() / 2)
            .ok()
            .and_then(PackedRule::wide);
        let Some(rule) = number.map(SavesRule) else {
            return SavesRule::GAP;
        };
        self.words.extend(entry);
        self.known.insert(entry, rule);
        rule
    }
}

/// Returns the saves of `row`: of all registers but rsp and rbp, which rules cover.
pub(crate) fn translate<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    context: RowContext,
    row: &gimli::UnwindTableRow<usize>,
    long: &mut LongSaves,
) -> SavesRule {
    let mut saved = [Saved::Unknown; LONG_WORDS];
    for number in PRESERVED {
        saved[usize::from(number)] = Saved::Same;
    }
    let mut sp_is_cfa = true;
    for (register, rule) in row.registers() {
        if *register == gimli::X86_64::RSP {
            sp_is_cfa = *rule == gimli::RegisterRule::ValOffset(0);
        }
        let general = context
            .architecture
            .number(*register)
            .filter(|&number| ![SP, FP, PC].contains(&number));
        if let Some(slot) = general.and_then(|number| saved.get_mut(usize::from(number))) {
            *slot = where_saved(section, context, *register, rule);
        }
    }
    // A file can name one of them as the column of the return address: it is not a register then.
    if let Some(slot) = saved.get_mut(usize::from(context.return_address.0)) {
        *slot = Saved::Unknown;
    }
    if !sp_is_cfa {
        // Walks take the caller's stack pointer for the CFA: wrong for this row.
        for slot in &mut saved {
            if matches!(slot, Saved::Slot(long::AT_CFA, _)) {
                *slot = Saved::Unknown;
            }
        }
    }
    long.pack(&saved)
}

/// Returns the saves of a plain row; `None` if the row must go through [`translate`].
pub(crate) fn translate_plain(row: &PlainRow, long: &mut LongSaves) -> Option<SavesRule> {
    if row.kept[usize::from(SP)] != PlainSave::Unmentioned {
        return None;
    }
    let mut saved = [Saved::Unknown; LONG_WORDS];
    for number in PRESERVED {
        saved[usize::from(number)] = Saved::Same;
    }
    for (number, (slot, &kept)) in (0..).zip(saved.iter_mut().zip(&row.kept)) {
        if ![SP, FP].contains(&number) {
            match kept {
                PlainSave::Unmentioned => {}
                PlainSave::Same => *slot = Saved::Same,
                PlainSave::Undefined => *slot = Saved::Unknown,
                PlainSave::AtCfa(offset) => *slot = Saved::slot(long::AT_CFA, offset.into()),
            }
        }
    }
    Some(long.pack(&saved))
}

/// Returns the location by one rule; unknown for a register that is given as a value or in another register.
#[allow(
    clippy::wildcard_enum_match_arm,
    reason = "whatever else gimli has is no place in memory"
)]
fn where_saved<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    context: RowContext,
    register: gimli::Register,
    rule: &gimli::RegisterRule<usize>,
) -> Saved {
    match *rule {
        gimli::RegisterRule::SameValue => Saved::Same,
        gimli::RegisterRule::Register(of) if of == register => Saved::Same,
        gimli::RegisterRule::Offset(offset) => Saved::slot(long::AT_CFA, offset),
        gimli::RegisterRule::Expression(slot) => {
            let ops = expression::ops(section, context, slot).unwrap_or_default();
            match *ops.as_slice() {
                [op] if op.code == Opcode::Register && op.operand == SP => {
                    Saved::slot(long::AT_SP, op.immediate.into())
                }
                [op] if op.code == Opcode::Register && op.operand == FP => {
                    Saved::slot(long::AT_FP, op.immediate.into())
                }
                _ => Saved::Unknown,
            }
        }
        _ => Saved::Unknown,
    }
}
