//! Checks that the process's memory contains the objects that its mappings were resolved to.
//!
//! A file is opened after the mappings were read, and not always by its inode; in between, and by another
//! path, it can be another file. Its fingerprint shows that. Reading the fingerprint also brings its pages
//! into memory, where walks, which cannot wait for a disk, compare it again.

use std::collections::BTreeSet;

use unwind_tables::addr::Bias;

use super::mappings::{MappedCode, Mappings};
use super::modules::{Module, ModuleId, Modules};
use super::process_memory::ProcessMemory;

/// Modules with at least one mapping whose memory differs from the file's fingerprint.
pub(super) fn different(
    mappings: &Mappings,
    modules: &Modules,
    memory: &ProcessMemory,
) -> BTreeSet<ModuleId> {
    let entries = mappings.entries().iter();
    let placed = entries.filter_map(|entry| match entry.code {
        MappedCode::Module { module, bias } => Some((modules.get(module)?, bias)),
        MappedCode::Generated { .. } | MappedCode::Trampoline | MappedCode::Unreadable { .. } => None,
    });
    placed
        .filter(|&(module, bias)| mappings.is_loaded(module, bias))
        .filter(|&(module, bias)| differs(module, bias, memory))
        .map(|(module, _)| module.id)
        .collect()
}

/// Returns whether the fingerprint in memory is another one. Memory that cannot be read proves nothing: the
/// mapping may be gone by now, which walks notice.
fn differs(module: &Module, bias: Bias, memory: &ProcessMemory) -> bool {
    let words = module.fingerprint.map(|fingerprint| fingerprint.words);
    words.into_iter().flatten().any(|(svma, word)| {
        let mut found = [0; 8];
        memory
            .read_exact_at(&mut found, bias.to_avma(svma))
            .is_ok_and(|()| u64::from_le_bytes(found) != word)
    })
}
