//! Limits that cgroups set to the memory of processes (`memory.max`, or `memory.limit_in_bytes` of version
//! 1), and how much is left below them.
//!
//! File cache counts towards a limit, but the kernel drops it before the limit is reached: room is computed
//! without it.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::cgroup::{Cgroups, Mount, components, relative};

/// Maximum bytes read of a file: `memory.stat` has some 2 KiB.
const MAX_BYTES: u64 = 64 << 10;
/// Maximum number of nested cgroups that are looked at, from the innermost on.
const MAX_DEPTH: usize = 64;
/// Limits of version 1 from this value on mean none. The kernel's value for none is about 2^63.
const UNLIMITED: u64 = 1 << 62;

/// A limit, and the room below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Path of the cgroup that has it, as `/proc/PID/cgroup` names it.
    pub cgroup: String,
    /// Bytes that all processes of the cgroup can have together.
    pub limit: u64,
    /// Bytes that are left before the kernel must give up more than file cache.
    pub room: u64,
}

/// Memory that the processes of a cgroup have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Path of the cgroup, as `/proc/PID/cgroup` names it.
    pub cgroup: String,
    /// Bytes without file cache.
    pub bytes: u64,
}

/// A cgroup that counts the memory of its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CountingCgroup {
    /// Path as `/proc/PID/cgroup` names it.
    pub(crate) path: String,
    /// Directory with its files.
    pub(crate) directory: PathBuf,
    /// True for version 2.
    pub(crate) is_unified: bool,
}

/// A mounted hierarchy with the memory controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    root: String,
    point: PathBuf,
    is_unified: bool,
}

impl Hierarchy {
    pub(super) fn is_unified(&self) -> bool {
        self.is_unified
    }

    /// All hierarchies of a mountinfo file.
    fn all(mountinfo: &str) -> Vec<Self> {
        let mounts = mountinfo.lines().filter_map(Mount::parse);
        let with_memory = mounts
            .filter(|mount| mount.is_unified || mount.options.split(',').any(|option| option == "memory"));
        let owned = with_memory.map(|mount| Self {
            root: mount.root.to_owned(),
            point: mount.point.into(),
            is_unified: mount.is_unified,
        });
        owned.collect()
    }

    /// Paths and directories of the cgroup at `path` and its ancestors, up to the root of the mount. The root
    /// of the whole hierarchy has no limit; that of a container's may have one.
    pub(super) fn upwards(&self, path: &str) -> Vec<(String, PathBuf)> {
        let below = match self.root.as_str() {
            "/" => path.strip_prefix('/'),
            root => relative(path, root),
        };
        let Some(below) = below else {
            return Vec::new();
        };
        let parts: Vec<_> = components(below).collect();
        // Outside of what this process sees.
        if parts.contains(&"..") {
            return Vec::new();
        }
        let root = self.root.trim_end_matches('/');
        let lengths = (0..=parts.len()).rev().take(MAX_DEPTH);
        let up = lengths.map(|length| {
            let below = parts[..length].join("/");
            let path = format!("{root}/{below}");
            let path = match path.trim_end_matches('/') {
                "" => "/",
                path => path,
            };
            (path.to_owned(), self.point.join(below))
        });
        up.collect()
    }

    /// Limit of the cgroup in `directory`, and room below it; `None` without a limit.
    fn limit(&self, directory: &Path) -> Option<(u64, u64)> {
        let limit = match self.is_unified {
            true => "memory.max",
            false => "memory.limit_in_bytes",
        };
        let limit = number(directory, limit).filter(|&limit| limit < UNLIMITED)?;
        Some((limit, limit.saturating_sub(self.usage(directory)?)))
    }

    /// Bytes that the processes of the cgroup in `directory` have, without file cache; `None` if the cgroup
    /// does not count them.
    fn usage(&self, directory: &Path) -> Option<u64> {
        let [usage, inactive, active] = match self.is_unified {
            true => ["memory.current", "inactive_file", "active_file"],
            false => [
                "memory.usage_in_bytes",
                "total_inactive_file",
                "total_active_file",
            ],
        };
        let usage = number(directory, usage)?;
        let statistics = read(&directory.join("memory.stat")).unwrap_or_default();
        let file = |name: &str| {
            let mut lines = statistics.lines();
            let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.and_then(|value| value.parse().ok()).unwrap_or(0_u64)
        };
        let cache = file(inactive).saturating_add(file(active));
        Some(usage.saturating_sub(cache))
    }
}

pub(crate) fn number(directory: &Path, name: &str) -> Option<u64> {
    read(&directory.join(name))?.trim().parse().ok()
}

/// Reads a small file; `None` if it is not there.
pub(crate) fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Limits of this system's cgroups. Values are cached until [`MemoryLimits::forget`].
#[derive(Debug, Default)]
pub struct MemoryLimits {
    hierarchies: Vec<Hierarchy>,
    known: HashMap<PathBuf, Option<(u64, u64)>>,
}

impl MemoryLimits {
    /// Finds where cgroups are mounted.
    pub fn new() -> Self {
        Self::of_mounts(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    /// Limits of the cgroups that a mountinfo file names.
    pub(super) fn of_mounts(mountinfo: &str) -> Self {
        Self {
            hierarchies: Hierarchy::all(mountinfo),
            known: HashMap::new(),
        }
    }

    pub(super) fn hierarchies(&self) -> &[Hierarchy] {
        &self.hierarchies
    }

    /// Forgets the cached values, so that they are read again.
    pub fn forget(&mut self) {
        self.known.clear();
    }

    /// The limit with the least room of the cgroups that a process is in; `None` if there is none.
    pub fn of(&mut self, pid: u32) -> Option<MemoryLimit> {
        let text = read(Path::new(&format!("/proc/{pid}/cgroup")))?;
        self.of_cgroups(&Cgroups::parse(text.as_bytes()))
    }

    /// Memory of a process's innermost cgroup that counts memory; `None` if no cgroup does. The root of the
    /// whole hierarchy does not.
    pub fn usage_of(&self, pid: u32) -> Option<MemoryUsage> {
        let text = read(Path::new(&format!("/proc/{pid}/cgroup")))?;
        self.usage_of_cgroups(&Cgroups::parse(text.as_bytes()))
    }

    /// A process's innermost cgroup that counts memory; `None` if no cgroup does.
    pub(crate) fn counting(&self, pid: u32) -> Option<CountingCgroup> {
        let text = read(Path::new(&format!("/proc/{pid}/cgroup")))?;
        let cgroups = Cgroups::parse(text.as_bytes());
        self.hierarchies.iter().find_map(|hierarchy| {
            let path = cgroups.of_memory(hierarchy.is_unified)?;
            let mut up = hierarchy.upwards(path).into_iter();
            let (path, directory) = up.find(|(_, directory)| hierarchy.usage(directory).is_some())?;
            Some(CountingCgroup {
                path,
                directory,
                is_unified: hierarchy.is_unified,
            })
        })
    }

    fn usage_of_cgroups(&self, cgroups: &Cgroups) -> Option<MemoryUsage> {
        self.hierarchies.iter().find_map(|hierarchy| {
            let path = cgroups.of_memory(hierarchy.is_unified)?;
            let up = hierarchy.upwards(path).into_iter();
            let mut counted = up.filter_map(|(cgroup, directory)| {
                let bytes = hierarchy.usage(&directory)?;
                Some(MemoryUsage { cgroup, bytes })
            });
            counted.next()
        })
    }

    fn of_cgroups(&mut self, cgroups: &Cgroups) -> Option<MemoryLimit> {
        let mut least: Option<MemoryLimit> = None;
        for hierarchy in &self.hierarchies {
            let path = cgroups.of_memory(hierarchy.is_unified);
            for (cgroup, directory) in path.map(|path| hierarchy.upwards(path)).unwrap_or_default() {
                let known = self.known.entry(directory);
                let found = *known.or_insert_with_key(|directory| hierarchy.limit(directory));
                let Some((limit, room)) = found else {
                    continue;
                };
                if least.as_ref().is_none_or(|least| room < least.room) {
                    least = Some(MemoryLimit { cgroup, limit, room });
                }
            }
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both versions' limits are read, the one with the least room counts, and file cache is room.
    #[test]
    fn limits_of_both_versions() {
        let directory = tempfile::tempdir().expect("a directory");
        let make = |path: &str, text: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("ours");
            fs::write(path, text).expect("ours");
        };
        make("2/a/memory.max", "1000\n");
        make("2/a/memory.current", "900\n");
        make(
            "2/a/memory.stat",
            "anon 1\nfile 600\ninactive_file 500\nactive_file 100\n",
        );
        make("2/a/b/memory.max", "max\n");
        make("2/a/b/memory.current", "900\n");
        make("2/c/memory.max", "50\n");
        make("2/c/memory.current", "80\n");
        make("1/pool/memory.limit_in_bytes", "9223372036854771712\n");
        make("1/pool/memory.usage_in_bytes", "70\n");
        make("1/pool/w/memory.limit_in_bytes", "100\n");
        make("1/pool/w/memory.usage_in_bytes", "70\n");
        let at = directory.path().display();
        let mountinfo = format!(
            "1 1 0:1 /docker {at}/2 rw - cgroup2 cgroup2 rw\n2 1 0:2 / {at}/1 rw - cgroup cgroup rw,memory\n\
             3 1 0:3 / {at}/none rw - cgroup cgroup rw,cpu\n"
        );
        let mut limits = MemoryLimits::of_mounts(&mountinfo);
        assert_eq!(limits.hierarchies.len(), 2);
        let limit = |cgroup: &str, limit, room| {
            let cgroup = cgroup.to_owned();
            Some(MemoryLimit { cgroup, limit, room })
        };
        for (cgroups, expected) in [
            ("0::/docker/a/b", limit("/docker/a", 1000, 700)),
            ("0::/docker/c", limit("/docker/c", 50, 0)),
            ("0::/docker", None),
            ("0::/elsewhere/c", None),
            ("0::/docker/../docker/c", None),
            ("4:memory:/pool", None),
            ("4:cpu,memory:/pool/w\n0::/docker/a", limit("/pool/w", 100, 30)),
            ("4:cpu:/pool/w", None),
            ("", None),
        ] {
            let found = limits.of_cgroups(&Cgroups::parse(cgroups.as_bytes()));
            assert_eq!(found, expected, "{cgroups}");
        }
        // Usage is that of the innermost cgroup that counts memory.
        let usage = |cgroup: &str, bytes| {
            let cgroup = cgroup.to_owned();
            Some(MemoryUsage { cgroup, bytes })
        };
        make("2/c/uncounted/memory.max", "1\n");
        for (cgroups, expected) in [
            ("0::/docker/a/b", usage("/docker/a/b", 900)),
            ("0::/docker/a", usage("/docker/a", 300)),
            ("0::/docker/c/uncounted", usage("/docker/c", 80)),
            ("0::/docker", None),
            ("4:memory:/pool", usage("/pool", 70)),
        ] {
            let found = limits.usage_of_cgroups(&Cgroups::parse(cgroups.as_bytes()));
            assert_eq!(found, expected, "{cgroups}");
        }
        // Cached values stay until they are forgotten.
        make("2/c/memory.current", "10\n");
        let mut again = || limits.of_cgroups(&Cgroups::parse(b"0::/docker/c"));
        assert_eq!(again(), limit("/docker/c", 50, 0));
        limits.forget();
        let mut again = || limits.of_cgroups(&Cgroups::parse(b"0::/docker/c"));
        assert_eq!(again(), limit("/docker/c", 50, 40));
        // A container's own root.
        make("2/memory.max", "5000\n");
        make("2/memory.current", "4900\n");
        limits.forget();
        assert_eq!(
            limits.of_cgroups(&Cgroups::parse(b"0::/docker")),
            limit("/docker", 5000, 100)
        );
    }
}
