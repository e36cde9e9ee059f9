//! Finds copies of one file, as containers have them, which share one unwind table.
//!
//! Two files with the same build-id may be copies; only equal bytes prove it. No table is shared on the
//! build-id alone.

use std::collections::HashMap;

use crate::process::{BuildId, Module, ModuleId, Modules};

/// Modules that are copies of each other.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Module that stands for each module that was looked up; for most, itself.
    originals: HashMap<ModuleId, ModuleId>,
    by_build_id: HashMap<BuildId, Vec<ModuleId>>,
}

impl Copies {
    /// Returns the module that stands for `id` and all its copies.
    pub(super) fn original(&mut self, id: ModuleId, modules: &Modules) -> ModuleId {
        if let Some(&known) = self.originals.get(&id) {
            return known;
        }
        let original = self.find(id, modules);
        self.originals.insert(id, original);
        original
    }

    /// Like [`Copies::original`], but without a search: a module that was not looked up before stands for
    /// itself.
    pub(super) fn known_original(&self, id: ModuleId) -> ModuleId {
        self.originals.get(&id).copied().unwrap_or(id)
    }

    fn find(&mut self, id: ModuleId, modules: &Modules) -> ModuleId {
        let module = modules.get(id);
        let Some((module, build_id)) = module.and_then(|module| Some((module, module.build_id.clone()?)))
        else {
            return id;
        };
        let candidates = self.by_build_id.entry(build_id).or_default();
        let is_copy = |other: &&Module| other.bytes() == module.bytes();
        let known = candidates
            .iter()
            .filter_map(|&other| modules.get(other))
            .find(is_copy);
        if let Some(known) = known {
            tracing::debug!("{} is a copy of {}", module.path.display(), known.path.display());
            return known.id;
        }
        candidates.push(id);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    /// A file in the temporary directory, removed on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, bytes: &[u8]) -> Self {
            let path = std::env::temp_dir().join(format!("memleak-copies-{}-{name}", std::process::id()));
            std::fs::write(&path, bytes).expect("a file of our own");
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            _ = std::fs::remove_file(&self.0);
        }
    }

    /// A copy has its original's table; a file that differs in one byte has its own, even with the same
    /// build-id.
    #[test]
    fn copies_by_content() {
        let mut bytes = std::fs::read("/usr/bin/env").expect("a program with a build-id");
        let same = Scratch::new("same", &bytes);
        let last = bytes.last_mut().expect("it is not empty");
        *last = !*last;
        let other = Scratch::new("other", &bytes);
        let mut modules = Modules::new();
        let mut add = |path: &Path| modules.add_file(path).expect("an ELF file");
        let ids = [Path::new("/usr/bin/env"), &same.0, &other.0].map(&mut add);
        let build_ids = ids.map(|id| modules.get(id).and_then(|module| module.build_id.clone()));
        assert!(build_ids[0].is_some() && build_ids.iter().all(|id| *id == build_ids[0]));
        let mut copies = Copies::default();
        let originals = ids.map(|id| copies.original(id, &modules));
        assert_eq!(originals, [ids[0], ids[0], ids[2]]);
        assert_eq!(ids.map(|id| copies.known_original(id)), originals);
    }
}
