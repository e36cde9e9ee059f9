//! Logs which mapped files have no table because they could not be read, each once.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::process::{MappedCode, Mappings, Modules, Unreadable};

/// Maximum number of files that are named.
const MAX_NAMED: usize = 1000;

/// Files that were named.
#[derive(Debug, Default)]
pub(super) struct UnreadableLog(HashSet<PathBuf>);

impl UnreadableLog {
    /// Logs those of `mappings` that were not named before.
    pub(super) fn log(&mut self, mappings: &Mappings, modules: &Modules) {
        for entry in mappings.entries() {
            match &entry.code {
                MappedCode::Unreadable {
                    // Not logged: a kernel page is no file, and in place of a file that is gone, the next
                    // reading of the mappings finds another.
                    why: Unreadable::KernelPage | Unreadable::Gone,
                    ..
                } => {}
                // One warning for all of them.
                MappedCode::Unreadable {
                    path,
                    why: why @ Unreadable::TooMany(_),
                } => {
                    if self.0.insert(PathBuf::new()) {
                        tracing::warn!(
                            "no unwind table for {} and others: {why}: stacks end there",
                            path.display()
                        );
                    }
                }
                MappedCode::Unreadable { path, why } => self.warn_once(path, &why.to_string()),
                MappedCode::Module { module, .. } if mappings.is_different(*module) => {
                    if let Some(module) = modules.get(*module) {
                        // Not limited to once: it may have been unmapped just when it was read.
                        tracing::debug!(
                            "another file than {} is mapped in its place",
                            module.path.display()
                        );
                    }
                }
                MappedCode::Module { .. } | MappedCode::Generated { .. } | MappedCode::Trampoline => {}
            }
        }
    }

    fn warn_once(&mut self, path: &Path, why: &str) {
        if self.0.len() < MAX_NAMED && self.0.insert(path.to_owned()) {
            tracing::warn!("no unwind table for {}: {why}: stacks end there", path.display());
            if self.0.len() == MAX_NAMED {
                tracing::warn!("further files without an unwind table are not listed");
            }
        }
    }
}
