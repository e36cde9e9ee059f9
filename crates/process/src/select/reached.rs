//! Facts that the kernel has of a cgroup whose limit was reached.

use std::path::Path;

use super::limit::{MemoryLimits, number, read};
use leak_report::model::ReachedLimit;

impl MemoryLimits {
    /// Reads the limit of a cgroup, its peak and its OOM kills. If it is not visible from here, or was
    /// removed, only its name is known.
    pub fn reached(&self, cgroup: &str) -> ReachedLimit {
        let mut places = self.hierarchies().iter().filter_map(|hierarchy| {
            let (_, directory) = hierarchy.upwards(cgroup).into_iter().next()?;
            let files = match hierarchy.is_unified() {
                true => ["memory.max", "memory.peak", "memory.events"],
                false => [
                    "memory.limit_in_bytes",
                    "memory.max_usage_in_bytes",
                    "memory.oom_control",
                ],
            };
            directory.join(files[0]).exists().then_some((directory, files))
        });
        let (limit, peak, kills) =
            places
                .next()
                .map_or((None, None, None), |(directory, [limit, peak, events])| {
                    (
                        number(&directory, limit),
                        number(&directory, peak),
                        field(&directory.join(events), "oom_kill"),
                    )
                });
        ReachedLimit {
            cgroup: cgroup.to_owned(),
            limit,
            peak,
            kills,
        }
    }
}

/// Number behind a name at the start of a line.
fn field(path: &Path, name: &str) -> Option<u64> {
    let text = read(path)?;
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Limits are read from the files of their version, and only of cgroups below the mount.
    #[test]
    fn limits_that_were_reached() {
        let place = tempfile::tempdir().expect("a directory");
        let make = |path: &str, text: &str| {
            let path = place.path().join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("ours");
            fs::write(path, text).expect("ours");
        };
        make("2/a/memory.max", "1000\n");
        make(
            "2/a/memory.events",
            "low 0\noom 5\noom_kill 3\noom_group_kill 9\n",
        );
        make("2/a/b/memory.max", "max\n");
        make("1/c/memory.limit_in_bytes", "2000\n");
        make("1/c/memory.max_usage_in_bytes", "1999\n");
        make(
            "1/c/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
        );
        make("memory.max", "1\n");
        let at = place.path().display();
        let mountinfo = format!(
            "1 1 0:1 / {at}/2 rw - cgroup2 cgroup2 rw\n2 1 0:2 / {at}/1 rw - cgroup cgroup rw,memory\n"
        );
        let limits = MemoryLimits::of_mounts(&mountinfo);
        for (cgroup, limit, peak, kills) in [
            ("/a", Some(1000), None, Some(3)),
            ("/a/b", None, None, None),
            ("/c", Some(2000), Some(1999), Some(4)),
            ("/gone", None, None, None),
            ("/a/../..", None, None, None),
        ] {
            let cgroup = cgroup.to_owned();
            let found = limits.reached(&cgroup);
            let expected = ReachedLimit {
                cgroup,
                limit,
                peak,
                kills,
            };
            assert_eq!(found, expected);
        }
    }
}
