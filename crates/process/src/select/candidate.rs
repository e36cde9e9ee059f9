//! Facts of a process by which it is selected, from a directory of `/proc`.
//!
//! Each file is read only when needed: most processes are decided by their name alone.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::cgroup::Cgroups;
use crate::files::read_stat;
use crate::stat::Stat;
use memleak_base::proc_fields::ProcFields;

/// Maximum bytes of a process's list of cgroups: a path has at most 4096, and hierarchies are few.
const MAX_CGROUPS: u64 = 256 << 10;
/// Maximum number of bytes of a command line that are read.
const MAX_WORDS: u64 = 16 << 10;

/// A process that can be selected: it runs a program, and is no kernel thread or zombie.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) pid: u32,
    pub(crate) stat: Stat,
    directory: PathBuf,
}

impl Candidate {
    /// All processes of a directory such as `/proc`, ascending, except `own`, kernel threads, and those that
    /// have ended.
    pub(crate) fn all(proc: &Path, own: u32) -> io::Result<Vec<Self>> {
        let names = fs::read_dir(proc)?.flatten();
        let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut pids: Vec<u32> = pids.filter(|&pid| pid != own).collect();
        pids.sort_unstable();
        Ok(pids.into_iter().filter_map(|pid| Self::open(proc, pid)).collect())
    }

    fn open(proc: &Path, pid: u32) -> Option<Self> {
        let directory = proc.join(pid.to_string());
        let stat = read_stat(&File::open(directory.join("stat")).ok()?).ok()?;
        let is_program = !stat.is_kernel_thread() && !stat.has_exited() && stat.state != b'Z';
        is_program.then_some(Self { pid, stat, directory })
    }

    /// Path of the executable; `None` if reading it is not permitted.
    pub(crate) fn exe(&self) -> Option<PathBuf> {
        fs::read_link(self.directory.join("exe")).ok()
    }

    /// The first words of its command line.
    pub(super) fn words(&self) -> Vec<String> {
        let text = self.read("cmdline", MAX_WORDS);
        let words = text.split(|&byte| byte == 0).filter(|word| !word.is_empty());
        words
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect()
    }

    pub(super) fn cgroups(&self) -> Cgroups {
        Cgroups::parse(&self.read("cgroup", MAX_CGROUPS))
    }

    /// Real user ID.
    pub(super) fn user(&self) -> Option<u32> {
        let status = ProcFields::read(self.directory.join("status")).ok()?;
        status.words("Uid").next()?.parse().ok()
    }

    /// Content of a file, empty if it cannot be read: the process may have ended.
    fn read(&self, name: &str, max: u64) -> Vec<u8> {
        let mut text = Vec::new();
        let file = File::open(self.directory.join(name));
        let read = file.and_then(|file| file.take(max).read_to_end(&mut text));
        match read {
            Ok(_) => text,
            Err(_) => Vec::new(),
        }
    }
}
