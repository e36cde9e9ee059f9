//! Where debug files come from: the targets' file systems, then ours, then, if that was asked for, servers.

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};

use super::debug_file::{BuildId, DebugLinks, SupplementaryLink};
use super::debuginfod::{Debuginfod, Fetch};

/// Finds debug files.
pub(super) struct DebugFiles {
    /// Directories that are roots of file systems, in the order in which they are looked into.
    pub(super) roots: Vec<PathBuf>,
    /// What is asked when none of them has a file.
    pub(super) servers: Option<Debuginfod>,
    awaited: RefCell<Vec<BuildId>>,
}

/// A debug file that was found.
pub(super) struct DebugFile {
    /// The file.
    pub(super) file: File,
    /// Where it lies in the root in which it was found; a server's file lies nowhere.
    pub(super) path: Option<PathBuf>,
}

impl DebugFiles {
    /// Finds files under each of `roots` in turn.
    pub(super) fn new(roots: Vec<PathBuf>) -> Self {
        Self {
            roots,
            servers: None,
            awaited: RefCell::default(),
        }
    }

    /// The debug file of the object at `object`, which says `links` about it.
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

    /// The supplementary file of a debug file at `linking`, which belongs to the object at `object`.
    pub(super) fn supplementary(
        &self,
        link: &SupplementaryLink,
        linking: Option<&Path>,
        object: &Path,
    ) -> Option<File> {
        let found = link.find(linking, &self.roots);
        found.or_else(|| self.fetch(link.build_id(), object))
    }

    /// The files that were sought and are still on their way, since this was last asked.
    pub(super) fn take_awaited(&self) -> Vec<BuildId> {
        self.awaited.take()
    }

    fn fetch(&self, id: &BuildId, object: &Path) -> Option<File> {
        // What has no path, the vDSO, is the kernel's.
        let servers = self.servers.as_ref().filter(|_| object.is_absolute())?;
        match servers.find(id, object) {
            Fetch::Here(file) => Some(file),
            Fetch::Nowhere => None,
            Fetch::NotYet => {
                self.awaited.borrow_mut().push(id.clone());
                None
            }
        }
    }
}
