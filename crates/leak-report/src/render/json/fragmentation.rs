//! Uses of a process's allocator memory in JSON.

use serde::Serialize;

use crate::model::{AllocatorMemory, Fragmentation, HeldBytes, Report, TargetFacts};

/// Bytes of a process's allocators, in all and by allocator; or why they are not known.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum FragmentationJson {
    Known {
        #[serde(flatten)]
        total: HeldBytes,
        /// Part of `pinned` that stays because of blocks which no stack has.
        pinned_by_others: u64,
        allocators: Vec<AllocatorJson>,
    },
    Unknown {
        unknown_because: &'static str,
    },
}

/// Memory of one allocator.
#[derive(Serialize)]
pub(super) struct AllocatorJson {
    name: &'static str,
    /// Call that gives back what is trimmable; null if there is none.
    trimmed_by: Option<&'static str>,
    #[serde(flatten)]
    held: HeldBytes,
}

impl FragmentationJson {
    /// Memory of a process; `None` if it was not asked for.
    pub(super) fn of(target: &TargetFacts, report: &Report) -> Option<Self> {
        let fragmentation = target.fragmentation.as_ref()?;
        Some(match fragmentation {
            Fragmentation::Known(memory) => Self::Known {
                total: memory.iter().map(|memory| memory.held).sum(),
                pinned_by_others: report.pinned_by_others(target).unwrap_or_default(),
                allocators: memory.iter().map(AllocatorJson::from).collect(),
            },
            Fragmentation::Unknown(reason) => Self::Unknown {
                unknown_because: reason.name(),
            },
        })
    }
}

impl From<&AllocatorMemory> for AllocatorJson {
    fn from(&AllocatorMemory { allocator, held }: &AllocatorMemory) -> Self {
        Self {
            name: allocator.name(),
            trimmed_by: allocator.trim(),
            held,
        }
    }
}
