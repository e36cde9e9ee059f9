//! Mappings by purpose, one line each: which kinds can be leaks, and which are ordinary use.

use super::{counted, size};
use crate::model::Report;
use crate::model::{Amount, RegionKind};

/// Lines by kind of mapping; none without `--mmap`.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let of = |kind| -> Amount {
        let stacks = report.stacks().filter(|stack| stack.kind == Some(kind));
        stacks.map(|stack| stack.outstanding.amount).sum()
    };
    let kinds = RegionKind::ALL.into_iter().map(|kind| (kind, of(kind)));
    let some = kinds.filter(|(_, amount)| amount.blocks > 0 || amount.bytes > 0);
    some.map(|(kind, amount)| {
        let (bytes, mappings) = (size(amount.bytes), counted(amount.blocks, "mapping"));
        format!("{bytes} in {mappings}: {}", explain(kind))
    })
    .collect()
}

fn explain(kind: RegionKind) -> String {
    let whether = match (kind, kind.is_suspect()) {
        (_, true) => ", among the stacks shown",
        (RegionKind::Allocator, false) => "; not shown",
        (_, false) => ", not shown",
    };
    format!("{}{whether}", meaning(kind))
}

/// Purpose of mappings of this kind.
pub(super) const fn meaning(kind: RegionKind) -> &'static str {
    match kind {
        RegionKind::Anonymous => "private memory",
        RegionKind::File => "files",
        RegionKind::Shared => "memory shared with children",
        RegionKind::Reservation => "address space that cannot be accessed",
        RegionKind::ThreadStack => "thread stacks",
        RegionKind::Allocator => "memory of an allocator for its blocks (trace these without --mmap)",
        RegionKind::MainStack => "the first thread's stack",
        RegionKind::ManagedHeap => "a runtime's heap",
        RegionKind::HugePages => "huge pages",
        RegionKind::MemoryFile => "files in memory without a name",
        RegionKind::Descriptor => "open files, with what the kernel keeps for them",
    }
}
