//! Stacks cut to their innermost frames, as `--perf-max-stack-depth` asks. Pure.

use unwind_tables::walk::End;

use crate::model::Snapshot;

/// `snapshot` with at most `depth` frames of each stack, the innermost. Those that are cut end there, however they went
/// on: what they have in common is all that is known of them.
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
