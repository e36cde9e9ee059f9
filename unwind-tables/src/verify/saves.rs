//! Compares the saves of an image with gimli's evaluation of the row.

use gimli::UnwindSection;

use super::evaluate::{self, Evaluator, Row};
use super::{Comparison, Outcome, SEEDS};
use crate::addr::Svma;
use crate::image::{Image, ImageView};
use crate::program::{FP, REGISTERS, SP};
use crate::saves::{self, Saved, long};

impl Comparison<'_> {
    /// Compares, for each register whose location the image knows, the caller's value with the row's. An
    /// unknown one ends a walk, and is not a difference.
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
                // Without a CFA, no walk gets to the caller.
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

/// Returns the location by `image` of a register of the caller of the frame at `at`.
fn saved_at(image: &Image, at: Svma, number: u8) -> Saved {
    let words = ImageView {
        words: image.words(),
        at: 0,
    };
    let at = image.places().in_image(at);
    let rule = at.and_then(|at| Some(words.saves()?.rule_at(at)));
    rule.map_or(Saved::Unknown, |rule| saves::saved(words, rule, number))
}
