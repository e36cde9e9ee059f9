//! Cgroups that are made for a test.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::program::Program;

/// A cgroup that is made for a test, and removed after its processes have ended.
pub struct Cgroup {
    path: PathBuf,
    /// Outermost directory that was made.
    top: PathBuf,
}

impl Cgroup {
    /// Makes `path` below a mount.
    #[track_caller]
    pub fn make(mount: &Path, path: &str) -> Self {
        let whole = mount.join(path);
        let is_made = |path: &&Path| !path.exists();
        let top = whole
            .ancestors()
            .take_while(is_made)
            .last()
            .expect("a new one")
            .to_owned();
        fs::create_dir_all(&whole).expect("root");
        Self { path: whole, top }
    }

    /// Makes a cgroup whose processes have at most this many bytes of memory together, and no swap.
    #[track_caller]
    pub fn with_memory_limit(name: &str, bytes: u64) -> Self {
        let (mount, _) = memory_controller();
        let cgroup = Self::make(&mount, name);
        cgroup.limit_to(bytes);
        cgroup
    }

    /// Sets the limit of memory, in bytes, without swap.
    #[track_caller]
    pub fn limit_to(&self, bytes: u64) {
        let (_, limit) = memory_controller();
        let swap = match limit {
            "memory.max" => ("memory.swap.max", "0".to_owned()),
            _ => ("memory.memsw.limit_in_bytes", bytes.to_string()),
        };
        // In version 1, the limit with swap is never below that of memory alone: raise it first, lower it
        // last.
        _ = fs::write(self.path.join(swap.0), &swap.1);
        self.set(limit, &bytes.to_string());
        // Not there on a machine without swap.
        if self.path.join(swap.0).exists() {
            self.set(swap.0, &swap.1);
        }
    }

    #[track_caller]
    fn set(&self, file: &str, value: &str) {
        fs::write(self.path.join(file), value).unwrap_or_else(|error| panic!("{file}: {error}"));
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    #[track_caller]
    pub fn add(&self, program: &Program) {
        fs::write(self.path.join("cgroup.procs"), program.pid().to_string()).expect("root");
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let began = Instant::now();
        // It can be removed a moment after the last process has ended.
        while fs::remove_dir(&self.path).is_err() && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
        for above in self
            .path
            .ancestors()
            .skip(1)
            .take_while(|above| above.starts_with(&self.top))
        {
            // Another test may have made one beside it.
            _ = fs::remove_dir(above);
        }
    }
}

/// Returns the mount point of a version 2 hierarchy, and that of a version 1 one if there is one.
#[track_caller]
pub fn mounts() -> (PathBuf, Option<PathBuf>) {
    let root = Path::new("/sys/fs/cgroup");
    let unified = [root.join("unified"), root.to_owned()];
    let unified = unified
        .into_iter()
        .find(|path| path.join("cgroup.controllers").exists());
    let pids = Some(root.join("pids")).filter(|path| path.join("cgroup.procs").exists());
    (unified.expect("cgroup2 is mounted"), pids)
}

/// Directory of the hierarchy that has the memory controller, and the file of its limits.
#[track_caller]
pub fn memory_controller() -> (PathBuf, &'static str) {
    let old = Path::new("/sys/fs/cgroup/memory");
    if old.join("memory.limit_in_bytes").exists() || old.join("memory.usage_in_bytes").exists() {
        return (old.to_owned(), "memory.limit_in_bytes");
    }
    let new = Path::new("/sys/fs/cgroup");
    fs::write(new.join("cgroup.subtree_control"), "+memory").expect("a hierarchy with the memory controller");
    (new.to_owned(), "memory.max")
}
