//! Truncates stacks to their innermost frames (`--perf-max-stack-depth`). Pure.

use unwind_tables::walk::End;

use crate::model::Snapshot;

/// Copies `snapshot` with at most `depth` frames per stack, the innermost. Truncated stacks end there, whatever their
/// original end, so that stacks with equal innermost frames are merged.
pub fn innermost(snapshot: &Snapshot, depth: usize) -> Snapshot {
    let mut snapshot = snapshot.clone();
    for stack in &mut snapshot.stacks {
        if stack.frames.len() <= depth {
            continue;
        }
        stack.frames.truncate(depth);
        stack.end = End::DepthLimit;
        if let Some(last) = stack.frames.last() {
            stack.end_pc = last.pc;
        }
    }
    snapshot
}
