//! Truncates stacks to their innermost frames (`--perf-max-stack-depth`). Pure.

use unwind_tables::walk::{End, FoundBy, Frame, LeftOut};

use crate::model::{Snapshot, StackTotals};

/// Copies `snapshot` with at most `depth` frames per stack, the innermost. Truncated stacks end there,
/// whatever their original end, so that stacks with equal innermost frames are merged.
pub fn innermost(snapshot: &Snapshot, depth: usize) -> Snapshot {
    let mut snapshot = snapshot.clone();
    for stack in &mut snapshot.stacks {
        cut(stack, depth);
    }
    snapshot
}

/// Truncates a stack. Frames that were found but not kept count, too: their number and position are known.
fn cut(stack: &mut StackTotals, depth: usize) {
    let (after, missing) = stack.left_out.map_or((0, 0), |left_out| {
        (left_out.after as usize, left_out.frames as usize)
    });
    if stack.frames.len().saturating_add(missing) <= depth {
        return;
    }
    let within = depth.saturating_sub(after).min(missing);
    let beyond = stack.frames.split_off(depth - within);
    stack.left_out = stack.left_out.filter(|_| within > 0).map(|left_out| LeftOut {
        frames: u32::try_from(within).unwrap_or(u32::MAX),
        ..left_out
    });
    stack.end = End::DepthLimit;
    // A Python function has no address; the native frame that runs it is the next one outwards.
    let native = |frame: &&Frame| frame.found_by != FoundBy::Python;
    let last = stack.frames.iter().rfind(native);
    if let Some(last) = last.or_else(|| beyond.iter().find(native)) {
        stack.end_pc = last.pc;
    }
}
