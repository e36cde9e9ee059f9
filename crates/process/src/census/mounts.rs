//! File systems in memory, by a process's mounts.

use std::collections::{HashMap, HashSet};

/// Mounts of a process, of a mountinfo file (`proc_pid_mountinfo(5)`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounts {
    /// Devices of file systems in memory.
    devices: HashSet<(u32, u32)>,
    /// Ids of all mounts, each with whether it is in memory.
    ids: HashMap<u64, bool>,
}

impl Mounts {
    /// Parses the file; lines of another form are left out.
    pub fn parse(mountinfo: &[u8]) -> Self {
        let text = String::from_utf8_lossy(mountinfo);
        let mut mounts = Self::default();
        let parsed = text.lines().filter_map(|line| {
            let (mount, rest) = line.split_once(" - ")?;
            let kind = rest.split(' ').next()?;
            let mut columns = mount.split(' ');
            let id: u64 = columns.next()?.parse().ok()?;
            let (major, minor) = columns.nth(1)?.split_once(':')?;
            let device = (major.parse().ok()?, minor.parse().ok()?);
            Some((id, device, matches!(kind, "tmpfs" | "devtmpfs" | "ramfs")))
        });
        for (id, device, is_in_memory) in parsed {
            mounts.ids.insert(id, is_in_memory);
            if is_in_memory {
                mounts.devices.insert(device);
            }
        }
        mounts
    }

    /// True if a device is that of a file system in memory.
    pub fn has_in_memory(&self, device: (u32, u32)) -> bool {
        self.devices.contains(&device)
    }

    /// Returns whether the mount of an open file is of a file system in memory, by its `fdinfo`
    /// (`proc_pid_fdinfo(5)`); `None` if it is none of these mounts: those of the kernel itself have no line.
    pub(super) fn is_in_memory(&self, fdinfo: &[u8]) -> Option<bool> {
        let text = std::str::from_utf8(fdinfo).ok()?;
        let id = text.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        self.ids.get(&id.trim().parse().ok()?).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices and mounts in memory are known by the kind of their file system.
    #[test]
    fn mounts() {
        let text = b"22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/root rw\n\
            31 22 0:28 / /dev/shm rw shared:2 - tmpfs tmpfs rw,mode=755\n\
            x 22 0:29 / /a rw - tmpfs tmpfs rw\n\
            33 22 0:30 / /b rw\n";
        let mounts = Mounts::parse(text);
        assert!(mounts.has_in_memory((0, 28)) && !mounts.has_in_memory((253, 0)));
        assert!(!mounts.has_in_memory((0, 29)) && !mounts.has_in_memory((0, 30)));
        for (fdinfo, is_in_memory) in [
            ("pos:\t0\nflags:\t02\nmnt_id:\t31\nino:\t5\n", Some(true)),
            ("pos:\t0\nmnt_id:\t22\n", Some(false)),
            ("pos:\t0\nmnt_id:\t5\n", None),
            ("pos:\t0\n", None),
        ] {
            assert_eq!(mounts.is_in_memory(fdinfo.as_bytes()), is_in_memory, "{fdinfo}");
        }
    }
}
