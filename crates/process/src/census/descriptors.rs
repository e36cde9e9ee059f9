//! Open files of a process, by kind, and the memory that it holds by them alone: files in memory that have no
//! name. Nothing is opened: a link's text and `stat` say it all.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};

use super::mounts::Mounts;
use super::portions::Portion;
use super::proc_files::{MAX_BYTES, read};
use super::quick::soft_limit;
use crate::smaps::Resident;

/// Maximum number of open files that are looked at.
const MAX_FILES: usize = 1 << 17;
/// Maximum number of held files that are listed.
const MAX_HELD: usize = 1 << 12;
/// Maximum size of an `fdinfo` file of a file in bytes. It has some 60.
const MAX_FDINFO: u64 = 4096;
/// Unit of `st_blocks`.
const BLOCK: u64 = 512;
/// Capacity of a pipe, unless the program has changed it (pipe(7)): 16 pages.
const PIPE_PAGES: u64 = 16;

/// Kind of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// File or directory.
    File,
    /// File that has no name any longer.
    Deleted,
    Device,
    /// File of `memfd_create`.
    Memory,
    Socket,
    Pipe,
    Epoll,
    Eventfd,
    Timerfd,
    Signalfd,
    Inotify,
    Fanotify,
    IoUring,
    PerfEvent,
    Bpf,
    Pidfd,
    DmaBuf,
    /// Object of the kernel of another kind.
    Other,
}

impl FileKind {
    /// Kind by the text of a link in `/proc/PID/fd`.
    pub fn of(link: &[u8]) -> Self {
        /// Beginnings of names that the kernel gives.
        const NAMES: [(&[u8], FileKind); 16] = [
            (b"socket:[", FileKind::Socket),
            (b"pipe:[", FileKind::Pipe),
            (b"anon_inode:[eventpoll]", FileKind::Epoll),
            (b"anon_inode:[eventfd", FileKind::Eventfd),
            (b"anon_inode:[timerfd]", FileKind::Timerfd),
            (b"anon_inode:[signalfd]", FileKind::Signalfd),
            (b"anon_inode:inotify", FileKind::Inotify),
            (b"anon_inode:[fanotify]", FileKind::Fanotify),
            (b"anon_inode:[io_uring]", FileKind::IoUring),
            (b"anon_inode:[perf_event]", FileKind::PerfEvent),
            (b"anon_inode:bpf", FileKind::Bpf),
            (b"anon_inode:[pidfd]", FileKind::Pidfd),
            (b"pidfd:", FileKind::Pidfd),
            (b"/memfd:", FileKind::Memory),
            (b"/dmabuf:", FileKind::DmaBuf),
            (b"/dev/shm/", FileKind::File),
        ];
        let named = NAMES.iter().find(|(start, _)| link.starts_with(start));
        match named.map(|(_, kind)| *kind) {
            Some(kind @ (Self::Socket | Self::Pipe | Self::Memory | Self::DmaBuf)) => kind,
            _ if link.starts_with(b"/") && link.ends_with(b" (deleted)") => Self::Deleted,
            Some(kind) => kind,
            None if link.starts_with(b"/dev/") => Self::Device,
            None if link.starts_with(b"/") => Self::File,
            None => Self::Other,
        }
    }
}

/// File in memory that has no name: it lasts while a process has it open or mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldFile {
    /// Name that it had, or was given by `memfd_create`.
    pub name: PathBuf,
    /// Bytes that it has in memory or in swap.
    pub allocated: u64,
    /// Resident bytes of it in the process's mappings.
    pub mapped: u64,
    /// Number of the process's descriptors of it.
    pub descriptors: u64,
}

impl HeldFile {
    /// Bytes that are not in the resident memory of the process.
    pub fn beyond_resident(&self) -> u64 {
        self.allocated.saturating_sub(self.mapped)
    }
}

/// Open files of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptors {
    pub by_kind: BTreeMap<FileKind, u64>,
    /// Soft limit of their number; `None` if there is none.
    pub limit: Option<u64>,
    /// Inodes of sockets.
    pub sockets: HashSet<u64>,
    /// Number of pipes; both ends of one count once.
    pub pipes: u64,
    /// Files in memory without a name, the largest first.
    pub held: Vec<HeldFile>,
    /// False if there are more open files than were looked at.
    pub is_complete: bool,
}

impl Descriptors {
    /// Number of open files that were looked at.
    pub fn count(&self) -> u64 {
        self.by_kind
            .values()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Bytes that its pipes can hold, if the program has not changed their capacities. How much is in them
    /// cannot be known without a descriptor of each, which could keep a pipe open that the program has
    /// closed.
    pub fn pipe_capacity(&self) -> u64 {
        self.pipes
            .saturating_mul(PIPE_PAGES)
            .saturating_mul(memleak_base::pages::bytes())
    }

    /// Bytes of files in memory that the process holds beyond its resident memory.
    pub fn held_beyond_resident(&self) -> u64 {
        let bytes = self.held.iter().map(HeldFile::beyond_resident);
        bytes.fold(0, u64::saturating_add)
    }

    /// Reads the open files of process `pid`.
    pub(super) fn read(pid: u32, mapped: &Mapped, mounts: &Mounts) -> io::Result<Self> {
        let mut found = Self {
            is_complete: true,
            ..Self::default()
        };
        let limits = read(pid, "limits", MAX_BYTES).unwrap_or_default();
        found.limit = soft_limit(&limits, "Max open files");
        let mut pipes = HashSet::new();
        let mut held: HashMap<((u32, u32), u64), HeldFile> = HashMap::new();
        for (seen, entry) in fs::read_dir(format!("/proc/{pid}/fd"))?.enumerate() {
            if seen == MAX_FILES {
                found.is_complete = false;
                break;
            }
            // One that was closed meanwhile does not count.
            let Some(path) = entry.ok().map(|entry| entry.path()) else {
                continue;
            };
            let Ok(link) = fs::read_link(&path) else {
                continue;
            };
            let link = link.as_os_str().as_bytes();
            let kind = FileKind::of(link);
            *found.by_kind.entry(kind).or_default() += 1;
            match kind {
                FileKind::Socket => found.sockets.extend(inode(link)),
                FileKind::Pipe => pipes.extend(inode(link)),
                FileKind::Memory | FileKind::Deleted if held.len() < MAX_HELD => {
                    let number = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
                    let fdinfo = read(pid, &format!("fdinfo/{number}"), MAX_FDINFO).unwrap_or_default();
                    // Other file systems are not asked: one of a server that does not answer would block.
                    let of_kernel = kind == FileKind::Memory && mounts.is_in_memory(&fdinfo).is_none();
                    if of_kernel || mounts.is_in_memory(&fdinfo) == Some(true) {
                        note_held(&mut held, &path, link);
                    }
                }
                FileKind::Memory | FileKind::Deleted | FileKind::File | FileKind::Device => {}
                FileKind::Epoll | FileKind::Eventfd | FileKind::Timerfd | FileKind::Signalfd => {}
                FileKind::Inotify | FileKind::Fanotify | FileKind::IoUring | FileKind::PerfEvent => {}
                FileKind::Bpf | FileKind::Pidfd | FileKind::DmaBuf | FileKind::Other => {}
            }
        }
        found.pipes = pipes.len() as u64;
        for (id, file) in &mut held {
            file.mapped = mapped.0.get(id).copied().unwrap_or(0);
        }
        found.held = held.into_values().collect();
        found
            .held
            .sort_by(|a, b| b.allocated.cmp(&a.allocated).then_with(|| a.name.cmp(&b.name)));
        Ok(found)
    }
}

/// Memory that the kernel needs for an open file besides its contents, in bytes: `struct file` of 256, and of
/// most a `dentry` of 192 and an inode of 600 to 1100.
pub const DESCRIPTOR_BYTES: u64 = 1 << 10;

/// An open file, and the bytes that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// File in memory without a name, with the bytes that it has in memory or in swap.
    Memory(u64),
    /// Socket, with its inode.
    Socket(u64),
    /// Another file.
    Other,
}

/// Describes an open file of process `pid`; `None` if it is no longer open.
pub fn opened(pid: u32, descriptor: u32) -> Option<Opened> {
    let path = PathBuf::from(format!("/proc/{pid}/fd/{descriptor}"));
    let link = fs::read_link(&path).ok()?;
    let link = link.as_os_str().as_bytes();
    Some(match FileKind::of(link) {
        FileKind::Socket => Opened::Socket(inode(link)?),
        FileKind::Memory => Opened::Memory(fs::metadata(&path).ok()?.blocks().saturating_mul(BLOCK)),
        FileKind::File
        | FileKind::Deleted
        | FileKind::Device
        | FileKind::Pipe
        | FileKind::Epoll
        | FileKind::Eventfd
        | FileKind::Timerfd
        | FileKind::Signalfd
        | FileKind::Inotify
        | FileKind::Fanotify
        | FileKind::IoUring
        | FileKind::PerfEvent
        | FileKind::Bpf
        | FileKind::Pidfd
        | FileKind::DmaBuf
        | FileKind::Other => Opened::Other,
    })
}

/// Adds an open file of a file system in memory to those that are held, if it has no name.
fn note_held(held: &mut HashMap<((u32, u32), u64), HeldFile>, path: &Path, link: &[u8]) {
    let Ok(file) = fs::metadata(path) else {
        return;
    };
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let device = (number(major(file.dev())), number(minor(file.dev())));
    let is_held = link.starts_with(b"/memfd:") || file.nlink() == 0;
    if !is_held || !file.is_file() {
        return;
    }
    let name = link.strip_suffix(b" (deleted)").unwrap_or(link);
    let file = held.entry((device, file.ino())).or_insert_with(|| HeldFile {
        name: PathBuf::from(OsStr::from_bytes(name)),
        allocated: file.blocks().saturating_mul(BLOCK),
        mapped: 0,
        descriptors: 0,
    });
    file.descriptors += 1;
}

/// Inode in the name of a socket or pipe: `socket:[1234]`.
fn inode(link: &[u8]) -> Option<u64> {
    let (_, number) = std::str::from_utf8(link).ok()?.split_once('[')?;
    number.strip_suffix(']')?.parse().ok()
}

/// Resident bytes of mapped files, by device and inode.
#[derive(Debug, Default)]
pub(super) struct Mapped(HashMap<((u32, u32), u64), u64>);

impl Mapped {
    pub(super) fn of(mappings: &[Resident], portions: &[Portion]) -> Self {
        let mut mapped = HashMap::new();
        for portion in portions {
            let Some(Resident { entry, .. }) = mappings.get(portion.mapping) else {
                continue;
            };
            if entry.inode != 0 {
                let bytes: &mut u64 = mapped.entry((entry.device, entry.inode)).or_default();
                // A private mapping's own pages are no part of the file.
                let of_file = portion.amounts.resident.saturating_sub(portion.amounts.anonymous);
                *bytes = bytes
                    .saturating_add(of_file)
                    .saturating_add(portion.amounts.hugetlb);
            }
        }
        Self(mapped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of the kernel are known; others are files, deleted or not.
    #[test]
    fn kinds() {
        for (link, kind) in [
            ("socket:[12]", FileKind::Socket),
            ("pipe:[12]", FileKind::Pipe),
            ("anon_inode:[eventpoll]", FileKind::Epoll),
            ("anon_inode:[eventfd]", FileKind::Eventfd),
            ("anon_inode:inotify", FileKind::Inotify),
            ("anon_inode:bpf-map", FileKind::Bpf),
            ("anon_inode:[new]", FileKind::Other),
            ("/memfd:a (deleted)", FileKind::Memory),
            ("/tmp/a (deleted)", FileKind::Deleted),
            ("/dev/shm/a", FileKind::File),
            ("/dev/shm/a (deleted)", FileKind::Deleted),
            ("/dev/null", FileKind::Device),
            ("/a", FileKind::File),
            ("", FileKind::Other),
        ] {
            assert_eq!(FileKind::of(link.as_bytes()), kind, "{link}");
        }
        assert_eq!(inode(b"socket:[12]"), Some(12));
        for wrong in [
            "socket:[]",
            "socket:[1",
            "socket:1]",
            "socket:[99999999999999999999]",
        ] {
            assert_eq!(inode(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
