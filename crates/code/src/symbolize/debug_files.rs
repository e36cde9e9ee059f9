//! Sources of debug files: the targets' file systems, then memleak's own, then, if configured, debuginfod
//! servers.

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::debug_file::{BuildId, DebugLinks, SupplementaryLink};
use super::debuginfod::{Debuginfod, Fetch};

pub(super) struct DebugFiles {
    /// Root directories of file systems, in search order.
    pub(super) roots: Vec<PathBuf>,
    /// Used when no root has a file.
    pub(super) servers: Option<Debuginfod>,
    awaited: RefCell<Vec<BuildId>>,
}

pub(super) struct DebugFile {
    pub(super) file: File,
    /// Path in the root in which it was found; `None` for a server's file.
    pub(super) path: Option<PathBuf>,
}

impl DebugFiles {
    /// Makes a finder that searches each of `roots` in turn.
    pub(super) fn new(roots: Vec<PathBuf>) -> Self {
        Self {
            roots,
            servers: None,
            awaited: RefCell::default(),
        }
    }

    /// Finds the debug file of the object at `object`, by the object's `links`.
    pub(super) fn debug_file(&self, links: &DebugLinks, object: &Path) -> Option<DebugFile> {
        if let Some(opened) = links.find(object, &self.roots) {
            return Some(DebugFile {
                file: opened.file,
                path: Some(opened.path),
            });
        }
        let file = self.fetch(links.build_id()?, object)?;
        Some(DebugFile { file, path: None })
    }

    /// Finds the supplementary file of a debug file at `linking`, which belongs to the object at `object`.
    pub(super) fn supplementary(
        &self,
        link: &SupplementaryLink,
        linking: Option<&Path>,
        object: &Path,
    ) -> Option<File> {
        let found = link.find(linking, &self.roots);
        found.or_else(|| self.fetch(link.build_id(), object))
    }

    /// Takes the build-ids of files that are still being fetched, of all requests since the last call.
    pub(super) fn take_awaited(&self) -> Vec<BuildId> {
        self.awaited.take()
    }

    fn fetch(&self, id: &BuildId, object: &Path) -> Option<File> {
        // An object without a path is the vDSO, the kernel's own code.
        let servers = self.servers.as_ref().filter(|_| object.is_absolute())?;
        match servers.find(id, object) {
            Fetch::Found(file) => Some(file),
            Fetch::Missing => None,
            Fetch::NotYet => {
                self.awaited.borrow_mut().push(id.clone());
                None
            }
        }
    }
}
