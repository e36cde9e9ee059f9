//! Removes the frames of code that announces blocks by USDT probes. Pure.
//!
//! The stack of an announced block begins at the probe, in the library or the part of the program that
//! samples allocations.

use unwind_tables::walk::{FoundBy, Frame};

use crate::model::StackTotals;

/// Removes the innermost frames of each stack for which `announcer` returns the announcing code: those before
/// the first frame that is not `within` that code. A stack without other frames stays as it is.
pub fn leave_out_providers<M>(
    stacks: &mut [StackTotals],
    announcer: impl Fn(&StackTotals) -> Option<M>,
    within: impl Fn(&M, &StackTotals, &Frame) -> bool,
) {
    for stack in stacks {
        let Some(code) = announcer(stack) else {
            continue;
        };
        // A Python function is never within that code.
        let is_other = |frame: &Frame| frame.found_by == FoundBy::Python || !within(&code, stack, frame);
        let first = stack.frames.iter().position(is_other);
        if let Some(first) = first {
            stack.frames.drain(..first);
            if let Some(left_out) = &mut stack.left_out {
                let removed = u32::try_from(first).unwrap_or(u32::MAX);
                left_out.after = left_out.after.saturating_sub(removed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use unwind_tables::addr::Avma;
    use unwind_tables::walk::{FoundBy, LeftOut};

    use super::super::tests::totals;
    use super::*;
    use crate::model::Amount;

    /// The position of left-out frames moves with the frames before it.
    #[test]
    fn frames_left_out_stay_where_they_are() {
        let frame = |pc| Frame {
            pc: Avma::new(pc),
            found_by: FoundBy::Cfi,
            exact: false,
        };
        for (of_provider, after) in [(0, 3), (1, 2), (3, 0), (4, 0)] {
            let mut stack = StackTotals {
                frames: (0..6).map(frame).collect(),
                left_out: Some(LeftOut { after: 3, frames: 9 }),
                ..totals(1, Amount::default(), Amount::default())
            };
            let is_within = |&(): &(), _: &StackTotals, frame: &Frame| frame.pc < Avma::new(of_provider);
            leave_out_providers(std::slice::from_mut(&mut stack), |_| Some(()), is_within);
            assert_eq!(stack.frames.first(), Some(&frame(of_provider)));
            assert_eq!(stack.left_out, Some(LeftOut { after, frames: 9 }));
        }
    }

    /// A function of Python, whose number is not an address, is never within announcing code.
    #[test]
    fn functions_of_python_are_kept() {
        let frame = |(pc, found_by)| Frame {
            pc: Avma::new(pc),
            found_by,
            exact: false,
        };
        let frames = [(1, FoundBy::Probe), (2, FoundBy::Python), (3, FoundBy::Cfi)].map(frame);
        let mut stack = StackTotals {
            frames: frames.to_vec(),
            ..totals(1, Amount::default(), Amount::default())
        };
        leave_out_providers(std::slice::from_mut(&mut stack), |_| Some(()), |&(), _, _| true);
        assert_eq!(stack.frames, frames[1..]);
    }
}
