//! Mapped files, by their resident memory.

use std::collections::HashMap;
use std::path::PathBuf;

use super::kind::Kind;
use super::portions::Portion;
use crate::maps::MapsName;
use crate::smaps::{Amounts, Resident};

/// Memory of a file that is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMemory {
    /// Path in the process's mount namespace.
    pub path: PathBuf,
    /// Kind of the file's first mapping.
    pub kind: Kind,
    pub amounts: Amounts,
}

/// Returns the files with the most resident memory, descending, at most `count`.
pub(super) fn largest(mappings: &[Resident], portions: &[Portion], count: usize) -> Vec<FileMemory> {
    let mut files: HashMap<((u32, u32), u64), FileMemory> = HashMap::new();
    for portion in portions {
        let Some(Resident { entry, .. }) = mappings.get(portion.mapping) else {
            continue;
        };
        let MapsName::File { path, .. } = &entry.name else {
            continue;
        };
        let file = files
            .entry((entry.device, entry.inode))
            .or_insert_with(|| FileMemory {
                path: path.clone(),
                kind: portion.kind,
                amounts: Amounts::default(),
            });
        file.amounts.add(&portion.amounts);
    }
    let mut files: Vec<_> = files.into_values().collect();
    files.sort_by(|a, b| {
        let by_bytes = b.amounts.resident.cmp(&a.amounts.resident);
        by_bytes.then_with(|| a.path.cmp(&b.path))
    });
    files.truncate(count);
    files
}
