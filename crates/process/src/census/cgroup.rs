//! Memory that a process's control group is charged for, as the kernel counts it: more than what is resident
//! in its processes. Of the innermost group that counts memory, with all groups below it.

use std::fs;
use std::path::Path;

use crate::select::limit::{CountingCgroup, MemoryLimits, number, read};

/// Memory of a control group, in bytes; `None` for what its version does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupMemory {
    /// Path as `/proc/PID/cgroup` names it.
    pub path: String,
    /// All that counts towards the limit.
    pub current: u64,
    /// Its own limit; there can be a smaller one of a group that it is in.
    pub limit: Option<u64>,
    pub swapped: Option<u64>,
    /// True if the process is the only one in it, and no groups are below it.
    pub is_own: bool,
    pub parts: CgroupParts,
    pub events: CgroupEvents,
}

/// Parts of a control group's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupParts {
    pub anonymous: u64,
    /// Page cache, with files in memory.
    pub file: u64,
    /// Page cache that some process has mapped.
    pub mapped_file: u64,
    /// Files in memory and shared memory.
    pub shared: u64,
    /// All memory of the kernel; it includes the parts below.
    pub kernel: Option<u64>,
    pub slab: Option<u64>,
    pub page_tables: Option<u64>,
    pub kernel_stacks: Option<u64>,
    /// Buffers of sockets.
    pub sockets: Option<u64>,
}

/// Numbers of events since the group was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupEvents {
    /// The limit was about to be exceeded.
    pub at_limit: Option<u64>,
    /// Nothing could be reclaimed.
    pub out_of_memory: Option<u64>,
    pub killed: Option<u64>,
}

impl CgroupParts {
    /// Page cache that no process has mapped: it is in the resident memory of none.
    pub fn unmapped_cache(&self) -> u64 {
        self.file.saturating_sub(self.mapped_file)
    }

    /// Parts of `memory.stat`, of version 2 or 1.
    fn of(statistics: &str, is_unified: bool) -> Self {
        let names = match is_unified {
            true => ["anon", "file", "file_mapped", "shmem"],
            // Without `total_`, these leave out groups below.
            false => ["total_rss", "total_cache", "total_mapped_file", "total_shmem"],
        };
        let [anonymous, file, mapped_file, shared] = names.map(|name| field(statistics, name).unwrap_or(0));
        let of_kernel = |name| field(statistics, name).filter(|_| is_unified);
        Self {
            anonymous,
            file,
            mapped_file,
            shared,
            kernel: of_kernel("kernel"),
            slab: of_kernel("slab"),
            page_tables: of_kernel("pagetables"),
            kernel_stacks: of_kernel("kernel_stack"),
            sockets: of_kernel("sock"),
        }
    }
}

impl CgroupMemory {
    /// Reads the memory of process `pid`'s group; `None` if none counts it.
    pub fn read(pid: u32) -> Option<Self> {
        Self::of(pid, MemoryLimits::new().counting(pid)?)
    }

    fn of(pid: u32, cgroup: CountingCgroup) -> Option<Self> {
        let (directory, is_unified) = (cgroup.directory.as_path(), cgroup.is_unified);
        let text = |name: &str| read(&directory.join(name)).unwrap_or_default();
        let mut parts = CgroupParts::of(&text("memory.stat"), is_unified);
        if !is_unified {
            parts.kernel = number(directory, "memory.kmem.usage_in_bytes");
            parts.sockets = number(directory, "memory.kmem.tcp.usage_in_bytes");
        }
        let [current, limit, swapped] = match is_unified {
            true => ["memory.current", "memory.max", "memory.swap.current"],
            false => ["memory.usage_in_bytes", "memory.limit_in_bytes", ""],
        };
        Some(Self {
            current: number(directory, current)?,
            limit: number(directory, limit).filter(|&limit| limit < UNLIMITED),
            swapped: number(directory, swapped),
            is_own: is_own(pid, directory),
            parts,
            events: events(directory, is_unified),
            path: cgroup.path,
        })
    }
}

/// Limits from this value on mean none (`select::limit`).
const UNLIMITED: u64 = 1 << 62;

/// Returns whether a process is the only one in a group, and no groups are below it.
fn is_own(pid: u32, directory: &Path) -> bool {
    let processes = read(&directory.join("cgroup.procs")).unwrap_or_default();
    let is_alone = processes.lines().map(str::parse).eq([Ok(pid)]);
    let mut entries = fs::read_dir(directory).into_iter().flatten().flatten();
    is_alone && !entries.any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
}

fn events(directory: &Path, is_unified: bool) -> CgroupEvents {
    let text = |name: &str| read(&directory.join(name)).unwrap_or_default();
    match is_unified {
        true => {
            let events = text("memory.events");
            CgroupEvents {
                at_limit: field(&events, "max"),
                out_of_memory: field(&events, "oom"),
                killed: field(&events, "oom_kill"),
            }
        }
        false => CgroupEvents {
            at_limit: number(directory, "memory.failcnt"),
            out_of_memory: None,
            killed: field(&text("memory.oom_control"), "oom_kill"),
        },
    }
}

/// Value of a line `name value`.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(files: &[(&str, &str)], is_unified: bool) -> Option<CgroupMemory> {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        CgroupMemory::of(
            7,
            CountingCgroup {
                path: "/a".into(),
                directory: directory.path().into(),
                is_unified,
            },
        )
    }

    /// Both versions are read by their own names.
    #[test]
    fn both_versions() {
        let two = made(
            &[
                ("memory.current", "1000\n"),
                ("memory.max", "max\n"),
                ("memory.swap.current", "7\n"),
                (
                    "memory.stat",
                    "anon 100\nfile 600\nkernel 50\nkernel_stack 3\npagetables 4\nsock 5\nshmem 200\n\
                     file_mapped 250\nslab 30\nslab_x 1\n",
                ),
                ("memory.events", "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\n"),
            ],
            true,
        );
        let two = two.unwrap();
        assert_eq!((two.current, two.limit, two.swapped), (1000, None, Some(7)));
        assert_eq!(two.parts.unmapped_cache(), 350);
        assert_eq!((two.parts.kernel, two.parts.slab), (Some(50), Some(30)));
        assert_eq!((two.parts.sockets, two.parts.page_tables), (Some(5), Some(4)));
        let events = two.events;
        assert_eq!(
            (events.at_limit, events.out_of_memory, events.killed),
            (Some(3), Some(2), Some(1))
        );
        let one = made(
            &[
                ("memory.usage_in_bytes", "1000\n"),
                ("memory.limit_in_bytes", "5000\n"),
                ("memory.kmem.usage_in_bytes", "60\n"),
                ("memory.failcnt", "4\n"),
                (
                    "memory.oom_control",
                    "oom_kill_disable 0\nunder_oom 0\noom_kill 9\n",
                ),
                (
                    "memory.stat",
                    "cache 1\nrss 1\nkernel 1\ntotal_cache 500\ntotal_rss 300\ntotal_mapped_file 100\n",
                ),
            ],
            false,
        );
        let one = one.unwrap();
        assert_eq!((one.current, one.limit), (1000, Some(5000)));
        assert_eq!((one.parts.anonymous, one.parts.unmapped_cache()), (300, 400));
        assert_eq!((one.parts.kernel, one.parts.slab), (Some(60), None));
        assert_eq!((one.events.at_limit, one.events.killed), (Some(4), Some(9)));
        assert_eq!(made(&[("memory.current", "x\n")], true), None);
    }
    /// A group is a process's own if nothing else is in it.
    #[test]
    fn own_group() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cgroup.procs");
        for (processes, is_its_own) in [
            ("7\n", true),
            ("7\n8\n", false),
            ("8\n", false),
            ("", false),
            ("x\n", false),
        ] {
            std::fs::write(&file, processes).unwrap();
            assert_eq!(is_own(7, directory.path()), is_its_own, "{processes:?}");
        }
        std::fs::write(&file, "7\n").unwrap();
        std::fs::create_dir(directory.path().join("below")).unwrap();
        assert!(!is_own(7, directory.path()));
    }
}
