//! Sentences about causes: what each means, and what to do next.

use leak_report::model::AllocatorName;
use leak_report::model::diagnosis::{CauseKind, Place};
use leak_report::render::{counted, short_size};

use crate::observed::{HeapUse, Site};

/// Meaning of page tables that grow.
pub(crate) const PAGE_TABLES: &str =
    "the kernel needs a page of tables for each 2 MiB that are touched somewhere";
/// Advice about page tables.
pub(crate) const AFTER_PAGE_TABLES: &str = "mend the other causes; or map and touch memory more densely";

/// Meaning of memory of a kind that grows; `holder` holds its blocks.
pub(crate) fn meaning(kind: CauseKind, holder: Option<&str>) -> String {
    match (kind, holder) {
        (CauseKind::Kept, Some(holder)) => {
            format!("no leak by the program's pointers: {holder} holds ever more of these blocks")
        }
        (kind, _) => of_kind(kind).to_owned(),
    }
}

fn of_kind(kind: CauseKind) -> &'static str {
    match kind {
        CauseKind::Lost => "a leak: nothing in the process leads to these blocks any more",
        CauseKind::Kept => "more blocks are allocated than freed, and the process can still reach them",
        CauseKind::Pinned => {
            "fragmentation: most blocks were freed, but the few that are left keep the memory around them"
        }
        CauseKind::FreeInAllocator => {
            "no leak: the blocks were freed, but the allocator keeps their memory for later"
        }
        CauseKind::ThreadStacks => "threads are made faster than they end, or end and are never joined",
        CauseKind::Mappings => "the program maps memory and does not unmap it",
        CauseKind::SharedMemory => "memory in memfds, /dev/shm or shared mappings, outside of any heap",
        CauseKind::Kernel => {
            "the kernel holds it for the process: data that was sent and not read, or descriptors"
        }
        CauseKind::HugePages => "each touched byte has taken a huge page of 2 MiB, most of which is unused",
        CauseKind::Files => "pages of mapped files: the kernel takes them back when memory is short",
        CauseKind::Stack => "deep recursion has touched the stack, which never shrinks",
        CauseKind::ManagedHeap => {
            "the heap of the runtime grows, by objects that it still holds or not yet collects"
        }
    }
}

/// Meaning of memory of a kind that is held without use.
pub(crate) fn idle(kind: CauseKind) -> String {
    let text = match kind {
        CauseKind::ThreadStacks => {
            "stacks of threads that have ended and were not joined, or are kept for later ones"
        }
        CauseKind::Lost
        | CauseKind::Kept
        | CauseKind::Pinned
        | CauseKind::FreeInAllocator
        | CauseKind::Mappings
        | CauseKind::SharedMemory
        | CauseKind::Kernel
        | CauseKind::HugePages
        | CauseKind::Files
        | CauseKind::Stack
        | CauseKind::ManagedHeap => of_kind(kind),
    };
    text.to_owned()
}

fn at(place: &Place) -> String {
    match place.source() {
        Some((file, line)) => format!("`{}` {file}:{line}", place.function),
        None => format!("`{}`", place.function),
    }
}

/// Advice about a place.
pub(crate) fn of_site(kind: CauseKind, site: &Site) -> String {
    let at = at(&site.place);
    match kind {
        CauseKind::Lost => format!("free what {at} allocates, or keep a pointer to it"),
        CauseKind::Kept => match &site.holder {
            Some(holder) => format!("give {holder} a bound, or remove from it what {at} adds"),
            None => format!("free what {at} allocates, or give what holds it a bound"),
        },
        CauseKind::ThreadStacks => format!("join or detach the threads made at {at}"),
        CauseKind::Mappings => format!("unmap what {at} maps"),
        CauseKind::SharedMemory => format!("close, truncate or unmap what {at} fills"),
        CauseKind::Files => format!("nothing, unless the machine lacks memory; {at} reads them"),
        CauseKind::HugePages => format!("madvise(MADV_NOHUGEPAGE) for what {at} touches"),
        CauseKind::Stack => format!("bound the recursion of {at}"),
        CauseKind::ManagedHeap => {
            format!("a heap dump of the runtime shows its objects; {at} touches new pages")
        }
        CauseKind::Kernel => format!("close what {at} opens, or read what was sent to it"),
        CauseKind::Pinned => format!(
            "{} of {at} pin {}: allocate them before short-lived ones, or from another heap",
            counted(site.pinned.blocks, "block"),
            short_size(site.pinned.bytes)
        ),
        CauseKind::FreeInAllocator => of_region(kind),
    }
}

/// Advice about memory of a kind whose place is not known.
pub(crate) fn of_region(kind: CauseKind) -> String {
    let text = match kind {
        CauseKind::Lost | CauseKind::Kept => return of_unknown_blocks(),
        CauseKind::Pinned => "allocate long-lived blocks before short-lived ones, or from another heap",
        CauseKind::FreeInAllocator => "tell the allocator to give memory back",
        CauseKind::ThreadStacks => "join threads that end, or detach them",
        CauseKind::Mappings => "`memleak --mmap` shows who maps it",
        CauseKind::SharedMemory => "`memleak --faults` shows who fills it",
        CauseKind::Kernel => {
            "close descriptors that are no longer used, and read what was sent to sockets and pipes"
        }
        CauseKind::HugePages => "madvise(MADV_NOHUGEPAGE), or touch what is mapped more densely",
        CauseKind::Files => "nothing, unless the machine lacks memory",
        CauseKind::Stack => "nothing, if that was once; otherwise bound the recursion",
        CauseKind::ManagedHeap => {
            "look at a heap dump of the runtime; for Java, `jcmd PID GC.class_histogram`"
        }
    };
    text.to_owned()
}

/// Advice about blocks whose place is not known.
pub(crate) fn of_unknown_blocks() -> String {
    "trace the blocks: `memleak --verdict -p PID`".to_owned()
}

/// Minimum bytes of free memory of other arenas for advice to have fewer.
const LEAST_SAVED: u64 = 1 << 20;

/// Advice about free memory of the heap, with amounts.
pub(crate) fn of_heap(kind: CauseKind, heap: &HeapUse) -> String {
    let call = heap.allocator.and_then(AllocatorName::trim);
    let trim = match (call, heap.trimmable) {
        (None, _) | (_, 0) => String::new(),
        (Some(call), bytes) => format!("`{call}` would give back about {}", short_size(bytes)),
    };
    match (kind, trim.is_empty()) {
        (CauseKind::FreeInAllocator, false) if heap.beyond_two >= LEAST_SAVED => {
            let saved = short_size(heap.beyond_two);
            format!("{trim}; `MALLOC_ARENA_MAX=2` would save about {saved}, as threads would share it")
        }
        (_, false) => trim,
        (kind, true) => of_region(kind),
    }
}
