//! Cheap reading of a process's memory: sums that the kernel has ready, and the number of open files.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use memleak_base::proc_fields::ProcFields;

use super::proc_files::read;

/// Maximum number of open files that are counted one by one, on kernels before 6.2.
const MAX_COUNTED: usize = 1 << 20;
/// Maximum size of `smaps_rollup` in bytes. It has 800.
const MAX_ROLLUP: u64 = 64 << 10;

/// Sums of a process's memory, in bytes, by `/proc/PID/status` (`proc_pid_status(5)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quick {
    /// Address space.
    pub reserved: u64,
    pub resident: u64,
    /// Resident, of no file.
    pub anonymous: u64,
    /// Resident, of files.
    pub of_files: u64,
    /// Resident, shared memory.
    pub shared: u64,
    /// Anonymous memory that is swapped out.
    pub swapped: u64,
    /// Page tables.
    pub page_tables: u64,
    /// Pages of hugetlbfs.
    pub hugetlb: u64,
    /// Memory that cannot be swapped out (`mlock`).
    pub locked: u64,
    pub threads: u64,
    /// Number of open files; `None` if it may not be read.
    pub open_files: Option<u64>,
}

impl Quick {
    /// Reads the sums of process `pid`.
    ///
    /// # Errors
    ///
    /// `NotFound` if the process has ended; else the system's error.
    pub fn read(pid: u32) -> io::Result<Self> {
        Ok(Self {
            open_files: open_files(pid),
            ..Self::without_files(pid)?
        })
    }

    /// Reads the sums of process `pid` without the number of its open files, which some kernels count one by
    /// one.
    ///
    /// # Errors
    ///
    /// As for [`Self::read`].
    pub fn without_files(pid: u32) -> io::Result<Self> {
        let quick = Self::of(&ProcFields::status(pid)?);
        match quick.resident == 0 && quick.reserved == 0 {
            true => Err(io::ErrorKind::NotFound.into()),
            false => Ok(quick),
        }
    }

    /// Sums that a status has.
    pub fn of(status: &ProcFields) -> Self {
        let bytes = |name| status.number(name).unwrap_or(0).saturating_mul(1024);
        Self {
            reserved: bytes("VmSize"),
            resident: bytes("VmRSS"),
            anonymous: bytes("RssAnon"),
            of_files: bytes("RssFile"),
            shared: bytes("RssShmem"),
            swapped: bytes("VmSwap"),
            page_tables: bytes("VmPTE"),
            hugetlb: bytes("HugetlbPages"),
            locked: bytes("VmLck"),
            threads: status.number("Threads").unwrap_or(0),
            open_files: None,
        }
    }
}

/// Sums over all mappings that the kernel visits for it, in bytes, by `/proc/PID/smaps_rollup`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollup {
    pub resident: u64,
    /// Resident, each page divided by the number of its mappings in all processes.
    pub proportional: u64,
    pub anonymous: u64,
    pub swapped: u64,
    /// In transparent huge pages, of anonymous memory.
    pub huge: u64,
    /// Freed by `MADV_FREE`; the kernel takes it when it needs memory.
    pub lazily_freed: u64,
}

impl Rollup {
    /// Reads the sums of process `pid`.
    ///
    /// # Errors
    ///
    /// The process has ended, or may not be read.
    pub fn read(pid: u32) -> io::Result<Self> {
        let text = read(pid, "smaps_rollup", MAX_ROLLUP)?;
        Ok(Self::of(&ProcFields::from(text.as_slice())))
    }

    fn of(fields: &ProcFields) -> Self {
        let bytes = |name| fields.number(name).unwrap_or(0).saturating_mul(1024);
        Self {
            resident: bytes("Rss"),
            proportional: bytes("Pss"),
            anonymous: bytes("Anonymous"),
            swapped: bytes("Swap"),
            huge: bytes("AnonHugePages"),
            lazily_freed: bytes("LazyFree"),
        }
    }
}

/// Number of open files: the size of the directory since Linux 6.2, which is 0 before.
fn open_files(pid: u32) -> Option<u64> {
    let path = format!("/proc/{pid}/fd");
    match fs::metadata(&path).ok()?.size() {
        0 => {
            let entries = fs::read_dir(path).ok()?.take(MAX_COUNTED);
            u64::try_from(entries.count()).ok()
        }
        count => Some(count),
    }
}

/// Soft limit of this name in a `limits` file (`proc_pid_limits(5)`); `None` if there is none, or no such
/// line.
pub(super) fn soft_limit(limits: &[u8], name: &str) -> Option<u64> {
    let text = std::str::from_utf8(limits).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields of a status are read; absent and malformed ones are 0, and none overflows.
    #[test]
    fn status() {
        let text = "VmSize:\t 100 kB\nVmRSS:\t 60 kB\nRssAnon:\t 30 kB\nRssFile:\t 20 kB\nRssShmem:\t 10 kB\n\
                    VmPTE:\t 4 kB\nVmSwap:\t x kB\nHugetlbPages:\t 99999999999999999999 kB\nThreads:\t3\n\
                    VmLck:\t 18446744073709551615 kB\n";
        let quick = Quick::of(&ProcFields::from(text.as_bytes()));
        assert_eq!((quick.reserved, quick.resident), (100 << 10, 60 << 10));
        assert_eq!(quick.anonymous + quick.of_files + quick.shared, quick.resident);
        assert_eq!((quick.page_tables, quick.swapped, quick.hugetlb), (4 << 10, 0, 0));
        assert_eq!((quick.threads, quick.locked), (3, u64::MAX));
    }

    /// A limit is a number, or none.
    #[test]
    fn limits() {
        let text = b"Limit   Soft Limit  Hard Limit Units\nMax stack size   8388608   unlimited  bytes\n\
                     Max open files   unlimited 1 files\n";
        assert_eq!(soft_limit(text, "Max stack size"), Some(8 << 20));
        assert_eq!(soft_limit(text, "Max open files"), None);
        assert_eq!(soft_limit(text, "Max"), None);
        assert_eq!(soft_limit(b"\xff", "Max"), None);
    }

    /// This process's own sums agree with those over its mappings, up to what it touches meanwhile.
    #[test]
    fn own() {
        let pid = std::process::id();
        let (quick, rollup) = (Quick::read(pid).unwrap(), Rollup::read(pid).unwrap());
        assert!(
            quick.resident.abs_diff(rollup.resident) < 1 << 20,
            "{quick:?} {rollup:?}"
        );
        let listed = fs::read_dir("/proc/self/fd").unwrap().count();
        assert!(
            quick.open_files.unwrap().abs_diff(listed as u64) < 50,
            "{quick:?}"
        );
        assert!(quick.page_tables > 0 && quick.threads > 0);
        let missing = Quick::read(1 << 30).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
