//! The lines of a report for people that say where a process's resident memory is. The word "byte" must not occur
//! (see `text`).

use super::{TargetFacts, size};
use crate::memory::Parts;

/// The lines of one process; `several` if it must be named.
pub(super) fn lines(target: &TargetFacts, several: bool) -> Vec<String> {
    let Some(parts) = &target.memory else {
        return Vec::new();
    };
    let whose = match several {
        true => format!(" of {}", target.pid),
        false => String::new(),
    };
    let mut lines = vec![format!("{} resident{whose}:", size(parts.rss))];
    let some = named(parts).into_iter().filter(|&(bytes, _)| bytes > 0);
    lines.extend(some.map(|(bytes, what)| format!("  {:<28} {what}", size(bytes))));
    if parts.not_resident > 0 {
        lines.push(format!(
            "and {} live that is not resident: never touched, or swapped out",
            size(parts.not_resident)
        ));
    }
    lines
}

fn named(parts: &Parts) -> [(u64, &'static str); 7] {
    [
        (parts.tracked, "live, of this trace"),
        (
            parts.before_attach_at_most,
            "at most: live from before the attach (was the allocator's then)",
        ),
        (
            parts.slack_at_least,
            "at least: free in the allocator, or its own",
        ),
        (parts.thread_stacks, "stacks of threads"),
        (parts.files, "files"),
        (parts.shared, "shared memory"),
        (
            parts.unexplained,
            "unexplained: what the program mapped by itself, above all (--mmap traces that)",
        ),
    ]
}
