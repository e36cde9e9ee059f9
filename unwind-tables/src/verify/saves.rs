//! Compares where an image says that registers are saved with what gimli makes of the row.

use gimli::UnwindSection;

use super::evaluate::{self, Evaluator, Row};
use super::{Comparison, Outcome, SEEDS};
use crate::addr::Svma;
use crate::image::{Image, ImageView};
use crate::program::{FP, REGISTERS, SP};
use crate::saves::{self, Saved, long};

impl Comparison<'_> {
    /// Of each register that the image knows: whether the caller's value is what the row gives. What the image does not
    /// know ends a walk, and is no error.
    pub(super) fn compare_saves<'a, S: UnwindSection<evaluate::Slice<'a>>>(
        &mut self,
        evaluator: &Evaluator<'_, 'a, S>,
        row: &Row,
        at: Svma,
    ) {
        let Some(image) = self.image.filter(|image| image.has_saves()) else {
            return;
        };
        let state = self.state(SEEDS[0], at);
        let numbers = (0..REGISTERS).filter(|number| ![SP, FP].contains(number));
        for (number, saved) in numbers.map(|number| (number, saved_at(image, at, number))) {
            let slot = |base: u64, offset: i32| state.memory(base.wrapping_add_signed(offset.into()));
            let value = match saved {
                Saved::Unknown => continue,
                Saved::Same => state.general[usize::from(number)],
                Saved::Slot(long::AT_SP, offset) => slot(state.sp(), offset),
                Saved::Slot(long::AT_FP, offset) => slot(state.general[usize::from(FP)], offset),
                // Without a CFA, no walk comes to the caller.
                Saved::Slot(_, offset) => match evaluator.cfa(row, state) {
                    Some(cfa) => slot(cfa, offset),
                    None => continue,
                },
            };
            self.found.saved += 1;
            let expected = evaluator.saved(row, number, state);
            if expected != Some(value) {
                let register = |value| Outcome::Register { number, value };
                self.differ(at, register(Some(value)), register(expected));
            }
        }
    }
}

/// Where `image` says that the register is in the caller of the frame at `at`.
fn saved_at(image: &Image, at: Svma, number: u8) -> Saved {
    let words = ImageView {
        words: image.words(),
        at: 0,
    };
    let rule = words.saves().map(|saves| saves.rule_at(at));
    rule.map_or(Saved::Unknown, |rule| saves::saved(words, rule, number))
}
