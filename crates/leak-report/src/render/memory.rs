//! Lines of text reports about the resident memory of a process.

use super::estimates::whole;
use super::{short_size, size};
use crate::model::printable::Printable;
use crate::model::{KindBytes, MemoryGroup, MemoryKind, NamedBytes, Parts, TargetFacts};

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
    let row = |(bytes, description)| format!("  {:<28} {description}", size(bytes));
    lines.extend(of_allocator(parts).into_iter().chain(elsewhere(parts)).map(row));
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
    lines.extend(beside(parts));
    lines
}

/// Returns whether an amount is told by itself.
fn matters(bytes: u64, rss: u64) -> bool {
    /// Minimum size of a part, in bytes and as a divisor of the resident memory.
    const MIN_PART: u64 = 64 << 10;
    const MIN_SHARE: u64 = 1000;
    bytes >= MIN_PART.min(rss / MIN_SHARE).max(1)
}

/// Parts of the allocator's memory.
fn of_allocator(parts: &Parts) -> Vec<(u64, String)> {
    let all = [
        (parts.tracked, "allocated during this trace"),
        (
            parts.before_attach_at_most,
            "allocated before the attach, at most",
        ),
        (
            parts.slack_at_least,
            "free in the allocator, or its own data, at least",
        ),
    ];
    let some = all.into_iter().filter(|&(bytes, _)| bytes > 0);
    some.map(|(bytes, description)| (bytes, description.to_owned()))
        .collect()
}

/// Parts outside the allocator: those that matter, and the sum of the others.
fn elsewhere(parts: &Parts) -> Vec<(u64, String)> {
    if parts.kinds.is_empty() {
        return without_kinds(parts);
    }
    let named = |kind: &KindBytes| {
        let names = match kind.kind.group() {
            MemoryGroup::Shared => names(&parts.named_shared),
            MemoryGroup::ThreadStacks | MemoryGroup::Files | MemoryGroup::Unexplained => String::new(),
        };
        (kind.bytes, format!("{}{names}", description(kind.kind)))
    };
    let (told, small): (Vec<_>, Vec<_>) = parts
        .kinds
        .iter()
        .filter(|kind| kind.bytes > 0)
        .partition(|kind| matters(kind.bytes, parts.rss));
    let mut lines: Vec<_> = told.into_iter().map(named).collect();
    match small.as_slice() {
        [] => {}
        [one] => lines.push(named(one)),
        small => {
            let sum = small
                .iter()
                .fold(0, |sum: u64, kind| sum.saturating_add(kind.bytes));
            lines.push((sum, "smaller parts".to_owned()));
        }
    }
    lines
}

/// Parts as versions recorded them that did not know kinds.
fn without_kinds(parts: &Parts) -> Vec<(u64, String)> {
    let all = [
        (parts.thread_stacks, "thread stacks"),
        (parts.files, description(MemoryKind::Files)),
        (parts.shared, description(MemoryKind::Shared)),
        (
            parts.unexplained,
            "unexplained, usually mapped by the program itself (--mmap traces that)",
        ),
    ];
    let some = all.into_iter().filter(|&(bytes, _)| bytes > 0);
    some.map(|(bytes, description)| (bytes, description.to_owned()))
        .collect()
}

/// The named ones of shared memory, behind a colon.
fn names(named: &[NamedBytes]) -> String {
    let each: Vec<_> = named
        .iter()
        .map(|NamedBytes { name, bytes }| format!("{} {}", Printable(name), short_size(*bytes)))
        .collect();
    match each.is_empty() {
        true => String::new(),
        false => format!(": {}", each.join(", ")),
    }
}

/// Kind of memory in plain words.
pub(super) fn description(kind: MemoryKind) -> &'static str {
    match kind {
        MemoryKind::RunningStacks => "stacks of running threads",
        MemoryKind::UnjoinedStacks => "stacks of threads that ended and were not joined",
        MemoryKind::CachedStacks => "stacks of ended threads, kept by the C library for new ones",
        MemoryKind::EndedStacks => "stacks of ended threads, joined or not",
        MemoryKind::Files => "files",
        MemoryKind::ProgramData => "variables beyond files, and the loader's data",
        MemoryKind::GeneratedCode => "generated code",
        MemoryKind::Shared => "shared memory",
        MemoryKind::JavaHeap => "heap of Java",
        MemoryKind::JavaOther => "other memory of the Java virtual machine",
        MemoryKind::PythonArenas => "Python's arenas for small objects",
        MemoryKind::GoHeap => "heap of Go",
        MemoryKind::GoRuntime => "records of Go's runtime",
        MemoryKind::V8Heap => "heap of JavaScript (V8)",
        MemoryKind::BrowserHeaps => "heaps of the browser",
        MemoryKind::DotNet => "memory of .NET",
        MemoryKind::DatabaseBuffers => "buffers of the database",
        MemoryKind::AllocatorMappings => "mappings of the allocator, by their kind, without traced blocks",
        MemoryKind::HugeZeros => "zeros in huge pages: never used, or cleared (estimated)",
        MemoryKind::KernelPages => "pages that the kernel provides",
        MemoryKind::Mappings => "mapped by the program itself (--mmap traces that)",
        MemoryKind::Unexplained => "unexplained",
    }
}

/// Lines on memory that is not resident, and on zeros in the allocator's.
fn beside(parts: &Parts) -> Vec<String> {
    let matters = |&(bytes, _): &(u64, &str)| matters(bytes, parts.rss);
    let beside = &parts.beside;
    let all = [
        (beside.swapped, "swapped out"),
        (beside.page_tables, "of page tables"),
        (beside.hugetlb, "in pages of hugetlbfs"),
        (beside.sockets, "in the kernel for its sockets"),
        (
            beside.held_files,
            "in memory files without a name that it has open and not mapped",
        ),
    ];
    let told = all.into_iter().filter(matters);
    let mut lines: Vec<_> = told
        .map(|(bytes, description)| format!("plus {} {description}", size(bytes)))
        .collect();
    if let Some(cgroup) = &beside.cgroup {
        let all = [
            (cgroup.page_cache, "page cache"),
            (cgroup.slab, "slab"),
            (cgroup.sockets, "socket buffers"),
        ];
        let told = all.into_iter().filter(matters);
        let told: Vec<_> = told
            .map(|(bytes, name)| format!("{} {name}", size(bytes)))
            .collect();
        if !told.is_empty() {
            lines.push(format!("plus, in its cgroup: {}", told.join(", ")));
        }
    }
    if beside.allocator_zeros > 0 && matters(&(beside.allocator_zeros, "")) {
        lines.push(format!(
            "of the allocator's memory, about {} are zeros in huge pages: never used, or cleared",
            short_size(beside.allocator_zeros)
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::{Beside, CgroupRest};
    use crate::samples;

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
            fragmentation: None,
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

    /// Small parts are one line, and nothing is left out of the sum; names are the process's, so they are
    /// escaped.
    #[test]
    fn lines_of_kinds() {
        let kind = |kind, bytes| KindBytes { kind, bytes };
        let mut target = samples::report(Vec::new()).targets.remove(0);
        target.memory = Some(Parts {
            rss: 100 << 20,
            tracked: 60 << 20,
            thread_stacks: 70 << 10,
            files: 4096,
            shared: 30 << 20,
            unexplained: (10 << 20) - (74 << 10),
            kinds: vec![
                kind(MemoryKind::CachedStacks, 70 << 10),
                kind(MemoryKind::Files, 4096),
                kind(MemoryKind::GeneratedCode, 1 << 10),
                kind(MemoryKind::Shared, 30 << 20),
                kind(MemoryKind::Mappings, (10 << 20) - (75 << 10)),
            ],
            named_shared: vec![NamedBytes {
                name: "/memfd:a\nb".into(),
                bytes: 29 << 20,
            }],
            beside: Beside {
                swapped: 1 << 20,
                page_tables: 8 << 10,
                allocator_zeros: 2 << 20,
                cgroup: Some(CgroupRest {
                    page_cache: 5 << 20,
                    slab: 1,
                    sockets: 0,
                }),
                ..Beside::default()
            },
            ..Parts::default()
        });
        assert_eq!(
            lines(&target, false, None),
            [
                "100.0 MiB (104857600 B) resident:",
                "  60.0 MiB (62914560 B)        allocated during this trace",
                "  70.0 KiB (71680 B)           stacks of ended threads, kept by the C library for new ones",
                "  30.0 MiB (31457280 B)        shared memory: /memfd:a\\nb 29.0 MiB",
                "  9.9 MiB (10408960 B)         mapped by the program itself (--mmap traces that)",
                "  5.0 KiB (5120 B)             smaller parts",
                "plus 1.0 MiB (1048576 B) swapped out",
                "plus, in its cgroup: 5.0 MiB (5242880 B) page cache",
                "of the allocator's memory, about 2.0 MiB are zeros in huge pages: never used, or cleared",
            ]
        );
    }

    /// Each kind has a name of its own.
    #[test]
    fn descriptions_differ() {
        let all: BTreeSet<_> = MemoryKind::ALL.into_iter().map(description).collect();
        assert_eq!(all.len(), MemoryKind::ALL.len());
    }
}
