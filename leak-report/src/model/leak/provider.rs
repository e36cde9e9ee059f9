//! Leaves out the frames of code that announces blocks by USDT probes. Pure.
//!
//! Such a stack begins at the probe, in the library that samples allocations, or in a part of the program that does.

use unwind_tables::walk::Frame;

use crate::model::StackTotals;

/// Removes the innermost frames of each stack that `announcer` has an answer for: those up to the first that is not `within`
/// that code. A stack that has no other frames stays as it is.
pub fn leave_out_providers<M>(
    stacks: &mut [StackTotals],
    announcer: impl Fn(&StackTotals) -> Option<M>,
    within: impl Fn(&M, &StackTotals, &Frame) -> bool,
) {
    for stack in stacks {
        let Some(code) = announcer(stack) else {
            continue;
        };
        let first = stack.frames.iter().position(|frame| !within(&code, stack, frame));
        if let Some(first) = first {
            stack.frames.drain(..first);
        }
    }
}
