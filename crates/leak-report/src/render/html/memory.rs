//! Rows of a page about the memory of processes.

use super::data::{MemoryKindRow, MemoryRow};
use super::snapshot::Resident;
use super::visible::visible;
use crate::model::{Beside, MemoryGroup, MemoryKind, NamedBytes, Parts};
use crate::render::memory::description;

/// Row of a kind of memory.
pub(super) fn kind_row(kind: MemoryKind) -> MemoryKindRow {
    MemoryKindRow {
        part: match kind.group() {
            MemoryGroup::ThreadStacks => "stacks",
            MemoryGroup::Files => "files",
            MemoryGroup::Shared => "shared",
            MemoryGroup::Unexplained => "unexplained",
        },
        name: description(kind),
    }
}

/// Row of a process with this number.
pub(super) fn row(process: usize, resident: &Resident) -> MemoryRow {
    let Parts {
        rss,
        tracked,
        before_attach_at_most,
        slack_at_least,
        thread_stacks,
        files,
        shared,
        unexplained,
        not_resident,
        growth_elsewhere: _,
        ref kinds,
        ref named_shared,
        beside,
    } = resident.parts;
    let number = |kind: MemoryKind| MemoryKind::ALL.iter().position(|&other| other == kind);
    let name = |NamedBytes { name, bytes }: &NamedBytes| (visible(name), *bytes);
    MemoryRow {
        process,
        parts: [
            rss,
            tracked,
            before_attach_at_most,
            slack_at_least,
            thread_stacks,
            files,
            shared,
            unexplained,
            not_resident,
        ],
        error: resident.error,
        kinds: kinds
            .iter()
            .filter_map(|each| Some((number(each.kind)?, each.bytes)))
            .collect(),
        names: named_shared.iter().map(name).collect(),
        beside: beside_row(beside),
    }
}

fn beside_row(beside: Beside) -> [u64; 9] {
    let Beside {
        swapped,
        page_tables,
        hugetlb,
        sockets,
        held_files,
        allocator_zeros,
        cgroup,
    } = beside;
    let cgroup = cgroup.unwrap_or_default();
    [
        swapped,
        page_tables,
        hugetlb,
        sockets,
        held_files,
        cgroup.page_cache,
        cgroup.slab,
        cgroup.sockets,
        allocator_zeros,
    ]
}
