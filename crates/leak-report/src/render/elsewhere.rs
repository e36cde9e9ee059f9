//! Lines about resident memory outside recorded allocations: the kinds that grow, the flag that shows their
//! origin, and free memory.

use super::short_size;
use crate::model::{Elsewhere, Parts, Report, TargetFacts};

/// Lines for all processes with such memory, which are named if there are several.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let is_one = report.targets.len() == 1;
    let allocator = match report.grows_without_calls() {
        true => grows_without_calls,
        false => free,
    };
    let of_target = |target: &TargetFacts| {
        let parts = target.memory.as_ref();
        let whose = match is_one {
            true => String::new(),
            false => format!(" of process {}", target.pid),
        };
        let lines = [
            parts.and_then(|parts| grows(parts, &whose)),
            parts.and_then(|parts| allocator(parts, &whose)),
        ];
        lines.into_iter().flatten()
    };
    report.targets.iter().flat_map(of_target).collect()
}

fn grows(parts: &Parts, whose: &str) -> Option<String> {
    let elsewhere = parts.grows_elsewhere()?;
    // Smaller parts do not explain why the process grows.
    let told = named(elsewhere)
        .into_iter()
        .filter(|&(bytes, _)| bytes > elsewhere.bytes() / 8);
    let told: Vec<_> = told
        .map(|(bytes, name)| format!("{} {name}", short_size(bytes)))
        .collect();
    Some(format!(
        "memory{whose} outside allocations has grown by {}: {}",
        short_size(elsewhere.bytes()),
        told.join(", ")
    ))
}

fn named(elsewhere: Elsewhere) -> [(u64, &'static str); 3] {
    let Elsewhere {
        thread_stacks,
        files: _,
        shared,
        unexplained,
    } = elsewhere;
    [
        (shared, "of shared memory (--mmap shows who maps it)"),
        (
            unexplained,
            "mapped by the program itself (--faults shows who touches it, --mmap who maps it)",
        ),
        (
            thread_stacks,
            "of stacks of threads (--mmap shows who starts them)",
        ),
    ]
}

fn grows_without_calls(parts: &Parts, whose: &str) -> Option<String> {
    let bytes = parts.grows_without_calls()?;
    Some(format!(
        "the allocator's memory{whose} has grown by {} without a call of a probed function (--alloc names others)",
        short_size(bytes)
    ))
}

fn free(parts: &Parts, whose: &str) -> Option<String> {
    let free = parts.mostly_free()?;
    Some(format!(
        "{} of {} resident{whose} are free blocks or overhead of the allocator, not returned to the system \
         (fragmentation, caches)",
        short_size(free),
        short_size(parts.rss)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Events, Source};
    use crate::samples;

    const MIB: u64 = 1 << 20;

    fn lines_of(parts: Parts) -> Vec<String> {
        let mut report = samples::report(Vec::new());
        report.targets[0].memory = Some(parts);
        lines(&report)
    }

    /// Only memory that makes the process grow is listed, with the flag that shows who maps it.
    #[test]
    fn what_grows() {
        let growth_elsewhere = Some(Elsewhere {
            shared: 20 * MIB,
            files: 200 * MIB,
            ..Elsewhere::default()
        });
        let parts = Parts {
            rss: 60 * MIB,
            tracked: 5 * MIB,
            growth_elsewhere,
            ..Parts::default()
        };
        let expected = "memory outside allocations has grown by 20.0 MiB: 20.0 MiB of shared memory (--mmap \
                        shows who maps it)";
        assert_eq!(lines_of(parts.clone()), [expected]);
        let allocates = Parts {
            tracked: 30 * MIB,
            ..parts.clone()
        };
        assert_eq!(lines_of(allocates), [""; 0]);
        let traces_all = Parts {
            growth_elsewhere: None,
            ..parts
        };
        assert_eq!(lines_of(traces_all), [""; 0]);
    }

    /// A heap that grows without a call of a probed function is not free memory.
    #[test]
    fn what_grows_without_calls() {
        let mut report = samples::report(Vec::new());
        report.targets[0].memory = Some(Parts {
            rss: 63 * MIB,
            slack_at_least: 60 * MIB,
            growth_elsewhere: Some(Elsewhere::default()),
            ..Parts::default()
        });
        report.events = Events::default();
        let expected = "the allocator's memory has grown by 60.0 MiB without a call of a probed function \
                        (--alloc names others)";
        assert_eq!(lines(&report), [expected]);
        report.source = Source::Usdt;
        assert!(lines(&report)[0].contains("free blocks"));
        report.source = Source::Uprobe;
        report.events.frees = 1;
        assert!(lines(&report)[0].contains("free blocks"));
    }

    /// Free memory is mentioned if it is most of the resident memory.
    #[test]
    fn what_is_free() {
        let parts = |slack_at_least| Parts {
            rss: 63 * MIB,
            slack_at_least,
            ..Parts::default()
        };
        let expected = "60.0 MiB of 63.0 MiB resident are free blocks or overhead of the allocator, not \
                        returned to the system (fragmentation, caches)";
        assert_eq!(lines_of(parts(60 * MIB)), [expected]);
        assert_eq!(lines_of(parts(30 * MIB)), [""; 0]);
    }
}
