//! Names of code that processes generate, from the files that they write for `perf`.

use std::path::{Path, PathBuf};

use super::Session;
use crate::process::{MappedCode, Mappings, Target};
use crate::symbolize::PerfMap;

impl Session<'_> {
    /// Reads the names of code that processes have generated. The last ones of an ended process are kept.
    pub(super) fn read_names_of_generated_code(&mut self) {
        for (number, process) in self.live.roster.iter() {
            if let Some(target) = &process.target
                && let Some(map) = names_of_generated_code(target, &process.mappings)
            {
                self.perf_maps.insert(number, map);
            }
        }
    }
}

/// Names of the code that a process has generated; `None` if it has none, or says nothing of it.
fn names_of_generated_code(target: &Target, mappings: &Mappings) -> Option<PerfMap> {
    let entries = || mappings.entries().iter();
    if !entries().any(|entry| entry.code.is_generated()) {
        return None;
    }
    let root = PathBuf::from(format!("/proc/{}/root", target.pid()));
    let (pid, user) = (target.own_pid(), target.user().ok()?);
    let mut map = PerfMap::read(&root, pid, user).ok();
    // A dump is mapped as code, so that it is found, but is no ELF file.
    let dumps = entries().filter_map(|entry| match &entry.code {
        MappedCode::Generated { file } => file.as_deref(),
        MappedCode::Module { .. } | MappedCode::Trampoline | MappedCode::Unreadable { .. } => None,
    });
    for path in dumps.filter(|path| is_jit_dump(path, pid)) {
        let added = map.get_or_insert_default().add_jit_dump(&root, path, user);
        if let Err(error) = added {
            tracing::debug!("cannot read {}: {error}", path.display());
        }
    }
    map
}

/// Returns whether a path is that of the dump of a process with this pid in its own pid namespace.
fn is_jit_dump(path: &Path, pid: u32) -> bool {
    path.file_name()
        .is_some_and(|name| name == &*format!("jit-{pid}.dump"))
}
