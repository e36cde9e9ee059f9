//! The part of a report that a portion of a process's memory belongs to.

use super::Tracks;
use crate::census::kind::Kind;
use crate::census::portions::Portion;
use crate::maps::MapsName;
use crate::smaps::Resident;
use leak_report::model::MemoryKind;

/// Part of the resident memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Memory of the allocator whose blocks are traced.
    Allocator,
    /// Other memory.
    Kind(MemoryKind),
}

/// Part that a portion of `mapping` belongs to. `is_live` is set if something outstanding is in it.
pub(super) fn place(portion: &Portion, mapping: &Resident, tracks: Tracks, is_live: bool) -> Place {
    let kind = match portion.kind {
        Kind::BrkHeap | Kind::GlibcArena | Kind::NamedHeap | Kind::KnownHeap => return Place::Allocator,
        // Each large block is a mapping, which `--mmap` counts itself.
        Kind::GlibcBlocks | Kind::MuslGroups if tracks != Tracks::Mappings => return Place::Allocator,
        // Without blocks, the program can have mapped it as well.
        Kind::GlibcBlocks | Kind::MuslGroups | Kind::LibraryHeap => MemoryKind::AllocatorMappings,
        Kind::MainStack => return Place::Kind(MemoryKind::RunningStacks),
        Kind::RunningStack => MemoryKind::RunningStacks,
        Kind::UnjoinedStack => MemoryKind::UnjoinedStacks,
        Kind::CachedStack => MemoryKind::CachedStacks,
        Kind::EndedStack => MemoryKind::EndedStacks,
        Kind::ProgramData if is_file(mapping) => return Place::Kind(MemoryKind::Files),
        Kind::ProgramData | Kind::LoaderData => MemoryKind::ProgramData,
        Kind::ProgramCode | Kind::MappedFile | Kind::Device => return Place::Kind(MemoryKind::Files),
        Kind::GeneratedCode => MemoryKind::GeneratedCode,
        Kind::JvmHeap => MemoryKind::JavaHeap,
        Kind::JvmOther => MemoryKind::JavaOther,
        Kind::PythonArenas => MemoryKind::PythonArenas,
        Kind::GoHeap => MemoryKind::GoHeap,
        Kind::GoRuntime => MemoryKind::GoRuntime,
        Kind::V8Heap => MemoryKind::V8Heap,
        Kind::BrowserHeaps => MemoryKind::BrowserHeaps,
        Kind::DotNet => MemoryKind::DotNet,
        Kind::DatabaseBuffers => MemoryKind::DatabaseBuffers,
        Kind::SharedAnonymous | Kind::MemoryFile | Kind::SystemV | Kind::SharedFile => {
            return Place::Kind(MemoryKind::Shared);
        }
        Kind::KernelPages => return Place::Kind(MemoryKind::KernelPages),
        Kind::Named | Kind::Hugetlb => MemoryKind::Mappings,
        Kind::Unexplained => of_unexplained(mapping),
        Kind::Reserved => MemoryKind::Unexplained,
    };
    match tracks {
        // Where blocks are, their allocator has the memory.
        Tracks::Blocks if is_live => Place::Allocator,
        Tracks::Blocks | Tracks::Mappings | Tracks::Pages => Place::Kind(kind),
    }
}

/// Kind of memory of no known purpose: private memory that the program can use was mapped by a part of it.
fn of_unexplained(mapping: &Resident) -> MemoryKind {
    let entry = &mapping.entry;
    match entry.readable && entry.writable && !entry.shared && !is_file(mapping) {
        true => MemoryKind::Mappings,
        false => MemoryKind::Unexplained,
    }
}

fn is_file(mapping: &Resident) -> bool {
    matches!(mapping.entry.name, MapsName::File { .. })
}
