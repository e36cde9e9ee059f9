//! Lines of the kernel's log (`/dev/kmsg`) about OOM kills, which tell whether a cgroup or the system was
//! short of memory.
//!
//! ```text
//! 6,1287,74814240367,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,
//!     oom_memcg=/a,task_memcg=/a/b,task=name,pid=2832,uid=0
//! ```
//!
//! The kernel writes such a line before it kills the process (`dump_oom_summary` in mm/oom_kill.c, since
//! Linux 5.0), seldom more than twice a second. Others choose the names in it: only unambiguous fields are
//! used.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use nix::libc::O_NONBLOCK;

/// Maximum size of a record, as the kernel has it (`CONSOLE_EXT_LOG_MAX`, or `PRINTKRB_RECORD_MAX`).
const MAX_RECORD: usize = 8192;
/// Maximum number of records read at once. A buffer of 1 MiB has fewer.
const MAX_RECORDS: usize = 1 << 15;
/// Maximum number of processes remembered. Beyond it, all earlier ones are forgotten.
const MAX_CHOICES: usize = 1024;

/// Owner of memory that was short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// A cgroup, with its path from the root of the whole hierarchy.
    Cgroup(String),
    /// The system, or the NUMA nodes that the process may use.
    System,
}

/// A line about a process that the OOM killer chose.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Choice {
    pid: u32,
    /// `None` if the line is ambiguous.
    of: Option<Shortage>,
}

/// The log from a moment on.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
    /// Owner of the memory that was short, by pid, from the last line about it; `None` if that line is
    /// ambiguous.
    choices: HashMap<u32, Option<Shortage>>,
}

impl KernelLog {
    /// Opens the log at its current end; `None` if that is not permitted (`CAP_SYSLOG`), or if pids here are
    /// not those of the log.
    pub fn open() -> Option<Self> {
        if !is_initial_namespace() {
            return None;
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).custom_flags(O_NONBLOCK);
        let mut file = options.open("/dev/kmsg").ok()?;
        file.seek(SeekFrom::End(0)).ok()?;
        Some(Self {
            file,
            choices: HashMap::new(),
        })
    }

    /// Forgets lines about a pid, which another process has now.
    pub fn forget(&mut self, pid: u32) {
        self.read();
        self.choices.remove(&pid);
    }

    /// Finds the owner of the memory that was short when the process with this pid was chosen; `None` if it
    /// is not known.
    pub fn shortage(&mut self, pid: u32) -> Option<Shortage> {
        self.read();
        self.choices.get(&pid).cloned().flatten()
    }

    /// Reads the new records.
    fn read(&mut self) {
        let mut record = [0; MAX_RECORD];
        for _ in 0..MAX_RECORDS {
            let length = match self.file.read(&mut record) {
                Ok(0) => break,
                Ok(length) => length,
                // Some were overwritten before they were read.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::Interrupted) => {
                    continue;
                }
                Err(_) => break,
            };
            let bytes = record.get(..length).unwrap_or_default();
            let Some(choice) = parse(&String::from_utf8_lossy(bytes)) else {
                continue;
            };
            if self.choices.len() >= MAX_CHOICES {
                self.choices.clear();
            }
            self.choices.insert(choice.pid, choice.of);
        }
    }
}

/// Returns true if pids here are those of the log, which are the initial namespace's. Its inode number is
/// fixed (PROC_PID_INIT_INO).
fn is_initial_namespace() -> bool {
    let own = std::fs::read_link("/proc/self/ns/pid").ok();
    own.is_some_and(|own| own.as_os_str() == "pid:[4026531836]")
}

/// Parses a record; `None` if it is about something else, or if the kernel did not write it.
fn parse(record: &str) -> Option<Choice> {
    let (head, text) = record.split_once(';')?;
    // The lower 3 bits are the level. Only the kernel can write as facility 0.
    let priority: u32 = head.split(',').next()?.parse().ok()?;
    let text = text.lines().next().filter(|_| priority >> 3 == 0)?;
    let (constraint, rest) = text.strip_prefix("oom-kill:constraint=")?.split_once(',')?;
    // Parse from the end, where the numbers are: the name before them can contain anything.
    let (rest, _) = rest.rsplit_once(",uid=")?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    let is_unclear = [",oom_memcg=", ",task_memcg=", ",task="]
        .iter()
        .any(|field| rest.matches(field).count() > 1);
    let (rest, _) = rest.split_once(",task=")?;
    let of = match constraint {
        _ if is_unclear => None,
        "CONSTRAINT_MEMCG" => {
            let (_, path) = rest.split_once(",oom_memcg=")?;
            let path = path.split_once(",task_memcg=")?.0;
            path.starts_with('/').then(|| Shortage::Cgroup(path.to_owned()))
        }
        "CONSTRAINT_NONE" | "CONSTRAINT_CPUSET" | "CONSTRAINT_MEMORY_POLICY" => Some(Shortage::System),
        _ => None,
    };
    Some(Choice {
        pid: pid.parse().ok()?,
        of,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BEGIN: &str = "6,1287,74814240367,-;oom-kill:constraint=";

    fn line(constraint: &str, of: &str, task: &str) -> String {
        format!("{BEGIN}{constraint},nodemask=(null),cpuset=/,mems_allowed=0,{of},task={task},pid=28,uid=0\n")
    }

    /// Lines of all kinds are understood as the kernel means them.
    #[test]
    fn lines_of_the_kernel() {
        let of_cgroup = line("CONSTRAINT_MEMCG", "oom_memcg=/a,task_memcg=/a/b", "my name");
        let choice = |of| Some(Choice { pid: 28, of });
        assert_eq!(parse(&of_cgroup), choice(Some(Shortage::Cgroup("/a".to_owned()))));
        for constraint in ["CONSTRAINT_NONE", "CONSTRAINT_CPUSET", "CONSTRAINT_MEMORY_POLICY"] {
            let of_all = line(constraint, "global_oom,task_memcg=/a", "my name");
            assert_eq!(parse(&of_all), choice(Some(Shortage::System)), "{constraint}");
        }
        assert_eq!(
            parse(&line("CONSTRAINT_NEW", "x=/a,task_memcg=/a", "my name")),
            choice(None)
        );
        assert_eq!(parse("6,1,2,-;usb 1-1: new device\n SUBSYSTEM=usb\n"), None);
    }

    /// Lines that others write into the log, and names with fields in them, lead to no cgroup.
    #[test]
    fn hostile_lines() {
        let of_user = line("CONSTRAINT_MEMCG", "oom_memcg=/a,task_memcg=/a/b", "x").replacen("6,", "14,", 1);
        assert_eq!(parse(&of_user), None);
        for (of, task) in [
            ("oom_memcg=/a,task_memcg=/a,oom_memcg=/b,task_memcg=/a", "x"),
            ("oom_memcg=/a,oom_memcg=/b,task_memcg=/a", "x"),
            ("oom_memcg=/a,task_memcg=/a", "x,task=y"),
            ("oom_memcg=/a,task_memcg=/a,task=x,pid=3,uid=0", "x"),
        ] {
            let choice = parse(&line("CONSTRAINT_MEMCG", of, task)).expect("it is one");
            assert_eq!((choice.pid, choice.of), (28, None), "{of} {task}");
        }
    }

    proptest! {
        /// Any text is parsed or refused.
        #[test]
        fn nothing_panics(text in "\\PC*|6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG(,[a-z_]{0,9}=?[a-z/0-9]{0,5}){0,9}") {
            _ = parse(&text);
        }
    }
}
