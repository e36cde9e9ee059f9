//! Lines of text reports about the resident memory of a process.

use super::estimates::whole;
use super::size;
use crate::model::Parts;
use crate::model::TargetFacts;

/// Lines for one process, named if there are `several`. `tracked_error` is the standard error of the tracked
/// part if that is an estimate.
pub(super) fn lines(target: &TargetFacts, several: bool, tracked_error: Option<f64>) -> Vec<String> {
    let Some(parts) = &target.memory else {
        return Vec::new();
    };
    let of_process = match several {
        true => format!(" of {}", target.pid),
        false => String::new(),
    };
    let mut lines = vec![format!("{} resident{of_process}:", size(parts.rss))];
    let some = named(parts).into_iter().filter(|&(bytes, _)| bytes > 0);
    lines.extend(some.map(|(bytes, description)| format!("  {:<28} {description}", size(bytes))));
    if let Some(error) = tracked_error {
        lines.push(format!(
            "standard error of what was allocated during this trace: {}",
            size(whole(error))
        ));
    }
    if parts.not_resident > 0 {
        lines.push(format!(
            "plus {} allocated but not resident: never touched, or swapped out",
            size(parts.not_resident)
        ));
    }
    lines
}

fn named(parts: &Parts) -> [(u64, &'static str); 7] {
    [
        (parts.tracked, "allocated during this trace"),
        (
            parts.before_attach_at_most,
            "allocated before the attach, at most",
        ),
        (
            parts.slack_at_least,
            "free in the allocator, or its own data, at least",
        ),
        (parts.thread_stacks, "thread stacks"),
        (parts.files, "files"),
        (parts.shared, "shared memory"),
        (
            parts.unexplained,
            "unexplained, usually mapped by the program itself (--mmap traces that)",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parts of 0 bytes are omitted; memory that is not resident is not among the parts.
    #[test]
    fn lines_of_a_process() {
        let target = TargetFacts {
            pid: 17,
            instance: 1,
            parent: None,
            comm: String::new(),
            exe: None,
            ended: None,
            lack: None,
            memory: Some(Parts {
                rss: 3 << 20,
                tracked: 2 << 20,
                files: 1 << 20,
                not_resident: 1 << 30,
                ..Parts::default()
            }),
        };
        let estimated = lines(&target, true, Some(2048.4));
        assert_eq!(
            estimated[3],
            "standard error of what was allocated during this trace: 2.0 KiB (2048 B)"
        );
        let lines = lines(&target, true, None);
        assert_eq!(
            lines,
            [
                "3.0 MiB (3145728 B) resident of 17:",
                "  2.0 MiB (2097152 B)          allocated during this trace",
                "  1.0 MiB (1048576 B)          files",
                "plus 1.0 GiB (1073741824 B) allocated but not resident: never touched, or swapped out",
            ]
        );
    }
}
